// One direction between two processes of one host: a ring of records in memory mapped by both. One process writes, the
// other reads, and neither takes locks.
//
// The other process may write anything into the memory at any time, because it is broken or hostile. So each side keeps
// its own position in private memory, reads the other side's words exactly once, and checks them before use: a ring
// with invalid words is broken permanently, and nothing outside it is touched. Delivered records lie in the ring
// itself, and their contents may still change: ShmDatapath copies where that matters.
//
// The ring's bytes are mapped twice, one mapping behind the other, so that every record is contiguous.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/datagram.h"

namespace mlt::io {

// What both sides write, each in its own cache lines: positions count bytes from the start of the connection.
struct ShmControl {
  alignas(64) std::atomic<std::uint64_t> tail{0};           // the writer's: everything before it is written
  alignas(64) std::atomic<std::uint64_t> head{0};           // the reader's: everything before it may be overwritten
  alignas(64) std::atomic<std::uint32_t> reader_sleeps{0};  // set by the reader; clearing it includes waking the reader
  alignas(64) std::atomic<std::uint32_t> writer_waits{0};   // set while it waits for space; clearing includes waking it
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

// Location of a ring: `data` is followed by a second mapping of the same `bytes`, a power of two.
struct ShmRingMemory {
  ShmControl* control = nullptr;
  std::byte* data = nullptr;
  std::uint32_t bytes = 0;
};

struct ShmRecord {
  std::span<const std::byte> bytes;
  std::uint32_t datagram_bytes = 0;
  std::uint8_t traffic_class = 0;
};

inline constexpr std::size_t kShmRecordHeaderBytes = 16;
// Space of a record of this many bytes: whole cache lines, so that payloads start at aligned addresses.
constexpr std::uint32_t shm_footprint(std::size_t bytes) {
  return static_cast<std::uint32_t>((kShmRecordHeaderBytes + bytes + 63) / 64 * 64);
}

class ShmWriter {
 public:
  ShmWriter() = default;
  explicit ShmWriter(const ShmRingMemory& memory) : memory_(memory) {}

  // Whether `bytes` of records fit now. Always false once the reader's position was invalid.
  bool has_room(std::uint32_t bytes);
  // Copies `size` bytes of the slices, from byte `from` of the run on, as one record; has_room() must have returned
  // true.
  void push(const base::DatagramRun& run, std::uint32_t from, std::uint32_t size);
  // Call after a push: true if the reader sleeps and the caller must wake it.
  bool must_wake_reader();
  // Call before sleeping for space; check once more after it.
  void announce_wait() { memory_.control->writer_waits.store(1); }
  void stop_waiting() { memory_.control->writer_waits.store(0); }

  bool is_broken() const { return broken_; }

 private:
  ShmRingMemory memory_;
  std::uint64_t tail_ = 0;
  std::uint64_t known_head_ = 0;
  bool broken_ = false;
};

class ShmReader {
 public:
  ShmReader() = default;
  explicit ShmReader(const ShmRingMemory& memory) : memory_(memory) {}

  // The oldest record not yet released; false if there is none, or if the ring is broken.
  bool front(ShmRecord& record);
  // Returns the space of the record from the last front() to the writer.
  void release();
  // Call after releases: true if the writer waits for space, enough is free, and the caller must wake it.
  bool must_wake_writer();
  // Call before sleeping; check once more after it.
  void announce_sleep() { memory_.control->reader_sleeps.store(1); }
  void stop_sleeping() { memory_.control->reader_sleeps.store(0); }
  bool has_more() const { return !broken_ && memory_.control->tail.load() != head_; }

  bool is_broken() const { return broken_; }

 private:
  ShmRingMemory memory_;
  std::uint64_t head_ = 0;
  std::uint64_t known_tail_ = 0;
  std::uint32_t shown_ = 0;  // footprint of the record returned by front()
  bool broken_ = false;
};

}  // namespace mlt::io
