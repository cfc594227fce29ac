// The sender's state of tags, and how it forgets those that are not in use.
//
// A tag is in use while one of its sends has not ended, or while a failed one has not matched its receive. For other
// tags, both ranks know that every transfer has ended. The sender forgets many of them at once. It then lists the tags
// that it keeps, and sends the generation at which unknown tags start from now on (the floor). The floor is beyond
// every generation of the forgotten tags, so that no old packet passes as new. It is also beyond the generations of all
// receives that the peer may have posted ahead. A tag whose generations are too far from the floor to be compared is
// never forgotten.
#include "core/sender.h"

namespace mlt::core {

SendTag* Sender::tag_for_post(std::uint16_t rank, std::uint64_t tag) {
  if (SendTag* entry = shared_.send_tags.find(rank, tag)) return entry;
  Peer& peer = shared_.peers[rank];
  // Before the new entry is inserted: only tags that already had a generation are kept or forgotten.
  ++peer.new_tags;
  retire_if_due(rank);
  // PROTOCOL 17.1.2: An endpoint MUST NOT refuse a post for want of a tag while less than the peer's share of half of
  //     the tags is in use with it, however many are in use with others.
  if (!shared_.send_tags.has_space(rank)) {
    for (std::uint16_t other = 0; other < shared_.config.peers; ++other) retire_tags(other);
    if (!shared_.send_tags.has_space(rank)) return nullptr;
  }
  SendTag* entry = shared_.send_tags.find_or_insert(rank, tag);
  MLT_CHECK(entry != nullptr);
  shared_.send_tags.count(*entry);
  ++peer.tags;
  // PROTOCOL 5.2.5: Both sides MUST count a tag that they do not know from the floor on, a generation that the sender
  //     sets for all of its tags to a peer.
  entry->base = entry->generation = peer.send_floor;
  return entry;
}

template <typename Change>
void Sender::change_tag(SendTag& entry, Change&& change) {
  Peer& peer = shared_.peers[entry.peer];
  peer.tags_held -= entry.is_held() ? 1U : 0U;
  peer.tags_unknown -= entry.is_unknown() ? 1U : 0U;
  change();
  peer.tags_held += entry.is_held() ? 1U : 0U;
  peer.tags_unknown += entry.is_unknown() ? 1U : 0U;
}

// Generation of a send that is posted.
std::uint32_t Sender::take_generation(SendTag& entry) {
  const std::uint32_t generation = entry.generation;
  change_tag(entry, [&] {
    ++entry.generation;
    ++entry.in_progress;
    // PROTOCOL 5.2.9: A sender MUST NOT forget a tag whose next generation is 2^29 or more from the floor, before or
    //     after it, since the tag was last new.
    entry.stays = entry.stays || is_far(entry.generation, shared_.peers[entry.peer].send_floor);
  });
  if (is_far(entry.generation, entry.base)) entry.base = entry.generation - kFarGenerations;
  return generation;
}

void Sender::leave_tag(const SendState& state, bool is_matched) {
  SendTag* entry = shared_.send_tags.find(state.request.peer, state.request.tag);
  MLT_CHECK(entry != nullptr && entry->in_progress > 0);
  change_tag(*entry, [&] {
    --entry->in_progress;
    if (is_matched) return;
    if (entry->has_unmatched && is_after(entry->unmatched_generation, state.generation)) return;
    entry->has_unmatched = true;
    entry->unmatched_generation = state.generation;
  });
  retire_if_due(state.request.peer);
}

void Sender::note_posted(std::uint16_t rank, const wire::TransferId& transfer) {
  SendTag* entry = shared_.send_tags.find(rank, transfer.tag);
  // Ignore transfers from before the tag was last forgotten.
  if (entry == nullptr || is_after(entry->base, transfer.generation)) return;
  if (!is_after(entry->generation, transfer.generation)) return;
  change_tag(*entry, [&] {
    entry->known_there = true;
    // Receives of a tag are posted in order: earlier ones have matched their sends.
    if (!is_after(entry->unmatched_generation, transfer.generation)) entry->has_unmatched = false;
  });
  retire_if_due(rank);
}

// Retires tags after many new ones, if enough can be forgotten to justify the list of the others.
void Sender::retire_if_due(std::uint16_t rank) {
  const Peer& peer = shared_.peers[rank];
  if (peer.new_tags < shared_.config.retire_after_per_peer()) return;
  if (8 * std::uint64_t{peer.tags - peer.tags_held} >= peer.tags_held) retire_tags(rank);
}

// Forgets the tags not in use, if retirement is possible now.
void Sender::retire_tags(std::uint16_t rank) {
  Peer& peer = shared_.peers[rank];
  if (!peer.up || shared_.config.retire_after == 0 || retirements_due_.contains(rank)) return;
  // PROTOCOL 5.2.8: A sender MUST NOT list more than 2,048 tags whose receives it does not know to be posted, nor more
  //     than 2^18 tags in all; it forgets later instead.
  if (peer.tags_unknown > shared_.config.unknown_tags || peer.tags_held > kMaxListedTags) return;
  if (peer.tags == peer.tags_held) return;
  std::uint32_t floor = peer.send_floor;
  shared_.send_tags.each_of(rank, [&](SendTag& entry) {
    // PROTOCOL 5.2.4: A sender MUST NOT forget a tag that is in use.
    entry.kept = entry.is_held();
    if (entry.kept) return;
    if (is_after(entry.generation, floor)) floor = entry.generation;
    shared_.send_tags.erase(entry);
  });
  // PROTOCOL 5.2.6: The floor is 2^18 more than the largest of the floor before and the next generations of the tags
  //     that are forgotten; the tags that are kept are listed.
  peer.send_floor = floor + kGenerationGap;
  // PROTOCOL 5.2.9: A sender MUST NOT forget a tag whose next generation is 2^29 or more from the floor, before or
  //     after it, since the tag was last new.
  shared_.send_tags.each_of(
      rank, [&](SendTag& entry) { entry.stays = entry.stays || is_far(entry.generation, peer.send_floor); });
  peer.tags = peer.tags_held;
  peer.new_tags = 0;
  peer.retire_at = shared_.send_tags.first_of(rank);
  retirements_due_.set(rank);
}

// Builds one frame of the list of kept tags.
bool Sender::fill_retirement(ControlOutput& output) {
  if (retirements_due_.empty()) return false;
  const auto rank = static_cast<std::uint16_t>(retirements_due_.first());
  Peer& peer = shared_.peers[rank];
  // PROTOCOL 4.10.2: It says that the sender has forgotten its tags to this receiver but for those listed (5.2.6).
  wire::Retire retire;
  retire.prefix.type = wire::PacketType::kRetire;
  retire.prefix.cookie = peer.remote_cookie;
  retire.floor = peer.send_floor;
  while (peer.retire_at != kNil && retire.kept_count < MLT_MAX_RETIRE_TAGS) {
    SendTag& entry = shared_.send_tags.at(peer.retire_at);
    peer.retire_at = entry.next_of_peer;
    if (std::exchange(entry.kept, false)) retire.kept[retire.kept_count++] = entry.tag;
  }
  if (peer.retire_at == kNil) {
    retire.prefix.flags = MLT_RETIRE_FLAG_LAST;
    retirements_due_.clear(rank);
  }
  output.peer = rank;
  output.size = wire::encode_retire(retire, output.bytes);
  shared_.counters.add(Counter::k_retirements_sent);
  return true;
}

}  // namespace mlt::core
