// How long a datagram one path to a peer carries, found by padded probes alone (RFC 8899, DPLPMTUD): what the network
// says about it (ICMP) may be forged or filtered, and is not used.
//
// A path that loses data is checked with pairs: a probe as long as a full packet, and behind it a short one, both in
// the control class. A pair counts against the size only if the short probe was answered and the long one was not: a
// path that is stalled, paused or dead answers neither. Ten such pairs in a row mean that the size does not pass, if no
// full packet of data got through meanwhile; one answer means that it does. Then the largest size that passes is
// searched in steps of 8 bytes, four pairs against each that does not.
//
// Random loss: where one datagram in ten is lost each way, a pair counts with probability 0.19, and ten in a row with
// 6e-8, all full packets of that time lost beside. Time: 200 ms, and up to 10 * 40 ms of searching.
//
// Departures from RFC 8899: the search starts from the full size, which nearly always passes, and only after losses, so
// that a path without them carries no probe; its base size is not confirmed before. Absent on purpose: packets, timers
// (the Sender's), what follows from a limit. Owned by the peer's Sender; one object per path.
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
  // Pairs against a size, and the chance that losses explain them.
  static constexpr std::uint32_t kCheckPairs = 10;
  static constexpr std::uint32_t kSearchPairs = 4;
  static constexpr double kCheckChance = 1e-9;
  static constexpr double kSearchChance = 1e-3;
  // From one pair to the next, or twice a round trip.
  static constexpr base::DurationNs kCheckPairNs = 20 * base::kMillisecond;
  static constexpr base::DurationNs kSearchPairNs = 10 * base::kMillisecond;
  // After the third pair in a row without any answer twice as long each time, up to
  static constexpr base::DurationNs kMaxPairNs = base::kSecond;
  static constexpr std::uint32_t kPatientPairs = 2;
  static constexpr std::uint32_t kMaxSilentPairs = 8;  // in a row: then the search is put off
  // Between checks of a path that carries data.
  static constexpr base::DurationNs kCheckAgainNs = 200 * base::kMillisecond;
  // Of one with a limit, whose siblings carry its data; doubles with every check up to
  static constexpr base::DurationNs kRaiseNs = base::kSecond;
  static constexpr base::DurationNs kMaxRaiseNs = 64 * base::kSecond;

  enum class Outcome : std::uint8_t { kNone, kFits, kLimited };

  MtuSearch() = default;
  // `full_bytes`: the longest datagram of the connection.
  explicit MtuSearch(std::uint32_t full_bytes);

  bool is_running() const { return running_; }
  // Losses on the path, which may be due to the size.
  void on_loss() { suspect_ = true; }
  // Whether to start() one, a datagram of `bytes` having just left.
  bool is_due(base::TimeNs now, std::uint32_t bytes) const;
  // Whether to start() one because the limit may have gone.
  bool is_raise_due(base::TimeNs now) const { return !running_ && limit_bytes_ != 0 && now >= raise_at_ns_; }
  // `reported`: packets of the path that the peer has reported; `in_flight`: that it may still report.
  void start(std::uint64_t reported, std::uint64_t in_flight);
  std::uint32_t full_bytes() const { return full_bytes_; }
  // Packets shorter than a full one, trailing probes among them, left on the path.
  void on_short_packets(std::uint32_t count) { short_packets_ += count; }

  // The next probe's size; 0: none is due.
  std::uint32_t next_probe(base::TimeNs now);
  Outcome on_reply(base::TimeNs now, std::uint32_t timestamp_ns, std::uint32_t bytes);
  // Ends a search without a result.
  void put_off(base::TimeNs now);
  // To be called at timeout_ns().
  Outcome on_timeout(base::TimeNs now, std::uint64_t reported);
  base::TimeNs timeout_ns() const { return timeout_ns_; }

  // The longest datagram that passes; 0: no limit is known.
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
  std::uint32_t size_ = 0;          // in question
  std::uint32_t pairs_ = 0;         // of this size
  std::uint32_t short_lost_ = 0;    // of these
  std::uint32_t silent_pairs_ = 0;  // in a row
  std::uint32_t unsent_ = 0;        // probes of the pair that have not left
  bool short_answered_ = false;
  std::uint32_t short_sent_at_ = 0;  // the low 32 bits of the clock, as its reply repeats it
  base::TimeNs timeout_ns_ = base::kNever;
  base::DurationNs rtt_ns_ = 0;  // of the newest reply
  // Reports beyond this tell of a full packet of data that arrived since the start.
  std::uint64_t reported_before_ = 0;
  std::uint64_t short_packets_ = 0;  // since the start
};

}  // namespace mlt::core
