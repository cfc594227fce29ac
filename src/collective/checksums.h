// Checksums of a stream's transfers, from the memory that a member sends from to the memory that another receives
// into: UDP's checksum covers neither the way between memory and interface nor the software on it.
//
// The sender computes one for each transfer and sends them behind the last (section 22.9 of PROTOCOL.md); the receiver
// compares them with its own, of what arrived whole. Segments arrive in any order, and what is combined is no longer
// there at the end, so that a checksum is a sum over segments. Absent on purpose: what a difference means (the
// runner's).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/event.h"

namespace mlt::collective {

inline constexpr std::size_t kChecksumBytes = 8;

// Transfers of operations with checksums, at the side that compares them.
struct ChecksumCounts {
  std::uint64_t compared = 0;
  std::uint64_t incomplete = 0;  // part of the transfer is missing, within the bound: not compared
  std::uint64_t different = 0;   // of the compared: of each operation that failed of it, one

  ChecksumCounts& operator+=(const ChecksumCounts& other);
};

class StreamChecksums {
 public:
  // `steps`: transfers that are covered. `window`: max transfers in progress.
  StreamChecksums(std::uint32_t steps, std::uint32_t window, std::uint32_t segment_bytes);

  // What is sent or received behind the transfers: 8 bytes for each.
  std::span<std::byte> carried() { return carried_; }

  // -- of a stream that sends

  // A transfer was posted; its data does not change any more.
  void on_posted(std::uint32_t step, std::span<const std::byte> data);
  // One with a feed was posted; its checksum is `fed`, or follows in set() once all of it was fed. The feed's owner
  // adds it up segment by segment: what has left may be overwritten before the last segment is there.
  void on_posted(std::uint32_t step, const std::optional<std::uint64_t>& fed);
  // Those that follow.
  template <typename FedChecksum>
  void settle(const FedChecksum& fed_checksum) {
    std::erase_if(unsettled_, [&](std::uint32_t step) {
      const std::optional<std::uint64_t> fed = fed_checksum(step);
      if (fed) set(step, *fed);
      return fed.has_value();
    });
  }
  // Whether those of all transfers are computed.
  bool is_complete() const { return computed_ == steps_; }

  // -- of a stream that receives

  // Before the post: segments pass through here on their way to `request.place`. The memory at `this` must not move.
  void watch(std::uint32_t step, core::ReceiveRequest& request);
  // The transfer is complete, except for what is missing.
  void on_received(std::uint32_t step, const core::Completion& completion);
  struct Difference {
    std::uint32_t step = 0;
    std::uint64_t sent = 0, received = 0;
  };
  // The first transfer that arrived whole and differs; once everything has arrived.
  std::optional<Difference> difference() const;
  std::uint32_t received_whole() const { return computed_; }

 private:
  struct Watch {
    std::uint64_t sum = 0;
    std::span<const std::byte> data;  // where nothing places segments: it has all of them at the end
    core::PlaceFunction place = nullptr;
    void* place_context = nullptr;
  };

  void set(std::uint32_t step, std::uint64_t checksum);
  static void take_segment(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload);

  std::uint32_t steps_;
  std::uint32_t segment_bytes_;
  std::uint32_t computed_ = 0;
  std::vector<std::byte> carried_;
  std::vector<std::uint32_t> unsettled_;  // steps
  std::vector<Watch> watches_;            // of receives in progress, by step modulo the window
  std::vector<std::optional<std::uint64_t>> found_;
};

// Of the payload of a packet at this offset; the sum over a transfer's packets is its checksum.
std::uint64_t segment_checksum(std::uint64_t offset_bytes, std::span<const std::byte> payload);
// Of a transfer's data, as it is cut into packets.
std::uint64_t transfer_checksum(std::span<const std::byte> data, std::uint32_t segment_bytes);

// The error of an operation whose data of rank `sender` arrived changed at `receiver`. `place`: of the transfer within
// the operation, ended by a comma and a space, or empty. `unusable`: what the caller must not use.
std::string damage_text(std::uint16_t sender, std::uint16_t receiver, const std::string& place, std::uint64_t sent,
                        std::uint64_t received, const std::string& unusable);
// The error where of two ranks one has checksums and the other none.
std::string checksums_differ_text(std::uint16_t with, std::uint16_t without);

}  // namespace mlt::collective
