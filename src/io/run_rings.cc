#include "io/run_rings.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace mlt::io {

namespace {

void copy_run(const base::DatagramRun& from, base::DatagramRun& to) {
  to.peer = from.peer;
  to.path = from.path;
  to.dscp = from.dscp;
  to.ecn = from.ecn;
  to.datagram_count = from.datagram_count;
  to.datagram_bytes = from.datagram_bytes;
  to.total_bytes = from.total_bytes;
  to.slice_count = from.slice_count;
  const auto scratch = reinterpret_cast<std::uintptr_t>(from.scratch.data());
  MLT_CHECK(from.slice_count <= from.slices.size());
  for (std::uint32_t i = 0; i < from.slice_count; ++i) {
    base::Slice slice = from.slices[i];
    const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(slice.data) - scratch;
    if (offset < from.scratch.size()) {
      MLT_CHECK(slice.size <= from.scratch.size() - offset);
      std::memcpy(to.scratch.data() + offset, slice.data, slice.size);
      slice.data = to.scratch.data() + offset;
    }
    to.slices[i] = slice;
  }
}

}  // namespace

// ---- runs to send --------------------------------------------------------------------------------------------------

void SendRing::free_sent() {
  const std::uint64_t left = left_.load();
  while (freed_ < left && place(freed_).outcome == SendStatus::kSent) ++freed_;
}

bool SendRing::has_room() {
  const std::uint64_t queued = queued_.load(std::memory_order_relaxed);
  if (queued - freed_ == kPlaces) free_sent();
  return queued - freed_ < kPlaces;
}

bool SendRing::push(std::uint64_t number, const base::DatagramRun& run) {
  if (!has_room()) return false;
  const std::uint64_t queued = queued_.load(std::memory_order_relaxed);
  copy_run(run, place(queued).run);
  place(queued).number = number;
  queued_.store(queued + 1);
  return true;
}

std::uint64_t SendRing::oldest(std::uint64_t none) const {
  const std::uint64_t left = left_.load();
  return left == queued_.load(std::memory_order_relaxed) ? none : place(left).number;
}

bool SendRing::pop_refused(RefusedRun& refused) {
  if (freed_ == queued_.load(std::memory_order_relaxed)) return false;
  free_sent();
  if (freed_ == left_.load()) return false;
  Place& one = place(freed_);
  refused.status = one.outcome;
  refused.peer = one.run.peer;
  refused.path = one.run.path;
  refused.datagram_bytes = std::min(one.run.datagram_bytes, one.run.total_bytes);
  refused.error = std::exchange(one.error, {});
  ++freed_;
  return true;
}

const base::DatagramRun* SendRing::front() const {
  const std::uint64_t left = left_.load(std::memory_order_relaxed);
  return left == queued_.load() ? nullptr : &place(left).run;
}

void SendRing::pop(SendStatus outcome, std::string error) {
  const std::uint64_t left = left_.load(std::memory_order_relaxed);
  place(left).outcome = outcome;
  place(left).error = std::move(error);
  left_.store(left + 1);
}

// ---- runs received -------------------------------------------------------------------------------------------------

std::span<std::byte> ReceiveRing::next_buffer() {
  const std::size_t index = received_.load(std::memory_order_relaxed) % kPlaces;
  return std::span(memory_).subspan(index * kPlaceBytes, kPlaceBytes);
}

void ReceiveRing::push(const base::ReceivedRun& run) {
  const std::span<std::byte> buffer = next_buffer();
  MLT_CHECK(room() > 0 && run.bytes.size() <= buffer.size());
  const std::uint64_t received = received_.load(std::memory_order_relaxed);
  base::ReceivedRun& kept = runs_[received % kPlaces];
  kept = run;
  if (run.bytes.data() != buffer.data()) {
    std::memcpy(buffer.data(), run.bytes.data(), run.bytes.size());
    kept.bytes = buffer.first(run.bytes.size());
  }
  received_.store(received + 1);
}

std::size_t ReceiveRing::take(base::TimeNs now, std::size_t most, ReceiveSink& sink) {
  const std::uint64_t first = taken_.load(std::memory_order_relaxed);
  const std::size_t count = std::min<std::size_t>(most, received_.load() - first);
  for (std::uint64_t i = first; i < first + count; ++i) {
    base::ReceivedRun run = runs_[i % kPlaces];
    // `now` may be of before the I/O thread read the run; what has not happened yet did so at once.
    if (run.arrival_ns != base::kNever) run.arrival_ns = std::min(run.arrival_ns, now);
    sink.on_run(run);
    taken_.store(i + 1);
  }
  return count;
}

}  // namespace mlt::io
