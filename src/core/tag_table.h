// (peer, tag) -> generation counters and the operations under way. Open addressing, fixed size, nothing is evicted:
// forgetting a tag's generation would let a stale packet in.
//
// The k-th send of a tag to a peer meets the k-th receive of that tag from it: both sides count, so no rendezvous round
// trip is needed, and a packet of an earlier use is recognised as stale.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "wire/control.h"

namespace mlt::core {

inline constexpr std::uint32_t kNil = ~std::uint32_t{0};

struct TagEntry {
  std::uint64_t tag = 0;
  std::uint16_t peer = 0;
  bool used = false;
  std::uint32_t send_generation = 0;     // of the next send to be posted
  std::uint32_t receive_generation = 0;  // of the next receive to be posted
  std::uint32_t send_head = kNil;        // slots under way, newest first
  std::uint32_t receive_head = kNil;
  // How the newest receive of this tag ended, for a sender whose STOP was lost. Never evicted, unlike FinishedLog.
  bool has_outcome = false;
  std::uint32_t outcome_generation = 0;
  wire::StopStatus outcome_status = wire::StopStatus::kFinishedBefore;
  wire::ElementType outcome_element = wire::ElementType::kUint8;
  std::uint32_t outcome_missing_bytes = 0;
  std::uint32_t outcome_total_bytes = 0;
};

// Mixes all bits of a tag and a peer (SplitMix64's finaliser).
constexpr std::uint64_t hash_tag(std::uint16_t peer, std::uint64_t tag) {
  std::uint64_t z = tag + 0x9E3779B97F4A7C15ULL * (std::uint64_t{peer} + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

class TagTable {
 public:
  // Room for `tags` entries at a load of at most one half.
  explicit TagTable(std::uint32_t tags) : limit_(tags), entries_(std::bit_ceil(std::uint64_t{tags} * 2)) {}

  TagEntry* find(std::uint16_t peer, std::uint64_t tag) {
    TagEntry& entry = slot(peer, tag);
    return entry.used ? &entry : nullptr;
  }

  // nullptr when the table is full.
  TagEntry* find_or_insert(std::uint16_t peer, std::uint64_t tag) {
    TagEntry& entry = slot(peer, tag);
    if (entry.used) return &entry;
    // PROTOCOL 5.2.4: A generation MUST NOT be forgotten while the connection lasts ...
    if (used_ == limit_) return nullptr;
    ++used_;
    entry = TagEntry{};
    entry.tag = tag;
    entry.peer = peer;
    entry.used = true;
    return &entry;
  }

  // A peer came back as a new incarnation: it counts from zero again.
  void restart_generations(std::uint16_t peer) {
    for (TagEntry& entry : entries_) {
      if (entry.used && entry.peer == peer) {
        entry.send_generation = entry.receive_generation = 0;
        entry.has_outcome = false;
      }
    }
  }

  std::uint32_t used() const { return used_; }

 private:
  TagEntry& slot(std::uint16_t peer, std::uint64_t tag) {
    const std::size_t mask = entries_.size() - 1;
    std::size_t i = hash_tag(peer, tag) & mask;
    while (entries_[i].used && (entries_[i].tag != tag || entries_[i].peer != peer)) i = (i + 1) & mask;
    return entries_[i];
  }

  std::uint32_t limit_;
  std::uint32_t used_ = 0;
  std::vector<TagEntry> entries_;
};

}  // namespace mlt::core
