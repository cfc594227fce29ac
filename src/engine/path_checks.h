// Finds out whether datagrams pass between this rank and its peers: a firewall may block UDP although TCP connects.
// Section 3.9 of PROTOCOL.md.
//
// The listening side of a connection probes every path; one reply proves both directions. So does a side that needs a
// peer of which no datagram has come for some time. Without a reply, both sides
// probe, and report over TCP what they sent and what arrived: so each knows which direction is blocked, and that the
// other side ran. Absent on purpose: I/O, and what follows from a verdict (PathCheckService). Locking: all functions
// require the loop's lock (engine/driving.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "base/datagram.h"
#include "base/packed_rows.h"
#include "base/time.h"
#include "core/event.h"

namespace mlt::engine {

// Outcome of a check. Blocked in neither direction: datagrams arrived after an earlier verdict.
struct PathVerdict {
  std::uint16_t peer = 0;
  bool blocked_from = false;  // no datagram of the peer arrived here
  bool blocked_to = false;    // no datagram of this rank arrived there
  std::uint16_t sent = 0;     // probes per path
  std::uint16_t peer_sent = 0;
  base::DurationNs lasted_ns = 0;
};

class PathChecks {
 public:
  static constexpr std::size_t kReportBytes = 6;
  static constexpr base::DurationNs kLateTimerNs = 100 * base::kMillisecond;
  static constexpr base::DurationNs kWatchGapNs = 500 * base::kMillisecond;
  using ReportBytes = std::array<std::byte, kReportBytes>;

  // `seed`: makes the timestamps of probes differ from those of the endpoint's own.
  PathChecks(std::uint16_t ranks, std::uint8_t paths, std::uint8_t control_dscp, std::uint32_t seed);

  // A connection with the peer of `up` came up. `is_listener`: this side accepted it, so that the peer is up already
  // and takes datagrams.
  void on_peer_up(const core::PeerUp& up, bool is_listener);
  void on_peer_down(std::uint16_t peer);
  // To be called every kWatchGapNs for every peer. `is_needed`: an operation with it is in progress. `datagram_at`:
  // when its last datagram arrived. Begins a check if none has for `silence_ns`, in which the peer was needed.
  void watch(base::TimeNs now, std::uint16_t peer, bool is_needed, base::TimeNs datagram_at,
             base::DurationNs silence_ns);
  // Begins a check of a peer that is silent, unless one runs or waits or the peer is blocked.
  void request(std::uint16_t peer);
  // When a reply last ended a check of the peer; kNever: never.
  base::TimeNs passed_at(std::uint16_t peer) const { return checks_[peer].passed_at; }
  // The time since the last watch() does not count: no thread watched, or the host was slow.
  void forget_silence();

  // Whether arrivals matter: a check runs or waits, or a peer is blocked.
  bool is_active() const { return !running_.empty() || !waiting_.empty() || blocked_ > 0; }
  // True if the datagram is a reply to a check, which is of no use to the endpoint.
  bool on_datagram(std::span<const std::byte> datagram);
  // A report of the peer, over the control connection.
  void on_report(base::TimeNs now, std::uint16_t from, std::span<const std::byte> bytes);
  // `is_drained`: all datagrams that had arrived by now were passed to on_datagram().
  void on_timeout(base::TimeNs now, bool is_drained);
  base::TimeNs next_timeout() const;

  // Each returns false if there is none.
  bool poll_probe(base::DatagramRun& run);
  bool poll_report(std::uint16_t& peer, ReportBytes& bytes);
  bool poll_verdict(PathVerdict& verdict);

 private:
  struct Check {
    bool is_up = false;
    bool has_begun = false;
    bool is_first = false;
    bool is_running = false;
    bool is_alarmed = false;  // the sides exchange reports
    bool blocked_from = false;
    bool blocked_to = false;
    std::uint64_t local_cookie = 0;
    std::uint64_t remote_cookie = 0;
    base::TimeNs quiet_since = base::kNever;  // watched from then on
    base::TimeNs began = 0;
    base::TimeNs next_probe = base::kNever;
    base::TimeNs next_report = base::kNever;
    base::DurationNs gap_ns = 0;
    std::uint32_t timestamp = 0;               // of this check's probes
    std::uint16_t due = 0;                     // paths on which a probe is to leave now
    std::uint16_t sent = 0;                    // probes per path
    std::uint16_t arrived = 0;                 // paths on which something of the peer arrived
    base::TimeNs peer_full_at = base::kNever;  // when the peer first reported that it sent kMinProbes
    bool none_arrived = false;                 // decided: nothing of the peer arrived
    base::TimeNs passed_at = base::kNever;     // a reply ended the last check
    // The peer's last report.
    bool has_report = false;
    std::uint16_t peer_sent_before = 0;  // probes of the peer that do not count
    std::uint16_t peer_arrived = 0;
    std::uint16_t peer_sent = 0;
    bool peer_none_arrived = false;
    bool is_blocked() const { return blocked_from || blocked_to; }
  };

  const Check& view(std::uint16_t peer) const { return checks_[peer]; }
  base::DurationNs patient(base::DurationNs time) const;
  base::TimeNs next_timer() const;
  void discount_lateness(base::TimeNs now);
  void begin_waiting(base::TimeNs now);
  void begin(base::TimeNs now, std::uint16_t peer);
  void alarm(base::TimeNs now, Check& check, base::DurationNs first_report_ns);
  void stop(std::uint16_t peer);
  void on_arrival(Check& check, std::uint16_t peer, bool is_reply);
  void decide(base::TimeNs now, std::uint16_t peer);
  void conclude(base::TimeNs now, std::uint16_t peer);
  void push_verdict(std::uint16_t peer, base::DurationNs lasted_ns);

  const std::uint16_t all_paths_;
  const std::uint8_t dscp_;
  const std::uint16_t ranks_;  // of the job; at least those for which no time grows
  std::uint32_t next_timestamp_;
  base::TimeNs now_ = 0;                // of the last call that was given it
  std::size_t blocked_ = 0;             // peers that are blocked
  base::PackedArray<Check> checks_;     // [r]: of rank r; made when a connection comes up that is not shared memory
  std::vector<std::uint16_t> running_;  // ranks
  std::deque<std::uint16_t> waiting_;   // peers whose check is to begin
  std::deque<std::uint16_t> reports_;   // peers to which one is due: one for each and 200 ms
  std::deque<PathVerdict> verdicts_;    // up to two for each check
};

// "no datagram of rank 1 (192.0.2.2) arrived at rank 0 (UDP 192.0.2.1:4000) ...", and what to open. The addresses are
// those of the paths, here and at the peer. Empty if nothing is blocked.
std::string blocked_paths_text(std::uint16_t rank, const PathVerdict& verdict, const std::vector<std::string>& local,
                               const std::vector<std::string>& remote);

}  // namespace mlt::engine
