// The sender's state of tags, and how it forgets those that are not in use.
//
// A tag is in use while one of its sends has not ended, or while a failed one has not matched its receive. For other
// tags, both ranks know that every transfer has ended. The sender forgets many of them at once. It then lists the tags
// that it keeps, and sends the generation at which unknown tags start from now on (the floor). The floor is beyond
// every generation of the forgotten tags, so that no old packet passes as new. It is also beyond the generations of all
// receives that the peer may have posted ahead. A tag whose generations are too far from the floor to be compared is
// never forgotten.
//
// Invariants, per peer: `held` counts the tags with is_held() and `unknown` those with is_unknown(), both of `count`
// remembered ones; the floor only rises while the connection lasts. Owned by the endpoint's Sender, used by one thread.
#pragma once

#include <cstdint>

#include "base/packed_rows.h"
#include "core/peer.h"
#include "core/slot_set.h"
#include "core/tag_table.h"

namespace mlt::core {

class SendTags {
 public:
  explicit SendTags(Shared& shared);

  // The tag's entry, a new one if need be; nullptr if the peer may have no further tag now.
  SendTag* for_post(std::uint16_t peer, std::uint64_t tag);
  // Generation of a send of the tag that is posted.
  std::uint32_t take_generation(SendTag& entry);
  // A send of the tag ended, or its ABORT was acknowledged. `is_matched`: its receive has ended too.
  void leave(std::uint16_t peer, const wire::TransferId& transfer, bool is_matched);
  // Records that the receive of the transfer was posted.
  void note_posted(std::uint16_t peer, const wire::TransferId& transfer);

  // Builds one frame of a list of kept tags; false if none is due.
  bool fill_retirement(ControlOutput& output);

  // Forgets all tags of a peer: its connection went down, or a new one came up.
  void reset(std::uint16_t peer);

  // For tests: how many tags of the peer are remembered, and how many of them must not be forgotten now.
  std::uint32_t count(std::uint16_t peer) const { return peers_[peer].count; }
  std::uint32_t held(std::uint16_t peer) const { return peers_[peer].held; }

 private:
  struct PerPeer {
    std::uint32_t floor = 0;         // first generation of a tag that is new here
    std::uint32_t new_tags = 0;      // since the last retirement
    std::uint32_t count = 0;         // remembered tags
    std::uint32_t held = 0;          // of these: must not be forgotten now
    std::uint32_t unknown = 0;       // of these: no receive is known to be posted
    std::uint32_t retire_at = kNil;  // position in the list of kept tags that is being sent
  };

  // All changes to a tag's use go through this function, which keeps the count of held tags.
  template <typename Change>
  void change(SendTag& entry, Change&& change);
  void retire_if_due(std::uint16_t peer);
  void retire(std::uint16_t peer);

  Shared& shared_;
  TagTable<SendTag> table_;
  base::PackedArray<PerPeer> peers_;
  SlotSet retirements_due_;  // peers
};

}  // namespace mlt::core
