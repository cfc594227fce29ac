// Outcomes of the last receives, for senders whose STOP was lost. Fixed size: a new outcome replaces the oldest. The
// sender of a replaced one receives kFinishedBefore, which does not mean success.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "base/time.h"
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
  explicit FinishedLog(std::uint32_t entries)
      : ring_(entries), chains_(std::bit_ceil(std::uint64_t{entries}), kNil), next_(entries, kNil) {}

  void put(const FinishedReceive& finished) {
    if (ring_[newest_].used) unlink(newest_);
    ring_[newest_] = finished;
    std::uint32_t& chain = chain_of(finished.peer, finished.transfer);
    next_[newest_] = chain;
    chain = newest_;
    newest_ = newest_ + 1 == ring_.size() ? 0 : newest_ + 1;
  }

  const FinishedReceive* find(std::uint16_t peer, const wire::TransferId& transfer) {
    for (std::uint32_t at = chain_of(peer, transfer); at != kNil; at = next_[at]) {
      if (ring_[at].peer == peer && ring_[at].transfer == transfer) return &ring_[at];
    }
    return nullptr;
  }

  // Changes the generation recorded for the transfer.
  void renumber(std::uint16_t peer, const wire::TransferId& transfer, std::uint32_t generation) {
    std::uint32_t at = chain_of(peer, transfer);
    while (at != kNil && !(ring_[at].peer == peer && ring_[at].transfer == transfer)) at = next_[at];
    if (at == kNil) return;
    unlink(at);
    ring_[at].transfer.generation = generation;
    std::uint32_t& chain = chain_of(peer, ring_[at].transfer);
    next_[at] = chain;
    chain = at;
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
  std::uint32_t& chain_of(std::uint16_t peer, const wire::TransferId& transfer) {
    return chains_[hash_transfer(peer, transfer) & (chains_.size() - 1)];
  }
  void unlink(std::uint32_t entry) {
    std::uint32_t* link = &chain_of(ring_[entry].peer, ring_[entry].transfer);
    while (*link != entry) link = &next_[*link];
    *link = next_[entry];
  }

  std::vector<FinishedReceive> ring_;
  std::vector<std::uint32_t> chains_;  // heads
  std::vector<std::uint32_t> next_;
  std::uint32_t newest_ = 0;  // where the next outcome goes
};

}  // namespace mlt::core
