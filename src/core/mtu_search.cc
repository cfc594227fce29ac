#include "core/mtu_search.h"

#include <algorithm>
#include <cmath>

namespace mlt::core {

MtuSearch::MtuSearch(std::uint32_t full_bytes) : full_bytes_(std::min(full_bytes, kLongestProbeBytes)) {}

bool MtuSearch::is_due(base::TimeNs now, std::uint32_t bytes) const {
  // RECOVERY R2.6.1: A sender SHOULD check a path that has lost a packet, when it sends there one of more than 544
  //     bytes, header included. It MUST NOT check a path again within 200 ms.
  if (running_ || bytes <= kAlwaysCarriedBytes || full_bytes_ <= kAlwaysCarriedBytes) return false;
  return (suspect_ || limit_bytes_ != 0) && now >= not_before_ns_;
}

void MtuSearch::start(std::uint64_t reported, std::uint64_t in_flight) {
  running_ = true;
  suspect_ = false;
  silent_pairs_ = 0;
  rtt_ns_ = 0;
  short_packets_ = 0;
  reported_before_ = reported + in_flight;
  passes_ = kAlwaysCarriedBytes;
  too_long_ = full_bytes_ + 1;
  begin_size(full_bytes_);
}

void MtuSearch::begin_size(std::uint32_t bytes) {
  size_ = bytes;
  pairs_ = 0;
  short_lost_ = 0;
  begin_pair();
}

void MtuSearch::begin_pair() {
  unsent_ = 2;
  short_answered_ = false;
  timeout_ns_ = base::kNever;
}

// RECOVERY R2.6.4: A pair MUST follow the one before after 20 ms, or 10 ms once the full size has failed, or after
//     twice the round trip of the newest reply if that is longer.
base::DurationNs MtuSearch::pair_ns() const {
  const base::DurationNs once = std::max(is_search() ? kSearchPairNs : kCheckPairNs, 2 * rtt_ns_);
  const std::uint32_t doublings = silent_pairs_ - std::min(silent_pairs_, kPatientPairs);
  return std::min(once << doublings, std::max(kMaxPairNs, once));
}

std::uint32_t MtuSearch::next_probe(base::TimeNs now) {
  if (unsent_ == 0) return 0;
  // RECOVERY R2.6.2: A check MUST send pairs: an MTU_PROBE of the size in question, and behind it on the same path one
  //     of 24 bytes.
  if (--unsent_ == 1) return size_;
  short_sent_at_ = static_cast<std::uint32_t>(now);
  timeout_ns_ = base::after(now, pair_ns());
  return kShortProbeBytes;
}

MtuSearch::Outcome MtuSearch::on_reply(base::TimeNs now, std::uint32_t timestamp_ns, std::uint32_t bytes) {
  if (!running_ || bytes > full_bytes_) return Outcome::kNone;
  const std::uint32_t rtt = static_cast<std::uint32_t>(now) - timestamp_ns;
  if (rtt < 0x8000'0000U) rtt_ns_ = rtt;
  if (bytes <= kShortProbeBytes) {
    if (unsent_ == 0 && timestamp_ns == short_sent_at_) short_answered_ = true;
    return Outcome::kNone;
  }
  // RECOVERY R2.6.3: A sender MUST take one reply to an MTU_PROBE as proof that its size passes.
  if (bytes == full_bytes_) return end(now, Outcome::kFits);
  passes_ = std::max(passes_, bytes);
  if (bytes >= too_long_) too_long_ = full_bytes_;  // a late reply to a size that was considered too long
  if (bytes < size_) return Outcome::kNone;
  return next_size(now);
}

void MtuSearch::postpone(base::TimeNs now) {
  if (!running_) return;
  suspect_ = true;
  end(now, Outcome::kNone);
}

// One size is decided: tests the next one or ends the search.
MtuSearch::Outcome MtuSearch::next_size(base::TimeNs now) {
  // RECOVERY R2.6.5: Once the full size has failed, a sender MUST search the largest size that passes in steps of 8
  //     bytes, from 544 bytes on.
  if (too_long_ - passes_ <= kStepBytes) return end(now, Outcome::kLimited);
  const std::uint32_t steps = (too_long_ - passes_) / kStepBytes;
  begin_size(passes_ + std::max(1U, steps / 2) * kStepBytes);
  return Outcome::kNone;
}

MtuSearch::Outcome MtuSearch::on_timeout(base::TimeNs now, std::uint64_t reported) {
  if (!running_ || now < timeout_ns_) return Outcome::kNone;
  // RECOVERY R2.6.3: For the full size it MUST also take as proof a report that more packets arrived on the path than
  //     were in flight when the check began plus shorter ones sent since: a full packet of data was among them.
  if (reported > reported_before_ + short_packets_) return end(now, Outcome::kFits);
  ++pairs_;
  if (short_answered_) {
    silent_pairs_ = 0;
  } else {
    ++short_lost_;
    // RECOVERY R2.6.4: After eight in a row without any reply a sender MUST put the check off.
    if (++silent_pairs_ == kMaxSilentPairs) {
      postpone(now);
      return Outcome::kNone;
    }
  }
  if (!is_too_long()) {
    begin_pair();
    return Outcome::kNone;
  }
  too_long_ = size_;
  return next_size(now);
}

// RECOVERY R2.6.3: It MUST NOT declare a size too long before n pairs without a reply to the long probe. There n is at
//     least 10, and ((short probes without a reply + 1) / (n + 2))^n at most 10^-9; once the full size has failed, n is
//     at least 4, and that power at most 10^-3.
bool MtuSearch::is_too_long() const {
  if (!short_answered_ || pairs_ < (is_search() ? kSearchPairs : kCheckPairs)) return false;
  const double lost = (short_lost_ + 1.0) / (pairs_ + 2.0);
  return std::pow(lost, pairs_) <= (is_search() ? kSearchChance : kCheckChance);
}

MtuSearch::Outcome MtuSearch::end(base::TimeNs now, Outcome outcome) {
  running_ = false;
  unsent_ = 0;
  timeout_ns_ = base::kNever;
  // RECOVERY R2.6.1: It MUST NOT check a path again within 200 ms.
  not_before_ns_ = base::after(now, kCheckAgainNs);
  if (outcome == Outcome::kFits) {
    limit_bytes_ = 0;
    raise_wait_ns_ = 0;
  }
  if (outcome == Outcome::kLimited) {
    limit_bytes_ = passes_;
    raise_wait_ns_ = std::clamp(2 * raise_wait_ns_, kRaiseNs, kMaxRaiseNs);
  }
  // RECOVERY R2.6.7: A sender MUST check a path that carries no data because of its limit again after 1 s, and after
  //     twice as long each time, up to 64 s.
  raise_at_ns_ = base::after(now, raise_wait_ns_);
  return outcome;
}

}  // namespace mlt::core
