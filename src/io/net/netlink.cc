#include "io/net/netlink.h"

#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <cerrno>

namespace mlt::io {

std::optional<Netlink> Netlink::open(OsError& error) {
  Netlink netlink;
  netlink.fd_ = UniqueFd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  if (!netlink.fd_) {
    error = os_error(errno, "open a netlink socket", "to query routes and neighbours");
    return std::nullopt;
  }
  return netlink;
}

int Netlink::request(NetlinkMessage& message, std::span<const std::byte>& answer) {
  answer = {};
  const std::span<std::byte> bytes = message.bytes();
  nlmsghdr header;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.nlmsg_seq = ++sequence_;
  header.nlmsg_flags |= NLM_F_REQUEST;
  std::memcpy(bytes.data(), &header, sizeof header);
  if (::send(fd_.get(), bytes.data(), bytes.size(), 0) < 0) return errno;
  // Number of unread replies to earlier requests that are skipped.
  constexpr int kMaxStale = 8;
  for (int i = 0; i < kMaxStale; ++i) {
    const ssize_t got = ::recv(fd_.get(), answer_.data(), answer_.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    const auto size = static_cast<std::size_t>(got);
    if (size < sizeof header) return EBADMSG;
    std::memcpy(&header, answer_.data(), sizeof header);
    if (header.nlmsg_seq != sequence_) continue;
    if (header.nlmsg_len < sizeof header || header.nlmsg_len > size) return EBADMSG;
    const std::span<const std::byte> content = std::span(answer_).first(header.nlmsg_len).subspan(NLMSG_HDRLEN);
    if (header.nlmsg_type != NLMSG_ERROR) {
      answer = content;
      return 0;
    }
    int code = 0;
    if (content.size() < sizeof code) return EBADMSG;
    std::memcpy(&code, content.data(), sizeof code);
    return -code;
  }
  return EBADMSG;
}

}  // namespace mlt::io
