// Wraps any datapath and injects network faults: drop, duplicate, reorder, corrupt, delay.
//
// The same seed and the same datagrams give the same faults. Surviving datagrams stay together in runs, which preserves
// throughput. Every kind of fault has a counter. Absent on purpose: the protocol; the caller supplies a predicate over
// a datagram's first bytes that selects the eligible ones. Corruption models damage that the checksum missed: it
// reaches the endpoint, payload included (FaultOptions::corrupt_first_bytes limits it to headers). One thread owns it;
// nothing allocates after construction except last_error().
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/counters.h"
#include "io/datapath.h"
#include "io/fault/delay_queue.h"
#include "io/fault/fault_dice.h"
#include "io/fault/fault_options.h"
#include "io/os/os_error.h"
#include "io/run_view.h"

namespace mlt::io {

enum class FaultCounter : std::size_t {
  kEligible,               // datagrams that faults could affect
  kExempt,                 // datagrams that faults could not affect
  kDropped,                //
  kDroppedInBurst,         // of kDropped: in the bad state
  kDuplicated,             //
  kReordered,              //
  kCorrupted,              //
  kDelayed,                //
  kPassedHoldingFull,      // passed unchanged because no slot was free to hold them
  kPassedHoldingTooLarge,  // passed unchanged because they are larger than a slot
  kBacklogDropped,         // the wrapped datapath blocked and the backlog was full
  kReleaseRefused,         // accepted earlier, rejected by the wrapped datapath later
  kCount
};

class FaultDatapath final : public Datapath, private ReceiveSink {
 public:
  // Null on failure (invalid option), with `error` filled.
  static std::unique_ptr<FaultDatapath> wrap(std::unique_ptr<Datapath> inner, const FaultOptions& options,
                                             OsError& error);

  Datapath& inner() { return *inner_; }
  std::uint64_t count(FaultCounter which) const { return counters_[which]; }

  const Capabilities& capabilities() const override { return capabilities_; }
  SendStatus send(base::TimeNs now, const base::DatagramRun& run) override;
  // A run split by faults counts once against the budget.
  std::size_t receive(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) override;
  bool has_room_for(std::uint16_t peer) override { return inner_->has_room_for(peer); }
  bool prepare_to_wait() override { return inner_->prepare_to_wait(); }
  int readable_fd() const override { return inner_->readable_fd(); }
  int writable_fd(const base::DatagramRun& run) const override { return inner_->writable_fd(run); }
  base::TimeNs next_timeout() const override;
  std::string last_error() const override { return inner_->last_error(); }
  std::span<const NamedCounter> counters() const override { return counters_.all(); }

 private:
  FaultDatapath(std::unique_ptr<Datapath> inner, const FaultOptions& options);

  void on_run(const base::ReceivedRun& run) override;

  void treat(const DatagramMark& mark, const DatagramView& view);
  bool hold(const Fate& fate, const DatagramMark& mark, const DatagramView& view);
  void release_overtaken(const DatagramMark& by);
  std::size_t release_due(std::size_t max_count);
  void release(const DelayQueue::Released& released);

  void append(const DatagramMark& mark, const DatagramView& view);
  bool joins(const DatagramMark& mark, const DatagramView& view) const;
  void flush();
  void flush_to_inner();
  void to_backlog();
  bool flush_backlog(base::TimeNs now);

  std::unique_ptr<Datapath> inner_;
  FaultOptions options_;
  Capabilities capabilities_;
  CounterTable<FaultCounter> counters_;
  FaultDice dice_;
  DelayQueue delayed_;

  base::TimeNs now_ = 0;                       // of the call in progress
  ReceiveSink* sink_ = nullptr;                // of the receive() in progress; null while sending
  base::DatagramRun building_;                 // survivors to send together
  std::vector<std::byte> corrupted_;           // changed copies of datagrams in building_, at their offset in the run
  std::vector<std::uint32_t> retired_places_;  // released slots that building_ still refers to
  SendStatus refused_ = SendStatus::kSent;     // last result of the wrapped datapath, if not kSent
  bool after_drop_ = false;                    // the wrapped datapath reported dropped datagrams
  bool any_taken_ = false;                     // the wrapped datapath accepted something in this send()

  std::array<CopiedRun, 8> backlog_;  // runs that the wrapped datapath has not accepted yet, oldest first
  std::size_t backlog_first_ = 0;
  std::size_t backlog_count_ = 0;
  base::TimeNs backlog_due_ = base::kNever;
};

}  // namespace mlt::io
