// Queries the kernel's routing tables and device settings: one request, one reply.
//
// The kernel replies to such a request within the call that sends it, so nothing here waits. Absent on purpose: dumps,
// subscriptions. Only error texts allocate. One thread owns a Netlink. Formats: rtnetlink(7).
#pragma once

#include <linux/netlink.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "base/check.h"
#include "io/os/os_error.h"
#include "io/os/unique_fd.h"

namespace mlt::io {

// One request, built in place: a family-specific header, then attributes.
class NetlinkMessage {
 public:
  template <typename Header>
  NetlinkMessage(std::uint16_t type, std::uint16_t flags, const Header& header) {
    append(&header, sizeof header);
    set_header(type, flags);
  }

  template <typename Value>
  void attribute(std::uint16_t type, const Value& value) {
    attribute(type, &value, sizeof value);
  }
  void attribute(std::uint16_t type, const void* data, std::size_t size) {
    const nlattr header{static_cast<std::uint16_t>(sizeof(nlattr) + size), type};
    append(&header, sizeof header);
    append(data, size);
    set_size();
  }

  // Attributes added between the two calls are nested in one of `type`; returns the argument for end_nest().
  std::size_t begin_nest(std::uint16_t type) {
    const std::size_t at = size_;
    attribute(static_cast<std::uint16_t>(type | NLA_F_NESTED), nullptr, 0);
    return at;
  }
  void end_nest(std::size_t at) {
    const auto size = static_cast<std::uint16_t>(size_ - at);
    std::memcpy(bytes_.data() + at, &size, sizeof size);
  }

  std::span<std::byte> bytes() { return std::span(bytes_).first(size_); }

 private:
  void append(const void* data, std::size_t size) {
    MLT_CHECK(size_ + size <= bytes_.size());
    if (size > 0) std::memcpy(bytes_.data() + size_, data, size);
    size_ = (size_ + size + NLA_ALIGNTO - 1) / NLA_ALIGNTO * NLA_ALIGNTO;
  }
  void set_header(std::uint16_t type, std::uint16_t flags) {
    nlmsghdr header{};
    header.nlmsg_type = type;
    header.nlmsg_flags = flags;
    std::memcpy(bytes_.data(), &header, sizeof header);
    set_size();
  }
  void set_size() {
    const auto size = static_cast<std::uint32_t>(size_);
    std::memcpy(bytes_.data() + offsetof(nlmsghdr, nlmsg_len), &size, sizeof size);
  }

  alignas(nlmsghdr) std::array<std::byte, 256> bytes_{};
  std::size_t size_ = NLMSG_HDRLEN;
};

// Iterates over the attributes of a reply; a malformed one ends the iteration.
class NetlinkAttributes {
 public:
  explicit NetlinkAttributes(std::span<const std::byte> bytes) : rest_(bytes) {}
  bool next(std::uint16_t& type, std::span<const std::byte>& value) {
    nlattr header;
    if (rest_.size() < sizeof header) return false;
    std::memcpy(&header, rest_.data(), sizeof header);
    if (header.nla_len < sizeof header || header.nla_len > rest_.size()) return false;
    type = static_cast<std::uint16_t>(header.nla_type & NLA_TYPE_MASK);
    value = rest_.first(header.nla_len).subspan(sizeof header);
    const std::size_t step = (header.nla_len + std::size_t{NLA_ALIGNTO} - 1) / NLA_ALIGNTO * NLA_ALIGNTO;
    rest_ = rest_.subspan(std::min(step, rest_.size()));
    return true;
  }

 private:
  std::span<const std::byte> rest_;
};

class Netlink {
 public:
  // Bound to the network namespace of the calling thread, whichever thread uses it later.
  static std::optional<Netlink> open(OsError& error);

  // `answer`: the reply's content behind its netlink header, valid until the next request; empty for an
  // acknowledgement. Returns 0 or the kernel's errno.
  int request(NetlinkMessage& message, std::span<const std::byte>& answer);

 private:
  Netlink() = default;

  UniqueFd fd_;
  std::uint32_t sequence_ = 0;
  alignas(nlmsghdr) std::array<std::byte, 4'096> answer_{};
};

}  // namespace mlt::io
