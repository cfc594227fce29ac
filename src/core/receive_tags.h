// The receiver's state of tags: which generation the next receive gets, which transfers are over, how the newest ended,
// and how tags are forgotten when their sender forgets them.
//
// A sender that forgets tags lists those that it keeps, and the generation at which the others restart (the floor). All
// transfers of the forgotten tags have ended at both ranks: later packets of them are stale by their generation. Posted
// receives that no send has matched are renumbered from the floor on, in order.
//
// Invariants: an entry's `unseen` is never after its `generation`; a peer has as many entries with `by_retirement` as
// it counts, `unknown_tags` at most; its floor only rises while the connection lasts. Absent on purpose: the receives
// themselves, which the Receiver renumbers. Owned by the endpoint's Receiver, used by one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/packed_rows.h"
#include "core/config.h"
#include "core/counter.h"
#include "core/finished_log.h"
#include "core/tag_table.h"
#include "wire/control.h"

namespace mlt::core {

class ReceiveTags {
 public:
  explicit ReceiveTags(const EndpointConfig& config);

  // The tag's entry, a new one if need be; nullptr if the peer may have no further tag now.
  ReceiveTag* for_post(std::uint16_t peer, std::uint64_t tag);
  // Whether so many receives of the tag wait for their sends that no further one may be numbered.
  static bool is_far_ahead(const ReceiveTag& entry);
  // Generation of a receive of the tag that is posted.
  static std::uint32_t take_generation(ReceiveTag& entry) { return entry.generation++; }

  // Records that a packet of the transfer, whose receive was posted, arrived.
  void note_seen(std::uint16_t peer, const wire::TransferId& transfer);
  // Whether this transfer was posted before. Called only for inactive transfers: then the transfer has ended.
  bool is_over(std::uint16_t peer, const wire::TransferId& transfer);

  // Remembers how the newest receive of a tag ended, as long as the tag is known.
  void keep_outcome(const FinishedReceive& finished);
  // How the transfer ended, if it is the newest of its tag that did.
  std::optional<FinishedReceive> outcome_of(std::uint16_t peer, const wire::TransferId& transfer);

  // Takes one frame of the list of tags that the sender keeps. True if it is the last of a list that counts; then call
  // retire().
  bool on_retire(std::uint16_t peer, const wire::Retire& retire, Counters& counters);
  // Forgets every tag that is not listed. Calls `renumber(entry)` instead for those with receives that no send has
  // matched; it gives them new numbers and calls restart() in between.
  template <typename Renumber>
  void retire(std::uint16_t peer, std::uint32_t floor, Renumber&& renumber) {
    // PROTOCOL 5.2.7: On the last RETIRE of a list the receiver MUST forget every tag of the sender that is not listed.
    peers_[peer].floor = floor;
    table_.each_of(peer, [&](ReceiveTag& entry) {
      if (std::exchange(entry.kept, false)) return;
      if (entry.unseen != entry.generation) return renumber(entry);
      unkeep(entry);
      table_.erase(entry);
    });
  }
  // The entry's receives that no send has matched are counted from the floor on.
  static void restart(ReceiveTag& entry, std::uint32_t floor);

  // Forgets all tags of a peer: its connection went down, or a new one came up.
  void reset(std::uint16_t peer);

 private:
  struct PerPeer {
    std::uint32_t floor = 0;  // first generation of a tag that is new here, by the peer's latest report
    std::uint32_t kept = 0;   // number of entries with by_retirement
  };

  static void note_seen(ReceiveTag& entry, std::uint32_t generation);
  // Records one of the tags that the sender keeps.
  void keep(std::uint16_t peer, std::uint64_t tag);
  void unkeep(ReceiveTag& entry);

  std::uint32_t unknown_tags_;
  TagTable<ReceiveTag> table_;
  base::PackedArray<PerPeer> peers_;
};

}  // namespace mlt::core
