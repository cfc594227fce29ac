// How the last receives ended, for senders whose STOP was lost. Fixed in size, in sets of a few places: the newest
// entry replaces the oldest of its set, whose sender is then told "finished, outcome forgotten". (With one place per
// set two transfers out of forty met in a log of sixty-four, and a send that had arrived was reported as cancelled.)
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
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
  explicit FinishedLog(std::uint32_t entries) : entries_(std::bit_ceil(std::max<std::uint64_t>(entries, kPlaces))) {}

  void put(const FinishedReceive& finished) {
    const std::span<FinishedReceive> set = set_of(finished.peer, finished.transfer);
    FinishedReceive* place = &set[0];
    for (FinishedReceive& entry : set) {
      if (!entry.used || (place->used && entry.finished_ns < place->finished_ns)) place = &entry;
    }
    *place = finished;
  }

  const FinishedReceive* find(std::uint16_t peer, const wire::TransferId& transfer) {
    for (const FinishedReceive& entry : set_of(peer, transfer)) {
      if (entry.used && entry.peer == peer && entry.transfer == transfer) return &entry;
    }
    return nullptr;
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
  static constexpr std::size_t kPlaces = 8;  // per set

  std::span<FinishedReceive> set_of(std::uint16_t peer, const wire::TransferId& transfer) {
    const std::uint64_t hash = hash_tag(peer, transfer.tag) + transfer.generation;
    return std::span(entries_).subspan((hash & (entries_.size() / kPlaces - 1)) * kPlaces, kPlaces);
  }

  std::vector<FinishedReceive> entries_;
};

}  // namespace mlt::core
