#include "core/receive_tags.h"

#include "base/check.h"
#include "core/path_spray.h"

namespace mlt::core {

ReceiveTags::ReceiveTags(const EndpointConfig& config)
    : unknown_tags_(config.unknown_tags),
      table_(config.own_tags_per_peer(), config.common_tags(), config.peers * config.unknown_tags, config.peers),
      peers_(config.peers) {}

ReceiveTag* ReceiveTags::for_post(std::uint16_t peer, std::uint64_t tag) {
  ReceiveTag* entry = table_.find(peer, tag);
  if (entry != nullptr && !entry->by_retirement) return entry;
  // Entries that a peer keeps do not count, or a full table here would make its transfers stale.
  if (!table_.has_space(peer)) return nullptr;
  if (entry != nullptr) {
    unkeep(*entry);
  } else {
    entry = table_.find_or_insert(peer, tag);
    MLT_CHECK(entry != nullptr);
    // PROTOCOL 5.2.5: Both sides MUST count a tag that they do not know from the floor on, a generation that the sender
    //     sets for all of its tags to a peer.
    entry->generation = entry->unseen = peers_[peer].floor;
  }
  table_.count(*entry);
  return entry;
}

bool ReceiveTags::is_far_ahead(const ReceiveTag& entry) {
  // PROTOCOL 5.2.6: A receiver MUST NOT number as many as 2^18 receives of a tag of whose sends nothing has come, so
  //     that no number that it has given lies beyond the new floor.
  return entry.generation - entry.unseen >= kGenerationGap - 1;
}

void ReceiveTags::note_seen(ReceiveTag& entry, std::uint32_t generation) {
  if (!is_after(entry.unseen, generation) && is_after(entry.generation, generation)) entry.unseen = generation + 1;
}

void ReceiveTags::note_seen(std::uint16_t peer, const wire::TransferId& transfer) {
  if (ReceiveTag* entry = table_.find(peer, transfer.tag)) note_seen(*entry, transfer.generation);
}

bool ReceiveTags::is_over(std::uint16_t peer, const wire::TransferId& transfer) {
  ReceiveTag* entry = table_.find(peer, transfer.tag);
  // PROTOCOL 5.2.3: A receiver MUST treat a transfer that is not in progress as ended if its generation is before that
  //     of the tag's next receive, or before the floor if the tag is not known.
  if (entry == nullptr) return is_after(peers_[peer].floor, transfer.generation);
  if (!is_after(entry->generation, transfer.generation)) return false;
  note_seen(*entry, transfer.generation);
  return true;
}

void ReceiveTags::keep_outcome(const FinishedReceive& finished) {
  // PROTOCOL 7.7.6: A receiver MUST keep the outcome of the newest receive of a tag as long as the tag is known; that
  //     of older ones while the finished log has space.
  ReceiveTag* entry = table_.find(finished.peer, finished.transfer.tag);
  if (entry == nullptr) return;
  entry->has_outcome = true;
  entry->outcome_generation = finished.transfer.generation;
  entry->outcome_status = finished.status;
  entry->outcome_element = finished.element;
  entry->outcome_missing_bytes = finished.missing_bytes;
  entry->outcome_total_bytes = finished.total_bytes;
}

std::optional<FinishedReceive> ReceiveTags::outcome_of(std::uint16_t peer, const wire::TransferId& transfer) {
  const ReceiveTag* entry = table_.find(peer, transfer.tag);
  if (entry == nullptr || !entry->has_outcome || entry->outcome_generation != transfer.generation) return std::nullopt;
  FinishedReceive finished;
  finished.used = true;
  finished.peer = peer;
  finished.transfer = transfer;
  finished.status = entry->outcome_status;
  finished.element = entry->outcome_element;
  finished.missing_bytes = entry->outcome_missing_bytes;
  finished.total_bytes = entry->outcome_total_bytes;
  return finished;
}

// If no receive of the tag was posted here yet, an entry must record that its packets are not stale.
void ReceiveTags::keep(std::uint16_t from, std::uint64_t tag) {
  PerPeer& peer = peers_[from];
  ReceiveTag* entry = table_.find(from, tag);
  if (entry == nullptr) {
    // PROTOCOL 5.2.8: A receiver MAY ignore what is beyond the 2,048.
    if (peer.kept >= unknown_tags_) return;
    entry = table_.find_or_insert(from, tag);
    if (entry == nullptr) return;
    entry->generation = entry->unseen = peer.floor;
    entry->by_retirement = true;
    ++peer.kept;
  }
  entry->kept = true;
}

void ReceiveTags::unkeep(ReceiveTag& entry) {
  if (!std::exchange(entry.by_retirement, false)) return;
  --peers_[entry.peer].kept;
}

bool ReceiveTags::on_retire(std::uint16_t from, const wire::Retire& retire, Counters& counters) {
  // PROTOCOL 5.2.10: A receiver MUST ignore a RETIRE whose floor is not after its own (stale_control).
  if (!is_after(retire.floor, peers_[from].floor)) {
    counters.add(Counter::k_stale_control);
    return false;
  }
  for (std::uint32_t i = 0; i < retire.kept_count; ++i) keep(from, retire.kept[i]);
  return (retire.prefix.flags & MLT_RETIRE_FLAG_LAST) != 0;
}

void ReceiveTags::restart(ReceiveTag& entry, std::uint32_t floor) {
  const std::uint32_t first = entry.unseen;
  const std::uint32_t count = entry.generation - first;
  entry.has_outcome = entry.has_outcome && !is_after(first, entry.outcome_generation);
  entry.outcome_generation += floor - first;
  entry.unseen = floor;
  entry.generation = floor + count;
}

void ReceiveTags::reset(std::uint16_t peer) {
  table_.forget(peer);
  peers_[peer] = PerPeer{};
}

}  // namespace mlt::core
