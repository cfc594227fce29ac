// Outcomes of the last receives, for senders whose STOP was lost. Fixed size: a new outcome replaces the oldest. The
// sender of a replaced one receives kFinishedBefore, which does not mean success.
#pragma once

#include <cstdint>

#include "base/lazy_array.h"
#include "base/time.h"
#include "core/slot_index.h"
#include "core/tag_table.h"
#include "wire/control.h"

namespace mlt::core {

struct FinishedReceive {
  bool used = false;
  std::uint16_t peer = 0;
  wire::TransferId transfer;
  wire::StopStatus status = wire::StopStatus::kFinishedBefore;
  wire::ElementType element = wire::ElementType::kUint8;
  std::uint32_t missing_bytes = 0;
  std::uint32_t total_bytes = 0;
  base::TimeNs finished_ns = 0;
};

// The last `entries` outcomes: a ring for the order, hash chains for look-up.
class FinishedLog {
 public:
  explicit FinishedLog(std::uint32_t entries) : ring_(entries), by_transfer_(entries) {}

  void put(const FinishedReceive& finished) {
    if (newest_ == ring_.size()) ring_.grow();
    if (ring_[newest_].used) unlink(newest_);
    ring_[newest_] = finished;
    link(newest_);
    newest_ = newest_ + 1 == ring_.capacity() ? 0 : newest_ + 1;
  }

  const FinishedReceive* find(std::uint16_t peer, const wire::TransferId& transfer) {
    const std::uint32_t at = place_of(peer, transfer);
    return at == kNil ? nullptr : &ring_[at];
  }

  // Changes the generation recorded for the transfer.
  void renumber(std::uint16_t peer, const wire::TransferId& transfer, std::uint32_t generation) {
    const std::uint32_t at = place_of(peer, transfer);
    if (at == kNil) return;
    unlink(at);
    ring_[at].transfer.generation = generation;
    link(at);
  }

  // Calls `visit` for every entry that ended at `since_ns` or later.
  template <typename Visit>
  void each_since(base::TimeNs since_ns, Visit&& visit) const {
    for (const FinishedReceive& entry : ring_) {
      if (entry.used && entry.finished_ns >= since_ns) visit(entry);
    }
  }

  void forget(std::uint16_t peer) {
    for (std::uint32_t at = 0; at < ring_.size(); ++at) {
      if (!ring_[at].used || ring_[at].peer != peer) continue;
      unlink(at);
      ring_[at].used = false;
    }
  }

 private:
  // kNil if the log has no such entry.
  std::uint32_t place_of(std::uint16_t peer, const wire::TransferId& transfer) const {
    std::uint32_t at = by_transfer_.first(hash_transfer(peer, transfer));
    while (at != kNil && !(ring_[at].peer == peer && ring_[at].transfer == transfer)) at = by_transfer_.next(at);
    return at;
  }
  std::uint64_t hash_of(std::uint32_t entry) const { return hash_transfer(ring_[entry].peer, ring_[entry].transfer); }
  void link(std::uint32_t entry) { by_transfer_.insert(hash_of(entry), entry); }
  void unlink(std::uint32_t entry) { by_transfer_.erase(hash_of(entry), entry); }

  base::LazyArray<FinishedReceive> ring_;  // those that were ever used
  SlotIndex by_transfer_;
  std::uint32_t newest_ = 0;  // where the next outcome goes
};

}  // namespace mlt::core
