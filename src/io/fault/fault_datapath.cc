#include "io/fault/fault_datapath.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace mlt::io {

namespace {

constexpr std::array<std::string_view, CounterTable<FaultCounter>::kSize> kFaultCounterNames = {
    "fault_eligible",
    "fault_exempt",
    "fault_dropped",
    "fault_dropped_in_burst",
    "fault_duplicated",
    "fault_reordered",
    "fault_corrupted",
    "fault_delayed",
    "fault_passed_holding_full",
    "fault_passed_holding_too_large",
    "fault_backlog_dropped",
    "fault_release_refused",
};

// A received IPv6 datagram can be slightly longer than the longest run sent.
constexpr std::size_t kMaxReceivedBytes = 65'535;

// Retry interval of a blocked backlog, unless a call comes sooner.
constexpr base::DurationNs kFaultBacklogRetryNs = 50 * base::kMicrosecond;

}  // namespace

std::unique_ptr<FaultDatapath> FaultDatapath::wrap(std::unique_ptr<Datapath> inner, const FaultOptions& options,
                                                   OsError& error) {
  MLT_CHECK(inner != nullptr);
  error = validate(options);
  if (error) return nullptr;
  return std::unique_ptr<FaultDatapath>(new FaultDatapath(std::move(inner), options));
}

FaultDatapath::FaultDatapath(std::unique_ptr<Datapath> inner, const FaultOptions& options)
    : inner_(std::move(inner)),
      options_(options),
      capabilities_(inner_->capabilities()),
      counters_(kFaultCounterNames),
      dice_(options),
      delayed_(options.reorder > 0 || options.delay > 0 ? options.holding_datagrams : 0,
               options.holding_datagram_bytes),
      corrupted_(options.corrupt > 0 ? kMaxReceivedBytes : 0) {
  capabilities_.name = "fault(" + capabilities_.name + ")";
  retired_places_.reserve(options.holding_datagrams);
}

SendStatus FaultDatapath::send(base::TimeNs now, const base::DatagramRun& run) {
  if (options_.side == FaultSide::kReceive) return inner_->send(now, run);
  if (run.total_bytes > capabilities_.max_run_bytes) return SendStatus::kTooLarge;
  // Before any random draw: a run rejected here is sent again and must get the same faults.
  if (!flush_backlog(now)) return SendStatus::kWouldBlock;
  now_ = now;
  release_due(delayed_.size());
  flush();
  if (backlog_count_ > 0) return SendStatus::kWouldBlock;
  any_taken_ = false;
  refused_ = SendStatus::kSent;
  const DatagramMark mark{run.peer, run.path, run.dscp, run.ecn};
  DatagramCursor cursor(run);
  DatagramView view;
  while (cursor.next(view)) treat(mark, view);
  flush();
  return any_taken_ ? SendStatus::kSent : refused_;
}

std::size_t FaultDatapath::receive(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) {
  now_ = now;
  if (options_.side == FaultSide::kSend) {
    if (flush_backlog(now)) {
      release_due(delayed_.size());
      flush();
    }
    return inner_->receive(now, budget_runs, sink);
  }
  sink_ = &sink;
  const std::size_t released = release_due(budget_runs);
  flush();
  const std::size_t received = released < budget_runs ? inner_->receive(now, budget_runs - released, *this) : 0;
  sink_ = nullptr;
  return released + received;
}

void FaultDatapath::on_run(const base::ReceivedRun& run) {
  after_drop_ = after_drop_ || run.after_drop;
  const DatagramMark mark{0, 0, 0, run.ecn};
  for (std::size_t at = 0; at < run.bytes.size(); at += run.datagram_bytes) {
    const std::size_t size = std::min<std::size_t>(run.datagram_bytes, run.bytes.size() - at);
    const base::Slice slice{run.bytes.data() + at, size};
    treat(mark, {{&slice, 1}, static_cast<std::uint32_t>(size)});
  }
  flush();  // the bytes are valid during this call only
}

void FaultDatapath::treat(const DatagramMark& mark, const DatagramView& view) {
  const base::Slice& first = view.slices.front();
  if (options_.eligible != nullptr && !options_.eligible({first.data, first.size})) {
    counters_.add(FaultCounter::kExempt);
    append(mark, view);
    release_overtaken(mark);
    return;
  }
  counters_.add(FaultCounter::kEligible);
  const Fate fate = dice_.next();
  if (fate.drop) {
    counters_.add(FaultCounter::kDropped);
    if (fate.in_burst) counters_.add(FaultCounter::kDroppedInBurst);
    return;
  }
  const bool held = (fate.hold_ns > 0 || fate.overtaken_by > 0) && hold(fate, mark, view);
  if (held && !fate.duplicate) return;
  // The duplicate of a held datagram is sent at once, like a copy on another path.
  if (fate.duplicate) counters_.add(FaultCounter::kDuplicated);
  if (fate.corrupt && !held) {
    counters_.add(FaultCounter::kCorrupted);
    if (!joins(mark, view)) flush();
    std::byte* copy = corrupted_.data() + building_.total_bytes;
    dice_.flip_bits(copy, copy_datagram(view, copy));
    const base::Slice slice{copy, view.bytes};
    append(mark, {{&slice, 1}, view.bytes});
  } else {
    append(mark, view);
  }
  if (fate.duplicate && !held) append(mark, view);
  release_overtaken(mark);
}

bool FaultDatapath::hold(const Fate& fate, const DatagramMark& mark, const DatagramView& view) {
  switch (delayed_.hold(mark, view, fate.overtaken_by, base::after(now_, fate.hold_ns))) {
    case DelayQueue::Result::kFull:
      counters_.add(FaultCounter::kPassedHoldingFull);
      return false;
    case DelayQueue::Result::kTooLarge:
      counters_.add(FaultCounter::kPassedHoldingTooLarge);
      return false;
    case DelayQueue::Result::kHeld:
      break;
  }
  counters_.add(fate.delay ? FaultCounter::kDelayed : FaultCounter::kReordered);
  if (fate.corrupt) {
    counters_.add(FaultCounter::kCorrupted);
    dice_.flip_bits(delayed_.newest().data(), delayed_.newest().size());
  }
  return true;
}

void FaultDatapath::release_overtaken(const DatagramMark& by) {
  delayed_.overtake(by.peer);
  DelayQueue::Released released;
  while (delayed_.pop_overtaken(released)) release(released);
}

std::size_t FaultDatapath::release_due(std::size_t max_count) {
  DelayQueue::Released released;
  std::size_t count = 0;
  while (count < max_count && backlog_count_ == 0 && delayed_.pop_due(now_, released)) {
    release(released);
    ++count;
  }
  return count;
}

void FaultDatapath::release(const DelayQueue::Released& released) {
  const base::Slice slice{released.bytes.data(), released.bytes.size()};
  append(released.mark, {{&slice, 1}, static_cast<std::uint32_t>(released.bytes.size())});
  retired_places_.push_back(released.place);
}

// Whether the datagram can join the run in building_: equal sizes except the last, same mark, space left.
bool FaultDatapath::joins(const DatagramMark& mark, const DatagramView& view) const {
  const base::DatagramRun& run = building_;
  if (run.datagram_count == 0) return true;
  if (mark != DatagramMark{run.peer, run.path, run.dscp, run.ecn}) return false;
  if (run.total_bytes != run.datagram_count * run.datagram_bytes || view.bytes > run.datagram_bytes) return false;
  if (run.datagram_count == base::kMaxRunSegments || run.total_bytes + view.bytes > base::kMaxRunBytes) return false;
  if (sink_ != nullptr) {  // a received run is contiguous
    const base::Slice& last = run.slices[run.slice_count - 1];
    return last.data + last.size == view.slices.front().data;
  }
  return run.datagram_count < capabilities_.max_run_segments &&
         run.total_bytes + view.bytes <= capabilities_.max_run_bytes &&
         run.slice_count + view.slices.size() <= run.slices.size();
}

void FaultDatapath::append(const DatagramMark& mark, const DatagramView& view) {
  if (!joins(mark, view)) flush();
  base::DatagramRun& run = building_;
  if (run.datagram_count == 0) {
    run.peer = mark.peer;
    run.path = mark.path;
    run.dscp = mark.dscp;
    run.ecn = mark.ecn;
    run.datagram_bytes = view.bytes;
  }
  for (const base::Slice& slice : view.slices) run.slices[run.slice_count++] = slice;
  run.total_bytes += view.bytes;
  ++run.datagram_count;
}

void FaultDatapath::flush() {
  if (building_.datagram_count == 0) return;
  if (sink_ != nullptr) {
    base::ReceivedRun run;
    run.bytes = {building_.slices[0].data, building_.total_bytes};
    run.datagram_bytes = building_.datagram_bytes;
    run.ecn = building_.ecn;
    run.after_drop = std::exchange(after_drop_, false);
    sink_->on_run(run);
  } else {
    flush_to_inner();
  }
  building_.datagram_count = 0;
  building_.slice_count = 0;
  building_.total_bytes = 0;
  for (const std::uint32_t place : retired_places_) delayed_.give_back(place);
  retired_places_.clear();
}

void FaultDatapath::flush_to_inner() {
  if (backlog_count_ > 0) return to_backlog();
  const SendStatus status = inner_->send(now_, building_);
  if (status == SendStatus::kSent) {
    any_taken_ = true;
  } else if (status == SendStatus::kWouldBlock) {
    to_backlog();
  } else {
    refused_ = status;
    counters_.add(FaultCounter::kReleaseRefused, retired_places_.size());
  }
}

void FaultDatapath::to_backlog() {
  any_taken_ = true;
  if (backlog_count_ == backlog_.size()) {
    counters_.add(FaultCounter::kBacklogDropped, building_.datagram_count);
    return;
  }
  backlog_[(backlog_first_ + backlog_count_++) % backlog_.size()].assign(building_, 0);
  backlog_due_ = base::after(now_, kFaultBacklogRetryNs);
}

bool FaultDatapath::flush_backlog(base::TimeNs now) {
  while (backlog_count_ > 0) {
    CopiedRun& oldest = backlog_[backlog_first_];
    const SendStatus status = inner_->send(now, oldest.run());
    if (status == SendStatus::kWouldBlock) {
      backlog_due_ = base::after(now, kFaultBacklogRetryNs);
      return false;
    }
    if (status != SendStatus::kSent) counters_.add(FaultCounter::kReleaseRefused, oldest.run().datagram_count);
    oldest.clear();
    backlog_first_ = (backlog_first_ + 1) % backlog_.size();
    --backlog_count_;
  }
  backlog_due_ = base::kNever;
  return true;
}

base::TimeNs FaultDatapath::next_timeout() const {
  // Held datagrams wait for the backlog, even if they are due.
  return std::min(inner_->next_timeout(), backlog_count_ > 0 ? backlog_due_ : delayed_.next_due());
}

}  // namespace mlt::io
