#include "engine/path_check_service.h"

#include <algorithm>

#include "engine/control_service.h"

namespace mlt::engine {

namespace {

// For the peer to come to its own verdict after this side's last report.
constexpr base::DurationNs kVerdictTravelNs = 100 * base::kMillisecond;
constexpr base::DurationNs kMinSilenceNs = 500 * base::kMillisecond;

}  // namespace

PathCheckService::PathCheckService(std::uint16_t rank, std::uint32_t seed, const core::Endpoint& endpoint,
                                   const OpenedDatapath& datapath, io::ControlChannel& channel, const PeerTable& peers,
                                   base::DurationNs peer_timeout_ns)
    : rank_(rank),
      endpoint_(endpoint),
      datapath_(datapath),
      channel_(channel),
      peers_(peers),
      silence_ns_(std::max(peer_timeout_ns / 3, kMinSilenceNs)),
      checks_(endpoint.config().peers, datapath.network->paths(), endpoint.config().dscp.control, seed) {}

void PathCheckService::on_peer_up(const core::PeerUp& up) {
  // PROTOCOL 3.9.8: Ranks that share memory MUST NOT check paths.
  if (datapath_.shared != nullptr && datapath_.shared->has_peer(up.peer)) return;
  checks_.on_peer_up(up, up.peer > rank_);
}

void PathCheckService::on_peer_down(std::uint16_t peer) {
  checks_.on_peer_down(peer);
  std::erase_if(blocked_, [&](const Blocked& one) { return one.peer == peer; });
}

void PathCheckService::watch(base::TimeNs now) {
  // PROTOCOL 3.9.11: A side whose timers ran late by more than 100 ms MUST NOT count that time in a check
  // Without operations the timer does not run (next_timeout()).
  if (now - next_watch_ > PathChecks::kLateTimerNs) checks_.forget_silence();
  next_watch_ = base::after(now, PathChecks::kWatchGapNs);
  for (std::uint16_t peer = 0; peer < endpoint_.config().peers; ++peer) {
    checks_.watch(now, peer, is_needed(peer), endpoint_.datagram_at(peer), silence_ns_);
  }
}

void PathCheckService::turn(base::TimeNs now, bool is_drained) {
  if (now >= next_watch_ && endpoint_.operations() > 0) watch(now);
  if (!checks_.is_active()) return;
  checks_.on_timeout(now, is_drained);
  // One that the system does not take is lost like any datagram, and repeated.
  while (checks_.poll_probe(probe_)) static_cast<void>(datapath_.outer->send(now, probe_));
  std::uint16_t peer = 0;
  PathChecks::ReportBytes report;
  while (checks_.poll_report(peer, report)) channel_.send(peer, kPathReportMessage, report);
  PathVerdict verdict;
  while (checks_.poll_verdict(verdict)) on_verdict(now, verdict);
  // PROTOCOL 3.9.9: An endpoint MUST treat a peer that is blocked in a direction as down once an operation with it is
  //     in progress
  for (const Blocked& one : blocked_) {
    if (now < one.fails_at || !is_needed(one.peer)) continue;
    channel_.send(one.peer, kFailureMessage, std::as_bytes(std::span(one.text)));
    channel_.fail_peer(one.peer, one.text);
  }
}

base::TimeNs PathCheckService::next_timeout() const {
  base::TimeNs next = checks_.next_timeout();
  if (endpoint_.operations() > 0) next = std::min(next, next_watch_);
  for (const Blocked& one : blocked_) {
    if (is_needed(one.peer)) next = std::min(next, one.fails_at);
  }
  return next;
}

void PathCheckService::on_verdict(base::TimeNs now, const PathVerdict& verdict) {
  std::erase_if(blocked_, [&](const Blocked& one) { return one.peer == verdict.peer; });
  if (!verdict.blocked_from && !verdict.blocked_to) return;
  std::vector<std::string> local, remote;
  for (std::uint8_t path = 0; path < datapath_.network->paths(); ++path) {
    local.push_back(datapath_.network->path_address(path).format());
    remote.push_back(peers_.addresses(verdict.peer)[path].format());
  }
  blocked_.push_back(
      {verdict.peer, blocked_paths_text(rank_, verdict, local, remote), base::after(now, kVerdictTravelNs)});
}

std::string PathCheckService::blocked(std::uint16_t peer) const {
  const auto found = std::ranges::find(blocked_, peer, &Blocked::peer);
  return found == blocked_.end() ? "" : found->text;
}

}  // namespace mlt::engine
