// Runs between the thread that owns a datapath and one that makes its system calls: a queue of runs to send and one of
// runs received. Each has one thread at either end, a fixed number of places, and no lock.
//
// A run to send keeps its slices as they are, but for those in its own scratch (headers, control datagrams), which are
// copied with it. What was received lies in the place's own memory, into which the socket is read: nobody copies it.
// Absent on purpose: sleeping and waking (Doorbell, IoThread). Nothing allocates after construction but the text of a
// failure.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/datagram.h"
#include "io/datapath.h"

namespace mlt::io {

inline constexpr std::size_t kCacheLine = 64;

// Filled by the owner, emptied by the I/O thread, which says of each run what became of it. Its place is free again
// when the owner has heard that.
class SendRing {
 public:
  // Few: what waits here is late by the time it leaves, and the round trip is measured from before.
  static constexpr std::size_t kPlaces = 8;

  SendRing() : places_(kPlaces) {}

  // The owner's thread. `number` is the run's in the order of all rings; false: no room.
  bool push(std::uint64_t number, const base::DatagramRun& run);
  bool has_room();
  // The number of the oldest run that has not left; `none` if all have.
  std::uint64_t oldest(std::uint64_t none) const;
  // The oldest run that did not leave and was not told of; false if there is none.
  bool pop_refused(RefusedRun& refused);

  // The I/O thread. The run to send next; nullptr if there is none.
  const base::DatagramRun* front() const;
  void pop(SendStatus outcome, std::string error);
  std::size_t waiting() const { return queued_.load() - left_.load(); }

 private:
  struct Place {
    base::DatagramRun run;
    std::uint64_t number = 0;
    SendStatus outcome = SendStatus::kSent;
    std::string error;
  };
  Place& place(std::uint64_t index) { return places_[index % kPlaces]; }
  const Place& place(std::uint64_t index) const { return places_[index % kPlaces]; }
  void free_sent();

  std::vector<Place> places_;
  alignas(kCacheLine) std::atomic<std::uint64_t> queued_{0};  // written by the owner
  std::uint64_t freed_ = 0;                                   // the owner's
  alignas(kCacheLine) std::atomic<std::uint64_t> left_{0};    // written by the I/O thread
};

// Filled by the I/O thread, emptied by the owner.
class ReceiveRing {
 public:
  static constexpr std::size_t kPlaces = 16;
  static constexpr std::size_t kPlaceBytes = 65'536;  // more than any run that the system hands out

  ReceiveRing() : memory_(kPlaces * kPlaceBytes) {}

  // The I/O thread.
  std::size_t room() const { return kPlaces - (received_.load(std::memory_order_relaxed) - taken_.load()); }
  // Where the next run goes; its own only while there is room.
  std::span<std::byte> next_buffer();
  // A run that lies there, or elsewhere and is copied. Needs room.
  void push(const base::ReceivedRun& run);

  // The owner's thread.
  bool empty() const { return received_.load() == taken_.load(std::memory_order_relaxed); }
  // Hands up to `most` runs to the sink; returns how many. None arrived after `now`.
  std::size_t take(base::TimeNs now, std::size_t most, ReceiveSink& sink);

 private:
  std::vector<std::byte> memory_;
  std::array<base::ReceivedRun, kPlaces> runs_;
  alignas(kCacheLine) std::atomic<std::uint64_t> received_{0};  // written by the I/O thread
  alignas(kCacheLine) std::atomic<std::uint64_t> taken_{0};     // written by the owner
};

}  // namespace mlt::io
