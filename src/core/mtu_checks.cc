#include "core/mtu_checks.h"

#include <algorithm>
#include <array>

namespace mlt::core {

namespace {

// Padding of all probes.
constexpr std::array<std::byte, MtuSearch::kLongestProbeBytes> kZeros{};

static_assert(MtuSearch::kShortProbeBytes == wire::kMtuProbeBytes);

}  // namespace

MtuChecks::MtuChecks(Shared& shared)
    : shared_(shared),
      searches_(shared.config.peers, shared.config.paths),
      due_words_(base::words_for_bits(shared.config.peers)),
      probes_due_(due_words_.data(), shared.config.peers) {}

void MtuChecks::on_peer_up(std::uint16_t rank, std::uint32_t full_bytes) {
  std::ranges::fill(searches_of(rank), MtuSearch(full_bytes));
}

void MtuChecks::on_peer_down(std::uint16_t rank) {
  shared_.timers.cancel(shared_.mtu_timer(rank));
  probes_due_.clear(rank);
}

void MtuChecks::on_data_sent(TimeNs now, const base::DatagramRun& run) {
  // PROTOCOL 23.3.2: It MUST NOT search for a path MTU either.
  if (shared_.peers[run.peer].holds_back) return;
  const std::span<MtuSearch> searches = searches_of(run.peer);
  MtuSearch& search = searches[run.path];
  const bool last_is_shorter = run.total_bytes < run.datagram_count * run.datagram_bytes;
  if (run.datagram_bytes < search.full_bytes()) {
    search.on_short_packets(run.datagram_count);
  } else if (last_is_shorter) {
    search.on_short_packets(1);
  }
  if (search.is_due(now, run.datagram_bytes)) start(run.peer, run.path);
  // RECOVERY R2.6.7: A sender MUST check a path that carries no data because of its limit again after 1 s, and after
  //     twice as long each time, up to 64 s.
  for (std::uint8_t path = 0; path < shared_.config.paths; ++path) {
    if (path != run.path && searches[path].is_raise_due(now)) start(run.peer, path);
  }
}

void MtuChecks::start(std::uint16_t rank, std::uint8_t path) {
  const PathView view = shared_.peers[rank].spray.view(path);
  searches_of(rank)[path].start(view.packets_reported, view.in_flight);
  probes_due_.set(rank);
}

bool MtuChecks::fill_probe(TimeNs now, base::DatagramRun& run) {
  const std::size_t rank = probes_due_.find_set(0);
  if (rank >= shared_.config.peers) return false;
  for (std::uint8_t path = 0; path < shared_.config.paths; ++path) {
    wire::MtuProbe probe;
    probe.bytes = searches_of(rank)[path].next_probe(now);
    if (probe.bytes == 0) continue;
    probe.prefix.type = wire::PacketType::kMtuProbe;
    probe.prefix.path = path;
    probe.prefix.cookie = shared_.peers[rank].remote_cookie;
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
    arm(run.peer);
    return true;
  }
  probes_due_.clear(rank);
  return fill_probe(now, run);
}

bool MtuChecks::apply(std::uint16_t rank, std::uint8_t path, MtuSearch::Outcome outcome) {
  PathSpray& spray = shared_.peers[rank].spray;
  probes_due_.set(rank);
  arm(rank);
  if (outcome == MtuSearch::Outcome::kNone) return false;
  const bool limited = outcome == MtuSearch::Outcome::kLimited;
  if (limited || spray.view(path).narrow) {
    shared_.counters.add(limited ? Counter::k_mtu_limits_found : Counter::k_mtu_limits_gone);
  }
  spray.set_narrow(path, limited);
  return limited;
}

std::uint32_t MtuChecks::limit_bytes(std::uint16_t rank) const {
  std::uint32_t longest = 0;
  for (std::uint8_t path = 0; path < shared_.config.paths; ++path) {
    const std::uint32_t limit = searches_of(rank)[path].limit_bytes();
    if (limit == 0) return 0;
    longest = std::max(longest, limit);
  }
  return longest;
}

void MtuChecks::arm(std::uint16_t rank) {
  TimeNs soonest = base::kNever;
  for (std::uint8_t path = 0; path < shared_.config.paths; ++path) {
    soonest = std::min(soonest, searches_of(rank)[path].timeout_ns());
  }
  shared_.timers.set(shared_.mtu_timer(rank), soonest);
}

}  // namespace mlt::core
