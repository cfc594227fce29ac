// What arrived from each peer on each path, and what of it no acknowledgement block has reported yet. Paper section
// 4.2.3.
//
// Invariants, per peer: the packets not reported are the sum over its paths; a path has its bit in unreported() if, and
// only if, packets of it were not reported. An ACK is due from the moment that packets_per_ack packets are not
// reported, until blocks leave fewer than that; one that was requested is due until blocks have reported every packet.
// Absent on purpose: packets and queues (ReplySender), and timers: no ACK needs one. Owned by the endpoint's Receiver,
// used by one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bitmap.h"
#include "base/datagram.h"
#include "base/packed_rows.h"
#include "base/time.h"
#include "core/counter.h"
#include "core/path_spray.h"
#include "wire/control.h"

namespace mlt::core {

// Fields that order a packet of any type on its path.
struct Arrival {
  std::uint8_t path = 0;
  std::uint32_t sequence = 0;
  std::uint32_t timestamp_ns = 0;
  wire::TransferId transfer;
};

class AckLedger {
 public:
  AckLedger(std::uint16_t peers, std::uint8_t paths);

  // A new connection came up: nothing arrived on it. An ACK is due after so many packets.
  void reset(std::uint16_t peer, std::uint32_t packets_per_ack);
  // A packet or trailing probe arrived. `posted`: the receive of its transfer was posted.
  void count(std::uint16_t peer, base::TimeNs arrival_ns, const Arrival& arrival, base::Ecn ecn, bool posted,
             Counters& counters);

  // The block of one path, in a packet that leaves now: its packets count as reported. `fresh`: the timestamp was not
  // echoed before.
  wire::AckBlock take_block(base::TimeNs now, std::uint16_t peer, std::uint8_t path, bool& fresh);
  // Adds the blocks of these paths (bit mask) to an ACK that has the block of its own path.
  void add_other_blocks(base::TimeNs now, std::uint16_t peer, std::uint32_t paths, wire::Ack& ack);

  // Bit per path with packets that no block has reported.
  std::uint32_t unreported(std::uint16_t peer) const { return peers_[peer].unreported; }
  // Bit per path on which a packet ever came.
  std::uint32_t used(std::uint16_t peer) const;
  // Whether a packet of one of the last few thousand was missing when the next one of its path came: lost, or late.
  bool loses_some(std::uint16_t peer) const { return peers_[peer].packets_since_gap < kGapHorizon; }
  // Path, transfer and `posted` of the newest packet.
  std::uint8_t newest_path(std::uint16_t peer) const { return peers_[peer].newest_path; }
  const wire::TransferId& newest_transfer(std::uint16_t peer) const { return peers_[peer].transfer; }
  bool is_newest_posted(std::uint16_t peer) const { return peers_[peer].posted; }

  // An ACK is due at once, whatever the number of packets, and stays due while any packet is not reported.
  void request(std::uint16_t peer) {
    peers_[peer].requested = true;
    due_.set(peer);
  }
  void withdraw(std::uint16_t peer) {
    peers_[peer].requested = false;
    due_.clear(peer);
  }
  // The first peer to which an ACK is due; the number of peers if there is none.
  std::size_t first_due() const { return due_.find_set(0); }

 private:
  struct PerPath {
    std::uint32_t highest_sequence = 0;  // 0: nothing arrived yet
    std::uint32_t received_packets = 0;
    std::uint32_t ce_packets = 0;
    std::uint32_t echo_timestamp_ns = 0;
    base::TimeNs echo_arrival_ns = 0;
    std::uint32_t since_ack = 0;
    bool echo_fresh = false;
  };
  // In packets: as long as a single loss stays in the estimate of R2.2.2.
  static constexpr std::uint32_t kGapHorizon = 4'096;

  struct PerPeer {
    std::uint32_t packets_per_ack = 1;
    std::uint32_t packets_since_gap = kGapHorizon;  // at most kGapHorizon
    std::uint32_t since_ack = 0;                    // packets not reported yet, over all paths
    std::uint32_t unreported = 0;
    std::uint8_t newest_path = 0;
    bool posted = false;
    bool requested = false;
    wire::TransferId transfer;
  };

  PerPath& arrivals(std::uint16_t peer, std::uint8_t path) { return arrivals_.row(peer)[path]; }

  std::uint8_t paths_;
  base::PackedArray<PerPeer> peers_;
  base::PackedRows<PerPath> arrivals_;  // by peer and path
  std::vector<std::uint64_t> due_words_;
  base::BitmapView due_;  // peers
};

// Once per packet.
inline void AckLedger::count(std::uint16_t from, base::TimeNs arrival_ns, const Arrival& arrival, base::Ecn ecn,
                             bool posted, Counters& counters) {
  PerPeer& peer = peers_[from];
  PerPath& in = arrivals(from, arrival.path);
  if (peer.packets_since_gap < kGapHorizon) ++peer.packets_since_gap;
  if (in.highest_sequence == 0 || is_after(arrival.sequence, in.highest_sequence)) {
    if (packets_between(in.highest_sequence, arrival.sequence) > 1) peer.packets_since_gap = 0;
    in.highest_sequence = arrival.sequence;
    in.echo_timestamp_ns = arrival.timestamp_ns;
    in.echo_arrival_ns = arrival_ns;
    in.echo_fresh = true;
  }
  // PROTOCOL 7.2.1: A receiver MUST count every packet and trailing probe that passes 4.11 for its path, whatever
  //     becomes of it: received, CE-marked, highest sequence.
  ++in.received_packets;
  if (ecn == base::Ecn::kCe) {
    ++in.ce_packets;
    counters.add(Counter::k_ce_marks_received);
  }
  peer.newest_path = arrival.path;
  ++in.since_ack;
  peer.unreported |= 1U << arrival.path;
  peer.transfer = arrival.transfer;
  peer.posted = posted;
  // Counted over all paths, because one ACK covers all of them: no window is too small for any number of paths.
  // PROTOCOL 7.2.4: A receiver MUST send an ACK once ten packets have come, over all paths, that no acknowledgement
  //     block has reported yet, or as many as fill half the window that it announced, if that is fewer.
  if (++peer.since_ack >= peer.packets_per_ack) due_.set(from);
}

}  // namespace mlt::core
