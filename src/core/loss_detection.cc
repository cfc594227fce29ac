#include "core/loss_detection.h"

namespace mlt::core {

namespace {

// Longer than a full queue of most switches takes to drain, and longer than a sender waits before a trailing probe. A
// request for segments that are only late costs a retransmission. Each further wait without arrivals is twice as long,
// so that a stall of seconds causes few of them.
constexpr base::DurationNs kSilenceNs = 20 * base::kMillisecond;
constexpr base::DurationNs kMaxSilenceNs = 640 * base::kMillisecond;
// A lossy path often loses all of a few packets, and resending these costs little. If none of many packets arrived, a
// stall is more likely.
constexpr base::DurationNs kFewSilenceNs = 160 * base::kMillisecond;

}  // namespace

bool LossDetection::names_older_packets(std::span<const std::uint32_t> newest_sent) const {
  for (std::size_t path = 0; path < std::min<std::size_t>(path_count_, newest_sent.size()); ++path) {
    if (last_sequence_[path] == 0) continue;
    if (newest_sent[path] == 0 || is_after(last_sequence_[path], newest_sent[path])) return true;
  }
  return false;
}

void LossDetection::take_newest_sent(std::span<const std::uint32_t> newest_sent, std::uint16_t suspended_paths) {
  // PROTOCOL 7.4.5: The end of a round MUST name, for each path, the newest packet of the transfer: a PROBE in its
  //     list, a packet with END_OF_ROUND by being that packet.
  path_count_ = static_cast<std::uint8_t>(newest_sent.size());
  std::ranges::copy(newest_sent, last_sequence_.begin());
  suspended_paths_ = suspended_paths;
}

std::uint32_t LossDetection::unproven_paths() const {
  std::uint32_t paths = 0;
  for (std::uint8_t path = 0; path < path_count_; ++path) {
    const std::uint32_t last = last_sequence_[path];
    // PROTOCOL 7.4.6: A receiver declares lost what is missing when on every path named that packet, a later one of the
    //     transfer, or a trailing probe sent after it has arrived, and the peer's reorder window has passed since.
    if (last != 0 && (newest_[path] == 0 || is_after(last, newest_[path]))) paths |= 1U << path;
  }
  return paths;
}

// PROTOCOL 7.4.7: A silence, however long, MUST NOT complete the receive within its bound: a path may be slow, a link
//     paused, and more urgent data, to any host, may keep a switch from serving the rest.
base::TimeNs LossDetection::known_lost_ns(base::DurationNs reorder_ns) const {
  if (path_count_ == 0 || unproven_paths() != 0) return base::kNever;
  // PROTOCOL 7.4.9: The reorder window MUST run from the later of the end of the round, the transfer's last packet, and
  //     the trailing probe that completed the evidence.
  return base::after(std::max({last_data_ns_, round_over_ns_, proof_ns_}), reorder_ns);
}

base::TimeNs LossDetection::request_ns(base::DurationNs reorder_ns, std::uint32_t missing_segments) const {
  const base::TimeNs known_ns = known_lost_ns(reorder_ns);
  if (known_ns != base::kNever) return known_ns;
  const base::TimeNs since = std::max(last_data_ns_, round_over_ns_);
  // PROTOCOL 7.4.7: Where only suspended paths are without evidence, it requests once the reorder window has passed.
  if (path_count_ > 0 && (unproven_paths() & ~std::uint32_t{suspended_paths_}) == 0) {
    return base::after(since, reorder_ns);
  }
  // PROTOCOL 7.4.7: Otherwise it requests after a silence of the transfer. That silence is 20 ms, twice as long in
  //     every further round that brings no segment, and bounded by 20 ms for each missing segment, this bound being at
  //     least 160 ms and at most 640 ms
  const base::DurationNs longest = std::clamp(kSilenceNs * missing_segments, kFewSilenceNs, kMaxSilenceNs);
  return base::after(since, std::min(kSilenceNs << std::min(silent_rounds_, 10U), longest));
}

}  // namespace mlt::core
