// MTU checks of the paths (mtu_search.h): when they start, what they send, and the effect of a limit.
#include <algorithm>
#include <array>

#include "core/sender.h"

namespace mlt::core {

namespace {

// Padding of all probes.
constexpr std::array<std::byte, MtuSearch::kLongestProbeBytes> kZeros{};

static_assert(MtuSearch::kShortProbeBytes == wire::kMtuProbeBytes);

}  // namespace

void Sender::check_mtu(TimeNs now, const base::DatagramRun& run) {
  Peer& peer = shared_.peers[run.peer];
  // PROTOCOL 23.3.2: It MUST NOT search for a path MTU either.
  if (peer.holds_back) return;
  MtuSearch& search = peer.mtu[run.path];
  const bool last_is_shorter = run.total_bytes < run.datagram_count * run.datagram_bytes;
  if (run.datagram_bytes < search.full_bytes()) {
    search.on_short_packets(run.datagram_count);
  } else if (last_is_shorter) {
    search.on_short_packets(1);
  }
  if (search.is_due(now, run.datagram_bytes)) start_mtu_search(run.peer, run.path);
  // RECOVERY R2.6.7: A sender MUST check a path that carries no data because of its limit again after 1 s, and after
  //     twice as long each time, up to 64 s.
  for (std::uint8_t path = 0; path < shared_.config.paths; ++path) {
    if (path != run.path && peer.mtu[path].is_raise_due(now)) start_mtu_search(run.peer, path);
  }
}

void Sender::start_mtu_search(std::uint16_t rank, std::uint8_t path) {
  Peer& peer = shared_.peers[rank];
  const PathView view = peer.spray.view(path);
  peer.mtu[path].start(view.packets_reported, view.in_flight);
  mtu_probes_due_.set(rank);
}

bool Sender::fill_mtu_probe(TimeNs now, base::DatagramRun& run) {
  const std::size_t rank = mtu_probes_due_.find_set(0);
  if (rank >= shared_.config.peers) return false;
  Peer& peer = shared_.peers[rank];
  for (std::uint8_t path = 0; path < shared_.config.paths; ++path) {
    wire::MtuProbe probe;
    probe.bytes = peer.mtu[path].next_probe(now);
    if (probe.bytes == 0) continue;
    probe.prefix.type = wire::PacketType::kMtuProbe;
    probe.prefix.path = path;
    probe.prefix.cookie = peer.remote_cookie;
    probe.timestamp_ns = static_cast<std::uint32_t>(now);
    const std::size_t size = wire::encode_mtu_probe(probe, run.scratch.data());
    run.peer = static_cast<std::uint16_t>(rank);
    run.path = path;
    // A class in which congestion drops no packets, so that it does not drop the long ones first.
    run.dscp = shared_.config.dscp.control;
    run.ecn = base::Ecn::kEct0;
    run.datagram_count = 1;
    run.slices[0] = {run.scratch.data(), size};
    run.slices[1] = {kZeros.data(), probe.bytes - size};
    run.slice_count = probe.bytes > size ? 2 : 1;
    run.datagram_bytes = run.total_bytes = probe.bytes;
    shared_.counters.add(Counter::k_mtu_probes_sent);
    arm_mtu(run.peer);
    return true;
  }
  mtu_probes_due_.clear(rank);
  return fill_mtu_probe(now, run);
}

void Sender::on_mtu_reply(TimeNs now, std::uint16_t from, const wire::MtuReply& reply) {
  shared_.counters.add(Counter::k_mtu_replies_received);
  MtuSearch& search = shared_.peers[from].mtu[reply.prefix.path];
  // RECOVERY R2.6.8: A sender MUST ignore an MTU_REPLY of a path that is not being checked (stale_control).
  if (!search.is_running()) return shared_.counters.add(Counter::k_stale_control);
  take_mtu_outcome(now, from, reply.prefix.path, search.on_reply(now, reply.timestamp_ns, reply.bytes));
}

void Sender::on_mtu_timer(TimeNs now, std::uint16_t rank) {
  Peer& peer = shared_.peers[rank];
  if (!peer.up) return;
  // RECOVERY R2.6.4: The check ends without a result when no send to the peer is under way.
  const bool sends = std::any_of(sends_.begin(), sends_.end(), [rank](const SendState& state) {
    return state.is_under_way() && state.request.peer == rank;
  });
  if (!sends) {
    for (std::uint8_t path = 0; path < shared_.config.paths; ++path) peer.mtu[path].put_off(now);
    return arm_mtu(rank);
  }
  for (std::uint8_t path = 0; path < shared_.config.paths; ++path) {
    take_mtu_outcome(now, rank, path, peer.mtu[path].on_timeout(now, peer.spray.view(path).packets_reported));
  }
}

void Sender::take_mtu_outcome(TimeNs now, std::uint16_t rank, std::uint8_t path, MtuSearch::Outcome outcome) {
  Peer& peer = shared_.peers[rank];
  mtu_probes_due_.set(rank);
  arm_mtu(rank);
  if (outcome == MtuSearch::Outcome::kNone) return;
  const bool limited = outcome == MtuSearch::Outcome::kLimited;
  if (limited || peer.spray.view(path).narrow) {
    shared_.counters.add(limited ? Counter::k_mtu_limits_found : Counter::k_mtu_limits_gone);
  }
  peer.spray.set_narrow(path, limited);
  // PROTOCOL 18.1.5: Where every path to a peer has a limit (R2.6.5), a sender MUST end every send to that peer with a
  //     longer segment as peer failed, and abort it (8.1.1): nothing of it would ever arrive.
  const std::uint32_t limit = path_limit_bytes(rank);
  if (limited && limit != 0) on_path_limit(now, rank, limit - MLT_DATA_HEADER_BYTES);
}

std::uint32_t Sender::path_limit_bytes(std::uint16_t rank) const {
  std::uint32_t longest = 0;
  for (std::uint8_t path = 0; path < shared_.config.paths; ++path) {
    const std::uint32_t limit = shared_.peers[rank].mtu[path].limit_bytes();
    if (limit == 0) return 0;
    longest = std::max(longest, limit);
  }
  return longest;
}

void Sender::arm_mtu(std::uint16_t rank) {
  TimeNs soonest = base::kNever;
  for (std::uint8_t path = 0; path < shared_.config.paths; ++path) {
    soonest = std::min(soonest, shared_.peers[rank].mtu[path].timeout_ns());
  }
  shared_.timers.set(shared_.mtu_timer(rank), soonest);
}

}  // namespace mlt::core
