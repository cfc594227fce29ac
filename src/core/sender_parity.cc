// Output: batches of parity packets, behind the first round of a send. For the code see parity_sender.h.
#include "base/check.h"
#include "core/sender.h"
#include "core/transfer_header.h"

namespace mlt::core {

void Sender::fill_parity(TimeNs now, SendState& state, std::uint32_t limit, base::DatagramRun& run) {
  Peer& peer = shared_.peers[state.request.peer];
  MLT_CHECK(state.are_segments_sent() && state.parity_left() > 0);
  if (peer.spray.packets_in_flight() <= 1) peer.rate->on_resumed();
  run.peer = state.request.peer;
  run.path = peer.spray.choose(now, limit);
  // PROTOCOL 6.12.6: A sender MUST send parity ECN-capable, and in the least urgent class of the transfer's packets.
  run.dscp = shared_.config.dscp.data[state.last_class];
  run.ecn = base::Ecn::kEct0;
  auto header =
      transfer_header<wire::ParityHeader>(wire::PacketType::kParity, state, peer.remote_cookie, run.path, now);
  // PROTOCOL 4.13.2: Wherever this document counts packets, an endpoint MUST count PARITY packets like DATA packets: in
  //     sequence numbers, batches, windows, rates, acknowledgement blocks, and the evidence of 7.4.6.
  const std::uint32_t last_sequence = parity_.fill(peer, state, limit, header, run);
  shared_.counters.add(Counter::k_runs_sent);
  shared_.counters.add(Counter::k_parity_packets_sent, run.datagram_count);
  shared_.counters.add(Counter::k_parity_bytes_sent, std::uint64_t{run.datagram_count} * state.grid.length(0));
  on_run_filled(now, state, run, last_sequence);
}

}  // namespace mlt::core
