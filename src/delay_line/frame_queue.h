// The frames of one direction until they are due, in the order of their arrival. Bounded; no allocation after
// construction. Owned by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/prng.h"
#include "base/time.h"
#include "io/os/memory_mapping.h"

namespace mlt::delay_line {

// More would be a unit mistaken: the testbed admits 10 s of delay and as much jitter.
inline constexpr base::DurationNs kMaxDelayNs = 20 * base::kSecond;

class FrameQueue {
 public:
  // `spare`: spaces beyond the limit, to receive into while the queue is full. Its memory is used when first touched.
  FrameQueue(std::uint32_t limit, std::uint32_t spare, std::uint32_t frame_bytes, std::uint64_t seed);

  explicit operator bool() const { return static_cast<bool>(memory_); }  // false: no memory

  // Spaces to receive into, from the most recently used; valid until the next hold() or pop().
  std::span<std::byte> space(std::uint32_t number) const;

  // Keeps the frames in the first spaces: lengths[i] bytes in space i, due at arrivals[i] + delay + jitter but not
  // before an earlier frame. Returns how many were kept; the others exceed the limit.
  std::uint32_t hold(std::span<const std::uint32_t> lengths, std::span<const base::TimeNs> arrivals,
                     base::DurationNs delay_ns, base::DurationNs jitter_ns);

  std::uint32_t size() const { return size_; }
  base::TimeNs due() const { return size_ == 0 ? base::kNever : held_[first_].due_ns; }
  // The frame `number` from the front if it is due at `now`, else nothing.
  std::span<std::byte> due_frame(std::uint32_t number, base::TimeNs now) const;
  void pop(std::uint32_t frames);

 private:
  struct Held {
    base::TimeNs due_ns = 0;
    std::uint32_t place = 0;
    std::uint32_t bytes = 0;
  };

  std::span<std::byte> place(std::uint32_t index) const {
    return {memory_.data() + std::size_t{index} * frame_bytes_, frame_bytes_};
  }
  const Held& held(std::uint32_t number) const { return held_[(first_ + number) % held_.size()]; }

  std::uint32_t frame_bytes_;
  io::MemoryMapping memory_;
  std::vector<std::uint32_t> free_;  // the top is the most recently used
  std::vector<Held> held_;           // ring
  std::size_t first_ = 0;
  std::uint32_t size_ = 0;
  base::TimeNs last_due_ns_ = 0;
  base::Prng dice_;
};

}  // namespace mlt::delay_line
