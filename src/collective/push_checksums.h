// Checksums of a partition's pushes at a service: each worker's, of the push as it arrives, and as the worker sent it.
// The sum is made from the packets, so that afterwards the terms are no longer there to be looked at.
//
// Workers send theirs over the control connection, in the order of their pushes, which may be before or after the push
// itself (section 14.3 of PROTOCOL.md). Absent on purpose: what a difference means (summation.h). Owned by the driver's
// thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/event.h"

namespace mlt::collective {

class PushChecksums {
 public:
  struct Comparison {
    std::uint64_t sent = 0, received = 0;

    bool is_equal() const { return sent == received; }
  };

  // Of no workers: there are none.
  explicit PushChecksums(std::uint16_t workers) : workers_(workers) {}
  // Of the memory for each worker.
  static constexpr std::uint64_t cost_bytes() { return sizeof(Worker); }

  bool are_on() const { return !workers_.empty(); }
  // Before the post of the receive of a push: its segments pass through here on their way to `request.place`. The
  // memory at `this` must not move.
  void watch(std::uint16_t worker, core::ReceiveRequest& request);
  // That of the worker's next push, as it sent it.
  void on_sent(std::uint16_t worker, std::uint64_t checksum);
  // The worker's push has arrived whole. Nothing if its checksum has yet to come.
  std::optional<Comparison> compare(std::uint16_t worker);
  // The worker's push is over, and not compared: its checksum is dropped, here or when it comes.
  void skip(std::uint16_t worker);

 private:
  // A worker pushes again once it has the result, which is after the push before is over.
  static constexpr std::size_t kMaxAhead = 2;
  struct Worker {
    std::uint64_t received = 0;
    core::PlaceFunction place = nullptr;
    void* place_context = nullptr;
    std::array<std::uint64_t, kMaxAhead> sent{};  // of pushes that are not over, the oldest first
    std::uint32_t ahead = 0;                      // of these
    std::uint32_t to_drop = 0;                    // that are to come, of pushes that are over
  };

  static void take_segment(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload);

  std::vector<Worker> workers_;
};

}  // namespace mlt::collective
