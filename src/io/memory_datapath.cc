#include "io/memory_datapath.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "base/check.h"

namespace mlt::io {

namespace {
constexpr std::array<std::string_view, CounterTable<MemoryCounter>::kSize> kMemoryCounterNames = {
    "memory_runs_sent", "memory_runs_dropped", "memory_bytes_dropped", "memory_runs_received", "memory_bytes_received",
};
}  // namespace

MemoryNetwork::MemoryNetwork(const MemoryOptions& options) : options_(options), queues_(options.peer_count) {
  MLT_CHECK(options.peer_count > 0 && options.max_run_segments >= 1);
  MLT_CHECK(options.max_run_segments <= base::kMaxRunSegments && options.max_datagram_bytes <= base::kMaxRunBytes);
  // Multiples of 16, so that every record and its bytes start aligned.
  const std::size_t bytes = std::max<std::size_t>(options.queue_bytes, footprint(base::kMaxRunBytes)) / 16 * 16;
  for (Queue& queue : queues_) queue.ring.resize(bytes);
}

std::unique_ptr<MemoryDatapath> MemoryNetwork::endpoint(std::uint16_t rank) {
  MLT_CHECK(rank < queues_.size());
  return std::unique_ptr<MemoryDatapath>(new MemoryDatapath(*this, rank));
}

std::size_t MemoryNetwork::queued_bytes(std::uint16_t rank) const {
  MLT_CHECK(rank < queues_.size());
  return queues_[rank].used;
}

void MemoryNetwork::Queue::write(std::size_t at, const Record& record) {
  static_assert(sizeof(Record) <= kRecordBytes);
  std::memcpy(ring.data() + at, &record, sizeof record);
}

MemoryNetwork::Record MemoryNetwork::Queue::read(std::size_t at) const {
  Record record;
  std::memcpy(&record, ring.data() + at, sizeof record);
  return record;
}

bool MemoryNetwork::Queue::push(const base::DatagramRun& run) {
  if (used == 0) head = tail = 0;  // an empty ring accepts anything that fits
  const std::size_t need = footprint(run.total_bytes);
  const std::size_t to_end = ring.size() - tail;
  const std::size_t skipped = need > to_end ? to_end : 0;
  if (used + skipped + need > ring.size()) return false;
  if (skipped > 0) {
    write(tail, {kSkip, 0, base::Ecn::kNotEct, 0});
    tail = 0;
    used += skipped;
  }
  write(tail, {run.total_bytes, run.datagram_bytes, run.ecn, run.dscp});
  std::byte* to = ring.data() + tail + kRecordBytes;
  std::size_t copied = 0;
  for (std::uint32_t i = 0; i < run.slice_count; ++i) {
    const base::Slice& slice = run.slices[i];
    MLT_CHECK(copied + slice.size <= run.total_bytes);
    std::memcpy(to + copied, slice.data, slice.size);
    copied += slice.size;
  }
  MLT_CHECK(copied == run.total_bytes);
  tail = (tail + need) % ring.size();
  used += need;
  return true;
}

bool MemoryNetwork::Queue::front(Record& record, const std::byte*& bytes) {
  if (used == 0) return false;
  record = read(head);
  if (record.bytes == kSkip) {
    used -= ring.size() - head;
    head = 0;
    record = read(head);
  }
  bytes = ring.data() + head + kRecordBytes;
  return true;
}

void MemoryNetwork::Queue::pop(const Record& record) {
  const std::size_t size = footprint(record.bytes);
  head = (head + size) % ring.size();
  used -= size;
}

MemoryDatapath::MemoryDatapath(MemoryNetwork& network, std::uint16_t rank)
    : network_(network), rank_(rank), counters_(kMemoryCounterNames) {
  const MemoryOptions& options = network.options_;
  capabilities_.max_run_segments = options.max_run_segments;
  capabilities_.max_run_bytes = static_cast<std::uint32_t>(
      std::min<std::size_t>(base::kMaxRunBytes, std::size_t{options.max_run_segments} * options.max_datagram_bytes));
  capabilities_.max_datagram_bytes = options.max_datagram_bytes;
  capabilities_.receive_buffer_bytes = static_cast<std::uint32_t>(network.queues_[rank].ring.size());
  capabilities_.sets_dscp = true;
  capabilities_.reads_ecn = true;
  capabilities_.segmentation_offload = true;
  capabilities_.receive_offload = true;
  capabilities_.name = "memory";
}

SendStatus MemoryDatapath::send(base::TimeNs, const base::DatagramRun& run) {
  if (run.peer >= network_.queues_.size() || run.path != 0) return SendStatus::kNoPeer;
  if (run.total_bytes > capabilities_.max_run_bytes || run.datagram_count > capabilities_.max_run_segments ||
      std::min(run.datagram_bytes, run.total_bytes) > capabilities_.max_datagram_bytes) {
    return SendStatus::kTooLarge;
  }
  counters_.add(MemoryCounter::kRunsSent);
  if (!network_.queues_[run.peer].push(run)) {
    counters_.add(MemoryCounter::kRunsDropped);
    counters_.add(MemoryCounter::kBytesDropped, run.total_bytes);
  }
  return SendStatus::kSent;
}

std::size_t MemoryDatapath::receive(base::TimeNs, std::size_t budget_runs, ReceiveSink& sink) {
  MemoryNetwork::Queue& queue = network_.queues_[rank_];
  std::size_t handed_up = 0;
  MemoryNetwork::Record record;
  const std::byte* bytes = nullptr;
  while (handed_up < budget_runs && queue.front(record, bytes)) {
    base::ReceivedRun run;
    run.bytes = {bytes, record.bytes};
    run.datagram_bytes = std::min(record.datagram_bytes, record.bytes);
    run.ecn = record.ecn;
    last_received_dscp_ = record.dscp;
    ++handed_up;
    counters_.add(MemoryCounter::kRunsReceived);
    counters_.add(MemoryCounter::kBytesReceived, record.bytes);
    sink.on_run(run);  // may send to this queue, so the record is removed only afterwards
    queue.pop(record);
  }
  return handed_up;
}

base::TimeNs MemoryDatapath::next_timeout() const {
  return network_.queues_[rank_].used > 0 ? base::TimeNs{0} : base::kNever;
}

}  // namespace mlt::io
