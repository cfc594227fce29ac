#include "io/shm/shm_ring.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace mlt::io {

namespace {

// The header of a record: two words, each written and read in one access.
std::uint64_t first_word(std::uint32_t bytes, std::uint32_t datagram_bytes) {
  return std::uint64_t{datagram_bytes} << 32 | bytes;
}

void store_word(std::byte* at, std::uint64_t word) {
  __atomic_store_n(reinterpret_cast<std::uint64_t*>(at), word, __ATOMIC_RELAXED);
}

std::uint64_t load_word(const std::byte* at) {
  return __atomic_load_n(reinterpret_cast<const std::uint64_t*>(at), __ATOMIC_RELAXED);
}

}  // namespace

bool ShmWriter::has_room(std::uint32_t bytes) {
  if (broken_) return false;
  if (memory_.bytes - (tail_ - known_head_) >= bytes) return true;
  const std::uint64_t head = memory_.control->head.load();
  // A head that moves back, or beyond what was written, is invalid.
  // PROTOCOL 23.2.4: A side MUST end the use of the ring, and the peer is down, on a position that goes back, or beyond
  //     what the ring can hold.
  if (head - known_head_ > tail_ - known_head_) {
    broken_ = true;
    return false;
  }
  known_head_ = head;
  return memory_.bytes - (tail_ - known_head_) >= bytes;
}

void ShmWriter::push(const base::DatagramRun& run, std::uint32_t from, std::uint32_t size) {
  // PROTOCOL 23.2.1: A record begins at a multiple of 64 and continues at the ring's start where it ends.
  const std::uint32_t footprint = shm_footprint(size);
  MLT_CHECK(memory_.bytes - (tail_ - known_head_) >= footprint);
  std::byte* record = memory_.data + (tail_ & (memory_.bytes - 1));
  // PROTOCOL 23.2.2: A record MUST be: bytes (32), bytes of each datagram but the last (32), DSCP and ECN as in IP's
  //     traffic class (64), and the datagrams back to back.
  store_word(record, first_word(size, std::min(run.datagram_bytes, size)));
  store_word(record + 8, run.traffic_class());
  std::byte* to = record + kShmRecordHeaderBytes;
  std::uint32_t left = size;
  for (std::uint32_t i = 0; i < run.slice_count && left > 0; ++i) {
    const base::Slice& slice = run.slices[i];
    if (from >= slice.size) {
      from -= static_cast<std::uint32_t>(slice.size);
      continue;
    }
    const auto length = static_cast<std::uint32_t>(std::min<std::size_t>(left, slice.size - from));
    std::memcpy(to, slice.data + from, length);
    to += length;
    left -= length;
    from = 0;
  }
  MLT_CHECK(left == 0);
  tail_ += footprint;
  memory_.control->tail.store(tail_);
}

bool ShmWriter::must_wake_reader() {
  // The store of the tail and this load are sequentially consistent, as are the reader's announcement and its last
  // check: at least one side sees the other.
  // PROTOCOL 23.2.3: A side that has moved a position MUST then look at the other's word, and wake it if it was set:
  //     the reader at once, the writer when half of the ring is free.
  std::atomic<std::uint32_t>& sleeps = memory_.control->reader_sleeps;
  return sleeps.load() != 0 && sleeps.exchange(0) != 0;
}

bool ShmReader::front(ShmRecord& record) {
  if (broken_) return false;
  if (known_tail_ == head_) {
    const std::uint64_t tail = memory_.control->tail.load();
    if (tail == head_) return false;
    // PROTOCOL 23.2.4: A side MUST end the use of the ring, and the peer is down, on a position that goes back, or
    //     beyond what the ring can hold.
    if (tail - head_ > memory_.bytes) {
      broken_ = true;
      return false;
    }
    known_tail_ = tail;
  }
  const std::uint64_t available = known_tail_ - head_;
  const std::byte* at = memory_.data + (head_ & (memory_.bytes - 1));
  // Read once, into this side's own memory: the checked value is the used value.
  const std::uint64_t sizes = load_word(at);
  const std::uint64_t rest = load_word(at + 8);
  const auto bytes = static_cast<std::uint32_t>(sizes);
  const auto datagram_bytes = static_cast<std::uint32_t>(sizes >> 32);
  // PROTOCOL 23.2.5: A record MUST hold 1 to 64 datagrams of one length, the last of which may be shorter, and at most
  //     65,507 bytes, and lie within what was written.
  if (bytes == 0 || bytes > base::kMaxRunBytes || shm_footprint(bytes) > available || datagram_bytes == 0 ||
      datagram_bytes > bytes || (bytes - 1) / datagram_bytes >= base::kMaxRunSegments || rest > 0xFF) {
    broken_ = true;
    return false;
  }
  record.bytes = {at + kShmRecordHeaderBytes, bytes};
  record.datagram_bytes = datagram_bytes;
  record.traffic_class = static_cast<std::uint8_t>(rest);
  shown_ = shm_footprint(bytes);
  return true;
}

void ShmReader::release() {
  head_ += shown_;
  shown_ = 0;
  memory_.control->head.store(head_);
}

bool ShmReader::must_wake_writer() {
  std::atomic<std::uint32_t>& waits = memory_.control->writer_waits;
  if (waits.load() == 0) return false;
  // Half a ring, so that a wake-up pays for more than one record. An empty ring always exceeds that: the writer is
  // woken at the latest when everything was read.
  if (memory_.control->tail.load() - head_ > memory_.bytes / 2) return false;
  return waits.exchange(0) != 0;
}

}  // namespace mlt::io
