// The file that a testbed and its forwarder map: settings of every direction, and what the forwarder counts.
//
// The testbed writes the file before it starts the forwarder, and `delay_ns` and `jitter_ns` at any time; the forwarder
// writes the counters. Every field that changes is one aligned 64-bit word, read and written atomically.
// python/mlt/testbed/delay_line.py has the same layout.
#pragma once

#include <atomic>
#include <cstdint>

namespace mlt::delay_line {

inline constexpr std::uint64_t kMagic = 0x31656E694C746C6DULL;  // "mltLine1"

struct FileHeader {
  std::uint64_t magic;
  std::uint64_t directions;  // that many DirectionRecords follow
};

struct DirectionRecord {
  std::uint64_t from_index;    // interface that frames arrive on
  std::uint64_t to_index;      // interface that they leave by
  std::uint64_t frame_bytes;   // longest frame, with its Ethernet header
  std::uint64_t limit_frames;  // that may be held
  std::uint64_t seed;          // of the jitter
  std::uint64_t delay_ns;
  std::uint64_t jitter_ns;       // uniform in [0, jitter_ns] beyond the delay; order is kept
  std::uint64_t passed;          // counters, in frames
  std::uint64_t held;            // now
  std::uint64_t dropped_full;    // beyond limit_frames
  std::uint64_t dropped_unread;  // by the kernel: the forwarder did not run for too long
  std::uint64_t dropped_unsent;  // the interface was down, or the kernel rejected the frame
  std::uint64_t unused[4];
};
static_assert(sizeof(FileHeader) == 16 && sizeof(DirectionRecord) == 128);

inline std::uint64_t load(std::uint64_t& word) {
  return std::atomic_ref<std::uint64_t>(word).load(std::memory_order_relaxed);
}
inline void add(std::uint64_t& word, std::uint64_t more) {
  if (more != 0) std::atomic_ref<std::uint64_t>(word).fetch_add(more, std::memory_order_relaxed);
}
inline void store(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(word).store(value, std::memory_order_relaxed);
}

}  // namespace mlt::delay_line
