#include "engine/path_checks.h"

#include <algorithm>
#include <bit>
#include <cstdio>

#include "base/bytes.h"
#include "wire/control.h"

namespace mlt::engine {

namespace {

constexpr base::DurationNs kFirstProbeGapNs = 100 * base::kMillisecond;
constexpr base::DurationNs kMaxProbeGapNs = 400 * base::kMillisecond;
// Without a reply for this long, the sides report to each other.
constexpr base::DurationNs kAlarmNs = 600 * base::kMillisecond;
constexpr base::DurationNs kPathReportGapNs = 200 * base::kMillisecond;
constexpr std::uint16_t kMinProbes = 5;
// Time for the peer's probes to arrive after its report that it sent them.
constexpr base::DurationNs kProbeTravelNs = 400 * base::kMillisecond;
constexpr base::DurationNs kMaxPathCheckNs = 10 * base::kSecond;
// The peer's check of the same time may take longer than this side's by so much.
constexpr base::DurationNs kPassedNs = 3 * base::kSecond;
constexpr std::size_t kMaxPathChecks = 8;
// More ranks than these start slowly where many share a host.
constexpr std::uint16_t kPatientRanks = 30;

}  // namespace

PathChecks::PathChecks(std::uint16_t ranks, std::uint8_t paths, std::uint8_t control_dscp, std::uint32_t seed)
    : all_paths_(static_cast<std::uint16_t>((1U << paths) - 1)),
      dscp_(control_dscp),
      ranks_(std::max(ranks, kPatientRanks)),
      next_timestamp_(seed),
      checks_(ranks) {}

// PROTOCOL 3.9.10: In a job of more than 30 ranks, every time of this section MUST be longer: times the number of
//     ranks, divided by 30.
base::DurationNs PathChecks::patient(base::DurationNs time) const { return time * ranks_ / kPatientRanks; }

void PathChecks::on_peer_up(const core::PeerUp& up, bool is_listener) {
  Check& check = checks_[up.peer];
  check.is_up = true;
  check.local_cookie = up.local_cookie;
  check.remote_cookie = up.remote_cookie;
  // PROTOCOL 3.9.1: When a connection comes up, the listening side MUST send a probe on every path
  if (is_listener) waiting_.push_back(up.peer);
}

void PathChecks::on_peer_down(std::uint16_t peer) {
  if (!view(peer).is_up) return;
  stop(peer);
  if (checks_[peer].is_blocked()) --blocked_;
  checks_[peer] = {};
}

// PROTOCOL 3.9.12: A side MUST begin a check again when an operation with the peer is in progress and no datagram of it
//     has arrived for a third of the silence limit (3.6.2), but at least 500 ms, counted from when the operation began
//     or the last check of that kind did, if that is later.
void PathChecks::watch(base::TimeNs now, std::uint16_t peer, bool is_needed, base::TimeNs datagram_at,
                       base::DurationNs silence_ns) {
  if (!view(peer).is_up) return;
  Check& check = checks_[peer];
  if (!is_needed) {
    check.quiet_since = base::kNever;
    return;
  }
  if (check.quiet_since == base::kNever) check.quiet_since = now;
  if (now < base::after(std::max(check.quiet_since, datagram_at), patient(silence_ns))) return;
  check.quiet_since = now;
  request(peer);
}

void PathChecks::request(std::uint16_t peer) {
  const Check& check = std::as_const(checks_)[peer];
  const bool waits = std::ranges::find(waiting_, peer) != waiting_.end();
  if (check.is_up && !check.is_running && !check.is_blocked() && !waits) waiting_.push_back(peer);
}

void PathChecks::forget_silence() {
  for (std::size_t place = 1; place <= checks_.used(); ++place) {
    checks_[checks_.item_at(place)].quiet_since = base::kNever;
  }
}

// Of those that wait, as many as may run.
void PathChecks::begin_waiting(base::TimeNs now) {
  // PROTOCOL 3.9.1: It SHOULD have no more than 8 checks at once
  while (!waiting_.empty() && running_.size() < kMaxPathChecks) {
    begin(now, waiting_.front());
  }
}

void PathChecks::begin(base::TimeNs now, std::uint16_t peer) {
  Check& check = checks_[peer];
  Check fresh;
  fresh.is_up = fresh.has_begun = fresh.is_running = true;
  fresh.is_first = !check.has_begun;
  fresh.passed_at = check.passed_at;
  fresh.local_cookie = check.local_cookie;
  fresh.remote_cookie = check.remote_cookie;
  fresh.quiet_since = check.quiet_since;
  check = fresh;
  check.began = check.next_probe = now;
  check.gap_ns = patient(kFirstProbeGapNs);
  // PROTOCOL 3.9.3: A side whose check has no reply after 600 ms MUST send a path report, and another one every 200 ms.
  check.next_report = base::after(now, patient(kAlarmNs));
  check.timestamp = next_timestamp_ += 0x9E37'79B9U;
  std::erase(waiting_, peer);
  running_.push_back(peer);
}

// From now on a probe every 100 ms.
void PathChecks::alarm(base::TimeNs now, Check& check, base::DurationNs first_report_ns) {
  if (check.is_alarmed) return;
  check.is_alarmed = true;
  check.next_probe = now;
  check.next_report = base::after(now, first_report_ns);
}

void PathChecks::stop(std::uint16_t peer) {
  checks_[peer].is_running = false;
  checks_[peer].due = 0;
  std::erase(running_, peer);
  std::erase(waiting_, peer);
}

void PathChecks::push_verdict(std::uint16_t peer, base::DurationNs lasted_ns) {
  const Check& check = checks_[peer];
  verdicts_.push_back({peer, check.blocked_from, check.blocked_to, check.sent, check.peer_sent, lasted_ns});
}

bool PathChecks::on_datagram(std::span<const std::byte> datagram) {
  wire::Prefix prefix;
  if (wire::decode_prefix(datagram, prefix) != wire::DropReason::kNone) return false;
  const std::uint16_t from = wire::cookie_rank(prefix.cookie);
  if (from >= checks_.size() || !view(from).is_up || view(from).local_cookie != prefix.cookie) return false;
  if (((all_paths_ >> prefix.path) & 1U) == 0) return false;
  Check& check = checks_[from];
  check.arrived |= static_cast<std::uint16_t>(1U << prefix.path);
  wire::MtuReply reply;
  const bool is_reply = prefix.type == wire::PacketType::kMtuReply && check.has_begun &&
                        wire::decode_mtu_reply(datagram, prefix, reply) == wire::DropReason::kNone &&
                        reply.timestamp_ns == check.timestamp;
  on_arrival(check, from, is_reply);
  return is_reply;
}

void PathChecks::on_arrival(Check& check, std::uint16_t peer, bool is_reply) {
  // PROTOCOL 3.9.6: A check MUST end once a reply arrived on any path
  if (is_reply && check.is_running) stop(peer);
  if (is_reply) check.passed_at = now_;
  if (!check.is_blocked()) return;
  check.blocked_from = false;
  check.blocked_to = check.blocked_to && !is_reply;
  if (check.is_blocked()) return;
  --blocked_;
  push_verdict(peer, 0);
}

void PathChecks::on_report(base::TimeNs now, std::uint16_t from, std::span<const std::byte> bytes) {
  // PROTOCOL 3.9.5: A receiver MUST ignore a path report of another length than 6 bytes.
  if (bytes.size() != kReportBytes || !view(from).is_up) return;
  Check& check = checks_[from];
  now_ = now;
  // PROTOCOL 3.9.4: A side that receives a path report MUST begin a check at once, unless one is running, a reply ended
  //     its last one less than 3 s ago, or it has found the peer blocked.
  const bool has_passed = check.passed_at != base::kNever && now < base::after(check.passed_at, patient(kPassedNs));
  if (!check.is_running && !has_passed && !check.is_blocked()) begin(now, from);
  if (!check.is_running) return;
  alarm(now, check, patient(kPathReportGapNs));
  check.peer_arrived = base::load_le16(bytes.data());
  const std::uint16_t sent = base::load_le16(bytes.data() + 2);
  // PROTOCOL 3.9.7: In a check after its first, it MUST count the probes from the peer's first report, or from the
  //     peer's new check: earlier ones may have arrived before.
  if (!check.has_report && !check.is_first) check.peer_sent_before = sent;
  if (check.has_report && sent < check.peer_sent) {
    check.peer_sent_before = 0;
    check.peer_full_at = base::kNever;
  }
  check.has_report = true;
  check.peer_sent = sent;
  // PROTOCOL 3.9.7: A receiver MUST ignore the decision of a report that comes before it has sent 5 probes in this
  //     check: it is of an earlier one.
  check.peer_none_arrived = base::load_le16(bytes.data() + 4) == 1 && check.sent >= kMinProbes;
  if (sent >= check.peer_sent_before + kMinProbes) check.peer_full_at = std::min(check.peer_full_at, now);
}

void PathChecks::decide(base::TimeNs now, std::uint16_t peer) {
  Check& check = checks_[peer];
  // PROTOCOL 3.9.7: A side decides that nothing arrived 400 ms after the peer first reported 5 probes or more, if no
  //     datagram of the peer arrived and it has read all datagrams that did. It MUST then send a path report at once.
  if (check.none_arrived || check.arrived != 0 || check.peer_full_at == base::kNever) return;
  if (now < base::after(check.peer_full_at, patient(kProbeTravelNs))) return;
  check.none_arrived = true;
  reports_.push_back(peer);
}

void PathChecks::conclude(base::TimeNs now, std::uint16_t peer) {
  Check& check = checks_[peer];
  const bool is_decided = check.none_arrived || check.arrived != 0;
  const bool is_peer_decided = check.peer_none_arrived || check.peer_arrived != 0;
  if (!is_decided || !is_peer_decided) return;
  check.blocked_from = check.arrived == 0;
  check.blocked_to = check.peer_none_arrived && check.peer_arrived == 0;
  if (!check.is_blocked()) return;
  ++blocked_;
  push_verdict(peer, now - check.began);
  stop(peer);
}

// PROTOCOL 3.9.11: A side whose timers ran late by more than 100 ms MUST NOT count that time in a check: the host is
//     slow, and its peers may have had no turn either.
void PathChecks::discount_lateness(base::TimeNs now) {
  const base::TimeNs due = next_timer();
  if (due >= now || now - due <= patient(kLateTimerNs)) return;
  for (const std::uint16_t peer : running_) {
    Check& check = checks_[peer];
    const base::DurationNs late = now - std::max(due, check.began);
    check.began += late;
    check.next_report = base::after(check.next_report, late);
    if (check.peer_full_at != base::kNever) check.peer_full_at += late;
  }
}

void PathChecks::on_timeout(base::TimeNs now, bool is_drained) {
  now_ = now;
  discount_lateness(now);
  begin_waiting(now);
  // By index, and from the last: stop() removes a rank.
  for (std::size_t i = running_.size(); i-- > 0;) {
    const std::uint16_t peer = running_[i];
    Check& check = checks_[peer];
    if (now >= check.next_report) {
      alarm(now, check, 0);
      reports_.push_back(peer);
      check.next_report = base::after(now, patient(kPathReportGapNs));
    }
    if (now >= check.next_probe) {
      // PROTOCOL 3.9.2: Without a reply it MUST repeat the probes after 100 ms, and after twice as long each time up to
      //     400 ms; after its first path report, every 100 ms.
      check.due = all_paths_;
      if (check.sent < 0xFFFF) ++check.sent;
      check.next_probe = base::after(now, check.is_alarmed ? patient(kFirstProbeGapNs) : check.gap_ns);
      check.gap_ns = std::min(2 * check.gap_ns, patient(kMaxProbeGapNs));
    }
    // PROTOCOL 3.9.6: or after 10 s, without a result.
    if (now - check.began >= patient(kMaxPathCheckNs)) {
      stop(peer);
      continue;
    }
    if (is_drained) decide(now, peer);
    conclude(now, peer);
  }
}

base::TimeNs PathChecks::next_timeout() const {
  // At once, if another check may begin.
  return !waiting_.empty() && running_.size() < kMaxPathChecks ? 0 : next_timer();
}

base::TimeNs PathChecks::next_timer() const {
  base::TimeNs next = base::kNever;
  for (const std::uint16_t peer : running_) {
    next = std::min({next, view(peer).next_probe, view(peer).next_report});
  }
  return next;
}

bool PathChecks::poll_probe(base::DatagramRun& run) {
  for (const std::uint16_t peer : running_) {
    Check& check = checks_[peer];
    if (check.due == 0) continue;
    const auto path = static_cast<std::uint8_t>(std::countr_zero(check.due));
    check.due &= static_cast<std::uint16_t>(check.due - 1);
    // PROTOCOL 3.9.1: an MTU_PROBE of 24 bytes in the control class (4.12).
    wire::MtuProbe probe;
    probe.bytes = wire::kMtuProbeBytes;
    probe.timestamp_ns = check.timestamp;
    probe.prefix.type = wire::PacketType::kMtuProbe;
    probe.prefix.path = path;
    probe.prefix.cookie = check.remote_cookie;
    const std::size_t size = wire::encode_mtu_probe(probe, run.scratch.data());
    run.peer = peer;
    run.path = path;
    run.dscp = dscp_;
    run.ecn = base::Ecn::kEct0;
    run.datagram_count = 1;
    run.slices[0] = {run.scratch.data(), size};
    run.slice_count = 1;
    run.datagram_bytes = run.total_bytes = static_cast<std::uint32_t>(size);
    return true;
  }
  return false;
}

bool PathChecks::poll_report(std::uint16_t& peer, ReportBytes& bytes) {
  if (reports_.empty()) return false;
  peer = reports_.front();
  reports_.pop_front();
  base::store_le16(bytes.data(), checks_[peer].arrived);
  base::store_le16(bytes.data() + 2, checks_[peer].sent);
  base::store_le16(bytes.data() + 4, checks_[peer].none_arrived ? 1 : 0);
  return true;
}

bool PathChecks::poll_verdict(PathVerdict& verdict) {
  if (verdicts_.empty()) return false;
  verdict = verdicts_.front();
  verdicts_.pop_front();
  return true;
}

namespace {

std::string direction_text(std::uint16_t from, const std::string& from_host, std::uint16_t to,
                           const std::vector<std::string>& to_addresses, std::uint16_t sent, base::DurationNs lasted) {
  char seconds[16];
  std::snprintf(seconds, sizeof seconds, "%.1f s", static_cast<double>(lasted) / 1e9);
  std::string addresses;
  for (const std::string& address : to_addresses) addresses += (addresses.empty() ? "" : ", ") + address;
  return "no datagram of rank " + std::to_string(from) + " (" + from_host + ") arrived at rank " + std::to_string(to) +
         " (UDP " + addresses + "): 0 of " + std::to_string(sent * to_addresses.size()) + " in " + seconds;
}

std::string host_of(const std::string& address) { return address.substr(0, address.rfind(':')); }

}  // namespace

std::string blocked_paths_text(std::uint16_t rank, const PathVerdict& verdict, const std::vector<std::string>& local,
                               const std::vector<std::string>& remote) {
  if (!verdict.blocked_from && !verdict.blocked_to) return "";
  std::string text;
  if (verdict.blocked_from) {
    text = direction_text(verdict.peer, host_of(remote.front()), rank, local, verdict.peer_sent, verdict.lasted_ns);
  }
  if (verdict.blocked_to) {
    text += (text.empty() ? "" : "; ") +
            direction_text(rank, host_of(local.front()), verdict.peer, remote, verdict.sent, verdict.lasted_ns);
  }
  const bool is_one = !(verdict.blocked_from && verdict.blocked_to) && local.size() == 1;
  return text + ", although TCP connects: a firewall blocks UDP. Let UDP pass to " +
         (is_one ? "this port" : "these ports") +
         " on the receiving host and between the hosts. The system chooses the ports; paths=[{\"port\": N}] "
         "(MLT_PATHS) sets one per rank";
}

}  // namespace mlt::engine
