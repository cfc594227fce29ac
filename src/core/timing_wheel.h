// One timer per slot, in a hierarchical timing wheel: set, move and cancel in constant time, no allocation after
// set-up.
//
// Ten levels of 64 buckets; a bucket of level l spans 1,024 ns * 64^l. A timer is in the level of the highest digit
// (base 64) in which its time differs from the wheel's own, and moves down as the wheel turns, at most ten times. Times
// stay exact: pop_due() never returns a timer early, and due timers come in order of time, ties by slot. next() is
// exact on the lowest level. Above it, next() is the earliest time added to a bucket since the bucket was empty, which
// is early if that timer was moved: the driver wakes, the bucket moves down, and the driver sleeps again. Source:
// Varghese and Lauck, SOSP 1987, scheme 7.
//
// tests/bench/timers.cc measures it against TimerTable, whose interface it shares.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "base/lazy_array.h"
#include "base/time.h"

namespace mlt::core {

class TimingWheel {
 public:
  explicit TimingWheel(std::size_t slots) : timers_(slots) {
    for (auto& level : heads_) level.fill(kNone);
  }

  // Arms, moves or, with kNever, cancels the timer of `slot`.
  void set(std::uint32_t slot, base::TimeNs at) {
    while (timers_.size() <= slot) timers_.grow();
    if (timers_[slot].bucket != kNone) unlink(slot);
    if (at == base::kNever) return;
    timers_[slot].at = at;
    link(slot);
  }

  void cancel(std::uint32_t slot) {
    if (slot < timers_.size() && timers_[slot].bucket != kNone) unlink(slot);
  }

  // Never later than the earliest timer, and after `now` once pop_due(now) returned false; kNever without timers.
  base::TimeNs next() const {
    if (used_levels_ == 0) return base::kNever;
    const auto level = static_cast<std::uint32_t>(std::countr_zero(used_levels_));
    const auto index = static_cast<std::uint32_t>(std::countr_zero(used_[level]));
    return level == 0 ? timers_[earliest(index)].at : soonest_[level][index];
  }

  // Removes one timer that is due at `now` and returns its slot; false if none is due.
  bool pop_due(base::TimeNs now, std::uint32_t& slot) {
    while (used_levels_ != 0) {
      const auto level = static_cast<std::uint32_t>(std::countr_zero(used_levels_));
      const auto index = static_cast<std::uint32_t>(std::countr_zero(used_[level]));
      if (level == 0) {
        slot = earliest(index);
        if (timers_[slot].at > now) break;
        unlink(slot);
        return true;
      }
      if (bucket_start(level, index) > now) break;
      // All timers are in this bucket or later: the wheel turns to its start, and its timers move down.
      tick_ = static_cast<std::uint64_t>(bucket_start(level, index)) >> kTickBits;
      std::uint32_t moving = heads_[level][index];
      heads_[level][index] = kNone;
      clear(level, index);
      while (moving != kNone) {
        const std::uint32_t after = timers_[moving].next;
        link(moving);
        moving = after;
      }
    }
    // No timer is before `now`: the wheel may advance, so that the next timers start on low levels.
    tick_ = std::max(tick_, static_cast<std::uint64_t>(std::max<base::TimeNs>(now, 0)) >> kTickBits);
    return false;
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  static constexpr std::uint32_t kTickBits = 10;
  static constexpr std::uint32_t kDigitBits = 6;
  static constexpr std::uint32_t kBuckets = 1U << kDigitBits;
  static constexpr std::uint32_t kLevels = 10;  // 10 + 9 * 6 = 64 bits, and one to spare

  struct Timer {
    base::TimeNs at = 0;
    std::uint32_t bucket = kNone;  // level * kBuckets + index; kNone: not armed
    std::uint32_t next = kNone;
    std::uint32_t previous = kNone;
  };

  base::TimeNs bucket_start(std::uint32_t level, std::uint32_t index) const {
    const std::uint32_t shift = level * kDigitBits;
    const std::uint64_t above = tick_ >> shift >> kDigitBits << kDigitBits;
    return static_cast<base::TimeNs>(((above | index) << shift) << kTickBits);
  }

  void link(std::uint32_t slot) {
    Timer& timer = timers_[slot];
    // A past time goes into the wheel's current bucket.
    const std::uint64_t tick =
        std::max(static_cast<std::uint64_t>(std::max<base::TimeNs>(timer.at, 0)) >> kTickBits, tick_);
    const std::uint64_t differs = tick ^ tick_;
    const std::uint32_t level =
        differs == 0 ? 0 : (63U - static_cast<std::uint32_t>(std::countl_zero(differs))) / kDigitBits;
    const auto index = static_cast<std::uint32_t>(tick >> (level * kDigitBits)) % kBuckets;
    std::uint32_t& head = heads_[level][index];
    timer.bucket = level * kBuckets + index;
    timer.previous = kNone;
    timer.next = head;
    base::TimeNs& soonest = soonest_[level][index];
    soonest = head == kNone ? timer.at : std::min(soonest, timer.at);
    if (head != kNone) timers_[head].previous = slot;
    head = slot;
    used_[level] |= std::uint64_t{1} << index;
    used_levels_ |= 1U << level;
  }

  void unlink(std::uint32_t slot) {
    Timer& timer = timers_[slot];
    const std::uint32_t level = timer.bucket / kBuckets;
    const std::uint32_t index = timer.bucket % kBuckets;
    if (timer.next != kNone) timers_[timer.next].previous = timer.previous;
    if (timer.previous != kNone) {
      timers_[timer.previous].next = timer.next;
    } else {
      heads_[level][index] = timer.next;
      if (timer.next == kNone) clear(level, index);
    }
    timer.bucket = kNone;
  }

  void clear(std::uint32_t level, std::uint32_t index) {
    used_[level] &= ~(std::uint64_t{1} << index);
    if (used_[level] == 0) used_levels_ &= ~(1U << level);
  }

  // Earliest timer of bucket `index` of the lowest level, which spans about a microsecond.
  std::uint32_t earliest(std::uint32_t index) const {
    std::uint32_t best = heads_[0][index];
    for (std::uint32_t slot = timers_[best].next; slot != kNone; slot = timers_[slot].next) {
      const Timer& timer = timers_[slot];
      if (timer.at < timers_[best].at || (timer.at == timers_[best].at && slot < best)) best = slot;
    }
    return best;
  }

  base::LazyArray<Timer> timers_;  // up to the highest slot ever set
  std::uint64_t tick_ = 0;
  std::uint32_t used_levels_ = 0;
  std::array<std::uint64_t, kLevels> used_{};
  std::array<std::array<std::uint32_t, kBuckets>, kLevels> heads_;
  std::array<std::array<base::TimeNs, kBuckets>, kLevels>
      soonest_{};  // earliest time added to each bucket since it was empty
};

}  // namespace mlt::core
