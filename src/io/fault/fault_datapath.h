// Wraps any datapath and does on purpose what networks do by accident: drop, duplicate, reorder, corrupt, delay.
//
// The same seed and the same datagrams give the same faults. Datagrams that survive stay together in runs, so that
// throughput survives too. Every fault is counted by name. Absent on purpose: the protocol; which datagrams are
// eligible is the caller's function over their first bytes. Corruption is what a checksum failed to catch: it reaches
// the endpoint, payload included (FaultOptions::corrupt_first_bytes limits it to headers). One thread owns it; nothing
// allocates after construction except last_error().
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
  kEligible,               // datagrams that faults could hit
  kExempt,                 // datagrams that they could not
  kDropped,                //
  kDroppedInBurst,         // of these: in the bad state
  kDuplicated,             //
  kReordered,              //
  kCorrupted,              //
  kDelayed,                //
  kPassedHoldingFull,      // should have been held; no free place, so it passed unharmed
  kPassedHoldingTooLarge,  // should have been held; larger than a place, so it passed unharmed
  kBacklogDropped,         // the wrapped datapath blocked and the backlog was full
  kReleaseRefused,         // datagrams taken earlier that the wrapped datapath refused later
  kCount
};

class FaultDatapath final : public Datapath, private ReceiveSink {
 public:
  // Null on failure (an option that makes no sense), with `error` filled.
  static std::unique_ptr<FaultDatapath> wrap(std::unique_ptr<Datapath> inner, const FaultOptions& options,
                                             OsError& error);

  Datapath& inner() { return *inner_; }
  std::uint64_t count(FaultCounter which) const { return counters_[which]; }

  const Capabilities& capabilities() const override { return capabilities_; }
  SendStatus send(base::TimeNs now, const base::DatagramRun& run) override;
  // A run that faults split counts once against the budget.
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
  std::size_t release_due(std::size_t most);
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
  base::DatagramRun building_;                 // survivors that travel together
  std::vector<std::byte> corrupted_;           // changed copies of datagrams in building_, at their offset in the run
  std::vector<std::uint32_t> retired_places_;  // released places that building_ still points to
  SendStatus refused_ = SendStatus::kSent;     // what the wrapped datapath answered last, if not kSent
  bool any_taken_ = false;                     // it took something since send() was called

  std::array<CopiedRun, 8> backlog_;  // runs that the wrapped datapath could not take yet, oldest first
  std::size_t backlog_first_ = 0;
  std::size_t backlog_count_ = 0;
  base::TimeNs backlog_due_ = base::kNever;
};

}  // namespace mlt::io
