// One direction between two processes of one host: a ring of records in memory that both have mapped. One process
// writes, the other reads, neither waits for the other's locks.
//
// The other process may write anything into the memory at any time, because it is broken or hostile. So each side keeps
// its own position for itself, reads what the other side says exactly once, and checks it before use: a ring whose
// words make no sense is broken for good, and nothing outside it is touched. What a reader hands up lies in the ring
// itself, and its contents may still change: see ShmDatapath for who copies.
//
// The ring's bytes are mapped twice, one mapping behind the other, so that every record is in one piece.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/datagram.h"

namespace mlt::io {

// What both sides write, each its own lines: positions count bytes from the start of the connection.
struct ShmControl {
  alignas(64) std::atomic<std::uint64_t> tail{0};           // the writer's: everything before it is there
  alignas(64) std::atomic<std::uint64_t> head{0};           // the reader's: everything before it may be overwritten
  alignas(64) std::atomic<std::uint32_t> reader_sleeps{0};  // set by the reader; who clears it wakes the reader
  alignas(64) std::atomic<std::uint32_t> writer_waits{
      0};  // set by the writer, for room; who clears it wakes the writer
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

// Where a ring lies: `data` is followed by a second mapping of the same `bytes`, a power of two.
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
// What a record of so many bytes takes: whole cache lines, so that payloads start where copies are fast.
constexpr std::uint32_t shm_footprint(std::size_t bytes) {
  return static_cast<std::uint32_t>((kShmRecordHeaderBytes + bytes + 63) / 64 * 64);
}

class ShmWriter {
 public:
  ShmWriter() = default;
  explicit ShmWriter(const ShmRingMemory& memory) : memory_(memory) {}

  // Whether `bytes` of records fit now. Never again, once the reader's position made no sense.
  bool has_room(std::uint32_t bytes);
  // Copies `size` bytes of the slices, from byte `from` of the run on, as one record; has_room() must have said so.
  void push(const base::DatagramRun& run, std::uint32_t from, std::uint32_t size);
  // To be asked after a push: whether the reader sleeps, and is to be woken by whoever asked.
  bool must_wake_reader();
  // Before this side sleeps for room: it has to look once more, and only then sleep.
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

  // The oldest record that was not released; false if there is none, or if the ring is broken.
  bool front(ShmRecord& record);
  // Gives the place of the record that front() showed last back to the writer.
  void release();
  // To be asked after releases: whether the writer waits for room, there is plenty, and whoever asked is to wake it.
  bool must_wake_writer();
  // Before this side sleeps: it has to look once more, and only then sleep.
  void announce_sleep() { memory_.control->reader_sleeps.store(1); }
  void stop_sleeping() { memory_.control->reader_sleeps.store(0); }
  bool has_more() const { return !broken_ && memory_.control->tail.load() != head_; }

  bool is_broken() const { return broken_; }

 private:
  ShmRingMemory memory_;
  std::uint64_t head_ = 0;
  std::uint64_t known_tail_ = 0;
  std::uint32_t shown_ = 0;  // footprint of the record that front() showed
  bool broken_ = false;
};

}  // namespace mlt::io
