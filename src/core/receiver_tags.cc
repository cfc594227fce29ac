// The receiver's state of tags, and how it forgets tags when their sender does.
//
// A sender that forgets tags lists those that it keeps, and the generation at which the others restart (the floor). All
// transfers of the forgotten tags have ended at both ranks: later packets of them are stale by their generation. Posted
// receives that no send has matched are renumbered from the floor on, in order.
#include <utility>

#include "core/receiver.h"

namespace mlt::core {

ReceiveTag* Receiver::tag_for_post(std::uint16_t peer, std::uint64_t tag) {
  ReceiveTag* entry = shared_.receive_tags.find(peer, tag);
  if (entry != nullptr && !entry->by_retirement) return entry;
  // Entries that a peer keeps do not count, or a full table here would make its transfers stale.
  if (!shared_.receive_tags.has_space(peer)) return nullptr;
  if (entry != nullptr) {
    unkeep_tag(*entry);
  } else {
    entry = shared_.receive_tags.find_or_insert(peer, tag);
    MLT_CHECK(entry != nullptr);
    // PROTOCOL 5.2.5: Both sides MUST count a tag that they do not know from the floor on, a generation that the sender
    //     sets for all of its tags to a peer.
    entry->generation = entry->unseen = shared_.peers[peer].receive_floor;
  }
  shared_.receive_tags.count(*entry);
  return entry;
}

void Receiver::note_seen(ReceiveTag& entry, std::uint32_t generation) {
  if (!is_after(entry.unseen, generation) && is_after(entry.generation, generation)) entry.unseen = generation + 1;
}

void Receiver::note_seen(ReceiveState& state) {
  if (state.seen) return;
  state.seen = true;
  if (ReceiveTag* entry = shared_.receive_tags.find(state.request.peer, state.request.tag)) {
    note_seen(*entry, state.generation);
  }
}

// Records one of the kept tags. If no receive of the tag was posted here yet, an entry must record that its packets are
// not stale.
void Receiver::keep_tag(std::uint16_t from, std::uint64_t tag) {
  Peer& peer = shared_.peers[from];
  ReceiveTag* entry = shared_.receive_tags.find(from, tag);
  if (entry == nullptr) {
    // PROTOCOL 5.2.8: A receiver MAY ignore what is beyond the 2,048.
    if (peer.kept_tags >= shared_.config.unknown_tags) return;
    entry = shared_.receive_tags.find_or_insert(from, tag);
    if (entry == nullptr) return;
    entry->generation = entry->unseen = peer.receive_floor;
    entry->by_retirement = true;
    ++peer.kept_tags;
  }
  entry->kept = true;
}

void Receiver::unkeep_tag(ReceiveTag& entry) {
  if (!std::exchange(entry.by_retirement, false)) return;
  --shared_.peers[entry.peer].kept_tags;
}

void Receiver::on_retire(TimeNs now, std::uint16_t from, const wire::Retire& retire) {
  shared_.counters.add(Counter::k_retirements_received);
  Peer& peer = shared_.peers[from];
  // PROTOCOL 5.2.10: A receiver MUST ignore a RETIRE whose floor is not after its own (stale_control).
  if (!is_after(retire.floor, peer.receive_floor)) return shared_.counters.add(Counter::k_stale_control);
  for (std::uint32_t i = 0; i < retire.kept_count; ++i) keep_tag(from, retire.kept[i]);
  if ((retire.prefix.flags & MLT_RETIRE_FLAG_LAST) == 0) return;
  // PROTOCOL 5.2.7: On the last RETIRE of a list the receiver MUST forget every tag of the sender that is not listed.
  peer.receive_floor = retire.floor;
  shared_.receive_tags.each_of(from, [&](ReceiveTag& entry) {
    if (std::exchange(entry.kept, false)) return;
    if (entry.unseen != entry.generation) return renumber(now, entry, retire.floor);
    unkeep_tag(entry);
    shared_.receive_tags.erase(entry);
  });
}

// Renumbers the receives that no send has matched, waiting or ended, from the floor on.
void Receiver::renumber(TimeNs now, ReceiveTag& entry, std::uint32_t floor) {
  const std::uint32_t first = entry.unseen;
  const std::uint32_t count = entry.generation - first;
  for (std::uint32_t i = 0; i < count; ++i) {
    ReceiveState* state = find(entry.peer, {entry.tag, first + i});
    if (state == nullptr) {  // it was cancelled or timed out
      finished_.renumber(entry.peer, {entry.tag, first + i}, floor + i);
      continue;
    }
    by_transfer_.erase(hash_transfer(entry.peer, state->transfer()), slot_of(*state));
    state->generation = floor + i;
    by_transfer_.insert(hash_transfer(entry.peer, state->transfer()), slot_of(*state));
  }
  entry.has_outcome = entry.has_outcome && !is_after(first, entry.outcome_generation);
  entry.outcome_generation += floor - first;
  entry.unseen = floor;
  entry.generation = floor + count;
  for (std::uint32_t i = 0; i < count; ++i) {
    const wire::TransferId transfer{entry.tag, floor + i};
    if (ReceiveState* state = find(entry.peer, transfer)) {
      take_early(now, *state);
    } else if (EarlyTransfer* early = early_.find(entry.peer, transfer)) {
      early_.release(*early, [](const wire::DataHeader&, std::span<const std::byte>) {});
      note_seen(entry, transfer.generation);
      reply_finished(entry.peer, transfer, 0, true);
    }
  }
}

}  // namespace mlt::core
