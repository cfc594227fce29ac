#include "core/send_tags.h"

#include <utility>

#include "base/check.h"

namespace mlt::core {

SendTags::SendTags(Shared& shared)
    : shared_(shared),
      table_(shared.config.own_tags_per_peer(), shared.config.common_tags(), 0, shared.config.peers),
      peers_(shared.config.peers),
      retirements_due_(shared.config.peers) {}

SendTag* SendTags::for_post(std::uint16_t rank, std::uint64_t tag) {
  if (SendTag* entry = table_.find(rank, tag)) return entry;
  PerPeer& peer = peers_[rank];
  // Before the new entry is inserted: only tags that already had a generation are kept or forgotten.
  ++peer.new_tags;
  retire_if_due(rank);
  // PROTOCOL 17.1.2: An endpoint MUST NOT refuse a post for lack of a tag while less than the peer's share of half of
  //     the tags is in use with it, however many are in use with others.
  if (!table_.has_space(rank)) {
    for (std::size_t place = 1; place <= peers_.used(); ++place) {
      retire(static_cast<std::uint16_t>(peers_.item_at(place)));
    }
    if (!table_.has_space(rank)) return nullptr;
  }
  SendTag* entry = table_.find_or_insert(rank, tag);
  MLT_CHECK(entry != nullptr);
  table_.count(*entry);
  ++peer.count;
  // PROTOCOL 5.2.5: Both sides MUST count a tag that they do not know from the floor on, a generation that the sender
  //     sets for all of its tags to a peer.
  entry->base = entry->generation = peer.floor;
  return entry;
}

template <typename Change>
void SendTags::change(SendTag& entry, Change&& change) {
  PerPeer& peer = peers_[entry.peer];
  peer.held -= entry.is_held() ? 1U : 0U;
  peer.unknown -= entry.is_unknown() ? 1U : 0U;
  change();
  peer.held += entry.is_held() ? 1U : 0U;
  peer.unknown += entry.is_unknown() ? 1U : 0U;
}

std::uint32_t SendTags::take_generation(SendTag& entry) {
  const std::uint32_t generation = entry.generation;
  change(entry, [&] {
    ++entry.generation;
    ++entry.in_progress;
    // PROTOCOL 5.2.9: A sender MUST NOT forget a tag whose next generation is 2^29 or more from the floor, before or
    //     after it, since the tag was last new.
    entry.stays = entry.stays || is_far(entry.generation, peers_[entry.peer].floor);
  });
  if (is_far(entry.generation, entry.base)) entry.base = entry.generation - kFarGenerations;
  return generation;
}

void SendTags::leave(std::uint16_t rank, const wire::TransferId& transfer, bool is_matched) {
  SendTag* entry = table_.find(rank, transfer.tag);
  MLT_CHECK(entry != nullptr && entry->in_progress > 0);
  change(*entry, [&] {
    --entry->in_progress;
    if (is_matched) return;
    if (entry->has_unmatched && is_after(entry->unmatched_generation, transfer.generation)) return;
    entry->has_unmatched = true;
    entry->unmatched_generation = transfer.generation;
  });
  retire_if_due(rank);
}

void SendTags::note_posted(std::uint16_t rank, const wire::TransferId& transfer) {
  SendTag* entry = table_.find(rank, transfer.tag);
  // Ignore transfers from before the tag was last forgotten.
  if (entry == nullptr || is_after(entry->base, transfer.generation)) return;
  if (!is_after(entry->generation, transfer.generation)) return;
  change(*entry, [&] {
    entry->known_there = true;
    // Receives of a tag are posted in order: earlier ones have matched their sends.
    if (!is_after(entry->unmatched_generation, transfer.generation)) entry->has_unmatched = false;
  });
  retire_if_due(rank);
}

// Retires tags after many new ones, if enough can be forgotten to justify the list of the others.
void SendTags::retire_if_due(std::uint16_t rank) {
  const PerPeer& peer = peers_[rank];
  if (peer.new_tags < shared_.config.retire_after_per_peer()) return;
  if (8 * std::uint64_t{peer.count - peer.held} >= peer.held) retire(rank);
}

// Forgets the tags not in use, if retirement is possible now.
void SendTags::retire(std::uint16_t rank) {
  PerPeer& peer = peers_[rank];
  if (!shared_.peers[rank].up || shared_.config.retire_after == 0 || retirements_due_.contains(rank)) return;
  // PROTOCOL 5.2.8: A sender MUST NOT list more than 2,048 tags whose receives it does not know to be posted, nor more
  //     than 2^18 tags in all; it forgets later instead.
  if (peer.unknown > shared_.config.unknown_tags || peer.held > kMaxListedTags) return;
  if (peer.count == peer.held) return;
  std::uint32_t floor = peer.floor;
  table_.each_of(rank, [&](SendTag& entry) {
    // PROTOCOL 5.2.4: A sender MUST NOT forget a tag that is in use.
    entry.kept = entry.is_held();
    if (entry.kept) return;
    if (is_after(entry.generation, floor)) floor = entry.generation;
    table_.erase(entry);
  });
  // PROTOCOL 5.2.6: The floor is 2^18 more than the largest of the floor before and the next generations of the tags
  //     that are forgotten; the tags that are kept are listed.
  peer.floor = floor + kGenerationGap;
  // PROTOCOL 5.2.9: A sender MUST NOT forget a tag whose next generation is 2^29 or more from the floor, before or
  //     after it, since the tag was last new.
  table_.each_of(rank, [&](SendTag& entry) { entry.stays = entry.stays || is_far(entry.generation, peer.floor); });
  peer.count = peer.held;
  peer.new_tags = 0;
  peer.retire_at = table_.first_of(rank);
  retirements_due_.set(rank);
}

bool SendTags::fill_retirement(ControlOutput& output) {
  if (retirements_due_.empty()) return false;
  const auto rank = static_cast<std::uint16_t>(retirements_due_.first());
  PerPeer& peer = peers_[rank];
  // PROTOCOL 4.10.2: It says that the sender has forgotten its tags to this receiver except those listed (5.2.6).
  wire::Retire retire;
  retire.prefix.type = wire::PacketType::kRetire;
  retire.prefix.cookie = shared_.peers[rank].remote_cookie;
  retire.floor = peer.floor;
  while (peer.retire_at != kNil && retire.kept_count < MLT_MAX_RETIRE_TAGS) {
    SendTag& entry = table_.at(peer.retire_at);
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

void SendTags::reset(std::uint16_t rank) {
  retirements_due_.clear(rank);
  table_.forget(rank);
  peers_[rank] = PerPeer{};
}

}  // namespace mlt::core
