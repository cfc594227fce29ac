// Finds the max datagram size of one path to a peer by padded probes (RFC 8899, DPLPMTUD). ICMP messages may be forged
// or filtered, and are ignored.
//
// A path that loses data is checked with pairs: a probe as long as a full packet, followed by a short one, both in the
// control class. A pair counts against the size only if the short probe is answered and the long one is not: a path
// that is stalled, paused or dead answers neither. Ten such pairs in a row show that the size does not pass, unless a
// full data packet arrived meanwhile; one reply shows that it does. The search for the largest size that passes then
// takes steps of 8 bytes, with four pairs against each size that does not.
//
// Random loss: if one datagram in ten is lost in each direction, a pair counts with probability 0.19, and ten in a row
// with 6e-8, and only if all full packets of that time are lost too. Time: 200 ms for the check and up to 10 * 40 ms
// for the search.
//
// Departures from RFC 8899: the search starts from the full size, which nearly always passes, and only after losses, so
// that a path without losses carries no probes; the base size is not confirmed first. Absent on purpose: packets and
// timers (MtuChecks), the use of a limit. Owned by MtuChecks; one object per peer and path.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace mlt::core {

class MtuSearch {
 public:
  // Datagrams up to this size are not checked: an IPv4 packet of 576 bytes passes everywhere. A multiple of kStepBytes.
  static constexpr std::uint32_t kAlwaysCarriedBytes = 544;
  static constexpr std::uint32_t kLongestProbeBytes = 9'000;
  static constexpr std::uint32_t kShortProbeBytes = 24;
  static constexpr std::uint32_t kStepBytes = 8;  // of the search
  // Pairs that must count against a size before it is rejected.
  static constexpr std::uint32_t kCheckPairs = 10;
  static constexpr std::uint32_t kSearchPairs = 4;
  static constexpr double kCheckChance = 1e-9;
  static constexpr double kSearchChance = 1e-3;
  // Min time between pairs; at least twice a round trip.
  static constexpr base::DurationNs kCheckPairNs = 20 * base::kMillisecond;
  static constexpr base::DurationNs kSearchPairNs = 10 * base::kMillisecond;
  // Max time between pairs. After kPatientPairs pairs without any reply, each interval doubles.
  static constexpr base::DurationNs kMaxPairNs = base::kSecond;
  static constexpr std::uint32_t kPatientPairs = 2;
  static constexpr std::uint32_t kMaxSilentPairs = 8;  // in a row; then the search is postponed
  // Interval between checks of a path that carries data.
  static constexpr base::DurationNs kCheckAgainNs = 200 * base::kMillisecond;
  // Interval between checks of a path with a limit, whose siblings carry its data. Doubles with every check up to
  // kMaxRaiseNs.
  static constexpr base::DurationNs kRaiseNs = base::kSecond;
  static constexpr base::DurationNs kMaxRaiseNs = 64 * base::kSecond;

  enum class Outcome : std::uint8_t { kNone, kFits, kLimited };

  MtuSearch() = default;
  // `full_bytes`: max datagram size of the connection.
  explicit MtuSearch(std::uint32_t full_bytes);

  bool is_running() const { return running_; }
  // Records losses on the path, which may be due to the size.
  void on_loss() { suspect_ = true; }
  // Whether to call start(), after a datagram of `bytes` left.
  bool is_due(base::TimeNs now, std::uint32_t bytes) const;
  // Whether to call start() because the limit may no longer apply.
  bool is_raise_due(base::TimeNs now) const { return !running_ && limit_bytes_ != 0 && now >= raise_at_ns_; }
  // `reported`: packets of the path that the peer has reported; `in_flight`: packets that it may still report.
  void start(std::uint64_t reported, std::uint64_t in_flight);
  std::uint32_t full_bytes() const { return full_bytes_; }
  // Shorter packets than full ones, including trailing probes, left on the path.
  void on_short_packets(std::uint32_t count) { short_packets_ += count; }

  // The next probe's size; 0: none is due.
  std::uint32_t next_probe(base::TimeNs now);
  Outcome on_reply(base::TimeNs now, std::uint32_t timestamp_ns, std::uint32_t bytes);
  // Ends a search without a result; it starts again later.
  void postpone(base::TimeNs now);
  // Must be called at timeout_ns().
  Outcome on_timeout(base::TimeNs now, std::uint64_t reported);
  base::TimeNs timeout_ns() const { return timeout_ns_; }

  // The largest datagram that passes; 0: no limit is known.
  std::uint32_t limit_bytes() const { return limit_bytes_; }

 private:
  Outcome end(base::TimeNs now, Outcome outcome);
  Outcome next_size(base::TimeNs now);
  bool is_too_long() const;
  void begin_size(std::uint32_t bytes);
  void begin_pair();
  bool is_search() const { return size_ < full_bytes_; }
  base::DurationNs pair_ns() const;

  std::uint32_t full_bytes_ = 0;
  std::uint32_t limit_bytes_ = 0;
  bool suspect_ = false;
  base::TimeNs not_before_ns_ = 0;
  base::TimeNs raise_at_ns_ = 0;
  base::DurationNs raise_wait_ns_ = 0;

  bool running_ = false;
  std::uint32_t passes_ = 0;        // the longest size that passed in this search
  std::uint32_t too_long_ = 0;      // the shortest that did not
  std::uint32_t size_ = 0;          // being tested
  std::uint32_t pairs_ = 0;         // of this size
  std::uint32_t short_lost_ = 0;    // of these
  std::uint32_t silent_pairs_ = 0;  // in a row
  std::uint32_t unsent_ = 0;        // probes of the pair that have not left
  bool short_answered_ = false;
  std::uint32_t short_sent_at_ = 0;  // low 32 bits of the send time, echoed in its reply
  base::TimeNs timeout_ns_ = base::kNever;
  base::DurationNs rtt_ns_ = 0;  // of the newest reply
  // More reports than this mean that a full data packet arrived since the start.
  std::uint64_t reported_before_ = 0;
  std::uint64_t short_packets_ = 0;  // since the start
};

}  // namespace mlt::core
