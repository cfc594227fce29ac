// How the last receives ended, for senders whose STOP was lost. Direct-mapped and fixed in size: a newer entry replaces
// an older one of the same place, whose sender is then told "finished, outcome forgotten".
#pragma once

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

class FinishedLog {
 public:
  explicit FinishedLog(std::uint32_t entries) : entries_(std::bit_ceil(std::uint64_t{entries})) {}

  void put(const FinishedReceive& finished) { at(finished.peer, finished.transfer) = finished; }

  const FinishedReceive* find(std::uint16_t peer, const wire::TransferId& transfer) {
    const FinishedReceive& entry = at(peer, transfer);
    return entry.used && entry.peer == peer && entry.transfer == transfer ? &entry : nullptr;
  }

  // Calls `visit` for every entry that ended at `since_ns` or later.
  template <typename Visit>
  void each_since(base::TimeNs since_ns, Visit&& visit) const {
    for (const FinishedReceive& entry : entries_) {
      if (entry.used && entry.finished_ns >= since_ns) visit(entry);
    }
  }

  void forget(std::uint16_t peer) {
    for (FinishedReceive& entry : entries_) {
      if (entry.peer == peer) entry.used = false;
    }
  }

 private:
  FinishedReceive& at(std::uint16_t peer, const wire::TransferId& transfer) {
    const std::uint64_t hash = hash_tag(peer, transfer.tag) + transfer.generation;
    return entries_[hash & (entries_.size() - 1)];
  }

  std::vector<FinishedReceive> entries_;
};

}  // namespace mlt::core
