// (peer, tag) -> state of the tag: how many of its sends, or receives, were posted. One table per direction. Chained
// hashing over a fixed number of entries; memory is touched as it is used.
//
// The k-th send of a tag to a peer matches the k-th receive of that tag from it. Both ranks count, so no rendezvous
// round trip is needed, and packets of an earlier use are recognised as stale. Unused tags are forgotten when the
// sender retires them (send_tags.h, receive_tags.h).
//
// Each peer has `own` entries that no other peer can take, and all share `common` ones. A rank whose tags stay in use
// because it posts no receives does not block posts to others. `spare` entries are for uncounted tags.
#pragma once

#include <cstdint>

#include "base/lazy_array.h"
#include "base/packed_rows.h"
#include "core/slot_index.h"
#include "wire/control.h"

namespace mlt::core {

// Gap between the generations of forgotten tags and those that follow: more than the max number of receives posted
// ahead of their sends.
inline constexpr std::uint32_t kGenerationGap = 1U << 18;
// Generations this far apart may soon be compared wrongly. No floor advances by more than this plus a gap at once.
inline constexpr std::uint32_t kFarGenerations = 1U << 29;
constexpr bool is_far(std::uint32_t a, std::uint32_t b) { return a - b >= kFarGenerations && b - a >= kFarGenerations; }

// Max tags in a list, 2 MiB: a longer one would fill the control connection's 4 MiB.
inline constexpr std::uint32_t kMaxListedTags = 1U << 18;

struct TagKey {
  std::uint64_t tag = 0;
  std::uint16_t peer = 0;
  std::uint32_t next_of_peer = kNil;
  std::uint32_t previous_of_peer = kNil;
  bool counted = false;  // counts against the table's limits
};

struct SendTag : TagKey {
  std::uint32_t base = 0;         // generation of the first send since the tag was last forgotten
  std::uint32_t generation = 0;   // of the next send to be posted
  std::uint32_t in_progress = 0;  // sends that have not ended, or whose ABORT is not acknowledged
  bool known_there = false;       // the receiver has posted a receive of it since
  bool kept = false;              // listed as kept by the retirement that is being sent
  bool stays = false;             // its generations are far from the floor: never forgotten
  // The newest failed send whose receive is not known to have ended: its tag stays in use until then.
  bool has_unmatched = false;
  std::uint32_t unmatched_generation = 0;

  bool in_use() const { return in_progress > 0 || has_unmatched; }
  bool is_held() const { return in_use() || stays; }
  bool is_unknown() const { return in_use() && !known_there; }
};

struct ReceiveTag : TagKey {
  std::uint32_t generation = 0;  // of the next receive to be posted
  std::uint32_t unseen = 0;      // of the first receive, posted or not, of whose send nothing has arrived
  bool kept = false;             // listed as kept by the retirement that is being received
  bool by_retirement = false;    // created by a retirement; no receive was posted yet
  // Outcome of the newest receive of this tag, for a sender whose STOP was lost. Never evicted, unlike in FinishedLog.
  bool has_outcome = false;
  wire::StopStatus outcome_status = wire::StopStatus::kFinishedBefore;
  wire::ElementType outcome_element = wire::ElementType::kUint8;
  std::uint32_t outcome_generation = 0;
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
constexpr std::uint64_t hash_transfer(std::uint16_t peer, const wire::TransferId& transfer) {
  return hash_tag(peer, transfer.tag) + transfer.generation;
}

// `Entry`: SendTag or ReceiveTag. Entries do not move until they are erased.
template <typename Entry>
class TagTable {
 public:
  TagTable(std::uint32_t own, std::uint32_t common, std::uint32_t spare, std::uint16_t peers)
      : own_(own),
        common_(common),
        entries_(own * peers + common + spare),
        index_(own * peers + common + spare),
        peers_(peers) {}

  Entry* find(std::uint16_t peer, std::uint64_t tag) {
    for (std::uint32_t at = index_.first(hash_tag(peer, tag)); at != kNil; at = index_.next(at)) {
      if (entries_[at].tag == tag && entries_[at].peer == peer) return &entries_[at];
    }
    return nullptr;
  }

  // Whether one more tag of the peer may be counted.
  bool has_space(std::uint16_t peer) const { return peers_[peer].counted < own_ || common_used_ < common_; }
  void count(Entry& entry) {
    entry.counted = true;
    if (peers_[entry.peer].counted++ >= own_) ++common_used_;
  }

  // nullptr if the table is full. The entry is not counted yet.
  Entry* find_or_insert(std::uint16_t peer, std::uint64_t tag) {
    if (Entry* entry = find(peer, tag)) return entry;
    if (used_ == entries_.capacity()) return nullptr;
    const std::uint32_t at = free_ == kNil ? static_cast<std::uint32_t>(entries_.size()) : free_;
    Entry& entry = free_ == kNil ? entries_.grow() : entries_[at];
    if (free_ == at) free_ = entry.next_of_peer;
    entry = Entry{};
    entry.tag = tag;
    entry.peer = peer;
    index_.insert(hash_tag(peer, tag), at);
    entry.next_of_peer = peers_[peer].first;
    if (entry.next_of_peer != kNil) entries_[entry.next_of_peer].previous_of_peer = at;
    peers_[peer].first = at;
    ++used_;
    return &entry;
  }

  void erase(Entry& entry) {
    const auto at = static_cast<std::uint32_t>(&entry - entries_.data());
    index_.erase(hash_tag(entry.peer, entry.tag), at);
    PerPeer& peer = peers_[entry.peer];
    if (entry.counted && --peer.counted >= own_) --common_used_;
    if (entry.next_of_peer != kNil) entries_[entry.next_of_peer].previous_of_peer = entry.previous_of_peer;
    (entry.previous_of_peer == kNil ? peer.first : entries_[entry.previous_of_peer].next_of_peer) = entry.next_of_peer;
    entry.next_of_peer = free_;
    free_ = at;
    --used_;
  }

  // Calls `visit(entry)` for every tag of the peer; `visit` may erase that entry.
  template <typename Visit>
  void each_of(std::uint16_t peer, Visit&& visit) {
    for (std::uint32_t at = peers_[peer].first; at != kNil;) {
      Entry& entry = entries_[at];
      at = entry.next_of_peer;
      visit(entry);
    }
  }

  // Forgets all tags of a peer that returned as a new incarnation: its counts restart at zero.
  void forget(std::uint16_t peer) {
    each_of(peer, [this](Entry& entry) { erase(entry); });
  }

  // For walking a peer's tags in steps; entries inserted meanwhile are not visited.
  std::uint32_t first_of(std::uint16_t peer) const { return peers_[peer].first; }
  Entry& at(std::uint32_t place) { return entries_[place]; }

  std::uint32_t used() const { return used_; }
  std::uint32_t limit() const { return static_cast<std::uint32_t>(entries_.capacity()); }

 private:
  struct PerPeer {
    std::uint32_t first = kNil;
    std::uint32_t counted = 0;
  };

  std::uint32_t own_;
  std::uint32_t common_;
  std::uint32_t common_used_ = 0;
  base::LazyArray<Entry> entries_;
  SlotIndex index_;
  base::PackedArray<PerPeer> peers_;
  std::uint32_t free_ = kNil;  // linked by `next_of_peer`
  std::uint32_t used_ = 0;
};

}  // namespace mlt::core
