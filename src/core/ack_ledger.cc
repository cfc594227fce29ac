#include "core/ack_ledger.h"

#include <algorithm>
#include <bit>

namespace mlt::core {

AckLedger::AckLedger(std::uint16_t peers, std::uint8_t paths)
    : paths_(paths),
      peers_(peers),
      arrivals_(peers, paths),
      due_words_(base::words_for_bits(peers)),
      due_(due_words_.data(), peers) {}

void AckLedger::reset(std::uint16_t peer, std::uint32_t packets_per_ack) {
  peers_[peer] = PerPeer{};
  peers_[peer].packets_per_ack = packets_per_ack;
  for (std::uint8_t path = 0; path < paths_; ++path) arrivals(peer, path) = PerPath{};
  withdraw(peer);
}

wire::AckBlock AckLedger::take_block(base::TimeNs now, std::uint16_t rank, std::uint8_t path, bool& fresh) {
  PerPeer& peer = peers_[rank];
  PerPath& in = arrivals(rank, path);
  wire::AckBlock block;
  // PROTOCOL 4.5.1: Every ACK, BITMAP and STOP MUST carry the acknowledgement block of one path, named in its prefix. A
  //     sender MUST take whatever carries it as an ACK of that path.
  block.highest_sequence = in.highest_sequence;
  block.received_packets = in.received_packets;
  block.ce_packets = in.ce_packets;
  block.echo_timestamp_ns = in.echo_timestamp_ns;
  block.hold_ns = static_cast<std::uint32_t>(std::clamp<base::DurationNs>(now - in.echo_arrival_ns, 0, 0xFFFF'FFFFLL));
  // PROTOCOL 4.5.2: A receiver MUST set ECHO if, and only if, the echoed timestamp was not echoed before: it is then a
  //     sample of the round trip.
  fresh = in.echo_fresh;
  in.echo_fresh = false;
  // PROTOCOL 4.5.1: A sender MUST take whatever carries it as an ACK of that path.
  // Any packet with this block acknowledges the path.
  peer.unreported &= ~(1U << path);
  peer.since_ack -= in.since_ack;
  // PROTOCOL 7.2.5: A receiver MUST NOT use a timer for ACKs: the reply to END_OF_ROUND or to a probe acknowledges
  //     fewer packets than that.
  in.since_ack = 0;
  // PROTOCOL 7.6.3: A reply that leaves before that ACK MUST NOT take its place, unless it leaves nothing to report.
  if (peer.unreported == 0) peer.requested = false;
  if (peer.since_ack < peer.packets_per_ack && !peer.requested) due_.clear(rank);
  return block;
}

void AckLedger::add_other_blocks(base::TimeNs now, std::uint16_t rank, std::uint32_t paths, wire::Ack& ack) {
  for (paths &= ~(1U << ack.prefix.path); paths != 0; paths &= paths - 1) {
    wire::PathBlock& other = ack.others[ack.other_count++];
    other.path = static_cast<std::uint8_t>(std::countr_zero(paths));
    other.block = take_block(now, rank, other.path, other.fresh);
  }
}

std::uint32_t AckLedger::used(std::uint16_t rank) const {
  std::uint32_t used = 0;
  for (std::uint8_t path = 0; path < paths_; ++path) {
    if (arrivals_.row(rank)[path].highest_sequence != 0) used |= 1U << path;
  }
  return used;
}

}  // namespace mlt::core
