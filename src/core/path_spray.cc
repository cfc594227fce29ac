#include "core/path_spray.h"

#include <algorithm>
#include <cmath>

namespace mlt::core {

// ---- sending -------------------------------------------------------------------------------------------------------

bool PathSpray::any_active() const {
  return std::any_of(paths_out_.begin(), paths_out_.begin() + paths_,
                     [](const PathOut& out) { return !is_out(out) && !out.narrow; });
}

bool PathSpray::any_wide() const {
  return std::any_of(paths_out_.begin(), paths_out_.begin() + paths_, [](const PathOut& out) { return !out.narrow; });
}

void PathSpray::set_narrow(std::uint8_t path, bool narrow) {
  PathOut& out = paths_out_[path];
  if (out.narrow == narrow) return;
  out.narrow = narrow;
  out.credit = 0;
  if (!narrow) out.loss = std::min(out.loss, kRevivedLoss);  // its losses were due to the size
}

std::uint8_t PathSpray::choose(base::TimeNs now, std::uint32_t& limit) {
  if (paths_ == 1) return 0;
  // RECOVERY R2.3.4: If all paths are suspended, a sender MUST use all.
  const bool active = any_active();  // if none is active, all count alike
  const bool wide = any_wide();
  std::uint8_t best = paths_;
  for (std::uint8_t path = 0; path < paths_; ++path) {
    PathOut& out = paths_out_[path];
    // RECOVERY R2.6.6: A path with a limit MUST NOT carry data as long as another path to the peer has none.
    if (wide && out.narrow) continue;
    if (active && is_out(out)) {
      if (now < out.retry_ns) continue;
      // RECOVERY R2.3.3: A suspended path MUST carry nothing but one packet after 20 ms, and after twice as long each
      //     time, up to 640 ms.
      out.retry_ns = base::after(now, out.retry_interval_ns);
      out.retry_interval_ns = std::min(2 * out.retry_interval_ns, kMaxSuspendedProbeNs);
      limit = 1;
      return path;
    }
    if (best == paths_ || out.credit > paths_out_[best].credit) best = path;
  }
  return best;
}

void PathSpray::sent(base::TimeNs now, std::uint8_t path, std::uint32_t packets) {
  PathOut& out = paths_out_[path];
  out.packets_sent += packets;
  out.last_sent_ns = now;
  if (!is_after(out.checkpoint, out.resolved)) {
    out.checkpoint = out.last_sequence;
    out.checkpoint_ns = now;
  }
  if (paths_ == 1) return;
  const bool active = any_active();
  const bool wide = any_wide();
  if ((active && is_out(out)) || (wide && out.narrow)) return;  // a probe: outside the round robin
  std::int64_t total = 0;
  for (std::uint8_t other = 0; other < paths_; ++other) {
    if (active && is_out(paths_out_[other])) continue;
    if (wide && paths_out_[other].narrow) continue;
    const std::int64_t weight = paths_out_[other].weight;
    // RECOVERY R2.2.1: A sender SHOULD spread batches by a smooth weighted round robin that counts packets: with every
    //     packet each path is owed its weight, and the path that is owed most is next.
    paths_out_[other].credit += weight * packets;
    total += weight;
  }
  out.credit -= total * packets;
}

std::uint64_t PathSpray::packets_in_flight() const {
  std::uint64_t packets = 0;
  for (std::uint8_t path = 0; path < paths_; ++path) {
    // PROTOCOL 6.3.1: A sender MUST count as in flight to a peer, over its paths, the packets sent after the highest
    //     one acknowledged or declared lost (R2.3), each counted as a full one.
    packets += packets_between(paths_out_[path].resolved, paths_out_[path].last_sequence);
  }
  return packets;
}

void PathSpray::try_another_control_path(base::TimeNs now) {
  PathOut& failed = paths_out_[control_path_];
  failed.probe_rtt_ns = 0;
  failed.probe_backoff_ns = std::clamp(2 * failed.probe_backoff_ns, kProbeBackoffNs, kMaxProbeBackoffNs);
  failed.probe_backoff_until_ns = base::after(now, failed.probe_backoff_ns);
  retry_resting_paths();
  const bool active = any_active();
  for (std::uint8_t step = 1; step <= paths_; ++step) {
    const auto path = static_cast<std::uint8_t>((control_path_ + step) % paths_);
    if (active && paths_out_[path].suspended) continue;
    control_path_ = path;
    return;
  }
}

void PathSpray::on_probe_reply(std::uint32_t reply_path, base::DurationNs rtt_ns) {
  if (reply_path >= paths_) return;
  PathOut& out = paths_out_[reply_path];
  out.probe_rtt_ns = out.probe_rtt_ns == 0 ? rtt_ns : out.probe_rtt_ns + (rtt_ns - out.probe_rtt_ns) / 4;
  out.probe_backoff_until_ns = out.probe_backoff_ns = 0;
  base_probe_rtt_ns_ = base_probe_rtt_ns_ == 0 ? rtt_ns : std::min(base_probe_rtt_ns_, rtt_ns);
}

// ---- reports of the receiver ---------------------------------------------------------------------------------------

void PathSpray::count_loss(PathOut& out, std::int64_t packets, std::int64_t lost) {
  if (packets == 0) {
    out.loss += static_cast<double>(lost) * out.loss_gain;
  } else {
    const double gain = std::min(1.0, static_cast<double>(packets) * out.loss_gain);
    out.loss += gain * (static_cast<double>(lost) / static_cast<double>(packets) - out.loss);
  }
  // RECOVERY R1.5.1: The estimate of R2.2.2 swings by a third at a loss of 1 %. A sender SHOULD take for parity the
  //     mean loss of the last 8,192 packets of the path, or of fewer while there are no more, if that is larger.
  const auto lasting = std::min<std::int64_t>(kLastingHorizon, out.lasting_packets + packets);
  if (lasting > 0) {
    out.lasting_packets = static_cast<std::uint32_t>(lasting);
    const double share = std::min(1.0, static_cast<double>(packets) / static_cast<double>(lasting));
    out.lasting_loss += static_cast<double>(lost) / static_cast<double>(lasting) - share * out.lasting_loss;
    out.lasting_loss = std::clamp(out.lasting_loss, 0.0, 1.0);
  }
  // RECOVERY R2.2.2: It is zero once it is below 10^-6, at the latest some 4,000 packets after a single loss.
  out.loss = out.loss < kMinLoss ? 0.0 : std::min(out.loss, 1.0);
}

// Sets the next checkpoint once the last one has passed.
void PathSpray::set_checkpoint(PathOut& out) {
  if (is_after(out.checkpoint, out.resolved)) return;
  out.checkpoint = out.last_sequence;
  out.checkpoint_ns = out.last_sent_ns;
}

bool PathSpray::on_block(std::uint8_t path, const wire::AckBlock& block, base::TimeNs sent_ns) {
  PathOut& out = paths_out_[path];
  const std::uint32_t arrived = block.received_packets - out.reported;
  if (arrived >= 0x8000'0000U) return false;  // an older report that was overtaken
  out.reported = block.received_packets;
  out.packets_reported += arrived;
  delivered_packets_ += arrived;
  std::uint32_t packets = 0;
  // PROTOCOL 6.3.4: The highest sequence number of an acknowledgement block resolves everything up to it.
  // Ignore sequence numbers above those sent; 0 means that nothing arrived yet.
  if (block.highest_sequence != 0 && is_after(block.highest_sequence, out.resolved) &&
      !is_after(block.highest_sequence, out.last_sequence)) {
    packets = packets_between(out.resolved, block.highest_sequence);
    out.resolved = block.highest_sequence;
    set_checkpoint(out);
  }
  if (packets > 0 || arrived > 0) {
    // RECOVERY R2.2.2: A sender SHOULD take as lost the packets that an acknowledgement block covers and that did not
    //     arrive: sent up to its highest sequence number, less received.
    // Negative if packets arrived after all that counted as lost: reordered, or declared lost too early.
    count_loss(out, packets, std::int64_t{packets} - std::int64_t{arrived});
    if (packets > arrived) lossy_paths_ |= 1U << path;
    // RECOVERY R2.3.3: An acknowledgement of packets sent before the suspension does not: the report may be late.
    if (!out.suspended || is_after(block.highest_sequence, out.suspended_sequence)) resume(out);
  }
  if (sent_ns != base::kNever) newest_arrived_ns_ = std::max(newest_arrived_ns_, sent_ns);
  return packets > 0;
}

void PathSpray::resume(PathOut& out) {
  out.lost_packets = out.lost_times = 0;
  if (!out.suspended) return;
  out.suspended = false;
  out.loss = std::min(out.loss, kRevivedLoss);
  out.credit = 0;
  ++changes_.resumed;
}

void PathSpray::begin_retries(PathOut& out, base::TimeNs from) {
  out.retry_interval_ns = 2 * kSuspendedProbeNs;
  out.retry_ns = base::after(from, kSuspendedProbeNs);
}

void PathSpray::declare_lost(PathOut& out, std::uint32_t until) {
  const std::uint32_t packets = packets_between(out.resolved, until);
  if (packets == 0) return;
  // The losses count towards a suspension only if its siblings delivered meanwhile.
  if (newest_arrived_ns_ > out.checkpoint_ns) {
    out.lost_packets += packets;
    ++out.lost_times;
  }
  count_loss(out, packets, packets);
  lossy_paths_ |= 1U << (&out - paths_out_.data());
  out.resolved = until;
  set_checkpoint(out);
  // RECOVERY R2.3.2: A sender MUST suspend a path when at least four packets, on at least two occasions, were declared
  //     lost on it while its siblings delivered, and nothing arrived on it between (paths_suspended).
  if (out.suspended || paths_ == 1 || out.lost_packets < kSuspendPackets || out.lost_times < 2) return;
  out.suspended = true;
  out.suspended_sequence = out.last_sequence;
  begin_retries(out, out.last_sent_ns);
  ++changes_.suspended;
}

// Without a reply over the prompt paths a late one is worth a try: what arrives there shows that the others are dead.
void PathSpray::retry_resting_paths() {
  for (PathOut& out : paths_out_) {
    if (out.resting && !out.suspended) out.retry_ns = 0;
  }
}

void PathSpray::declare_all_lost() {
  retry_resting_paths();
  for (std::uint8_t path = 0; path < paths_; ++path) declare_lost(paths_out_[path], paths_out_[path].last_sequence);
}

// Of the paths that may carry data: the measurement of another is old.
base::DurationNs PathSpray::best_rtt_ns() const {
  base::DurationNs best = 0;
  const bool wide = any_wide();
  for (std::uint8_t path = 0; path < paths_; ++path) {
    const PathOut& out = paths_out_[path];
    const base::DurationNs rtt = out.rtt.smoothed_ns();
    if (rtt > 0 && !out.suspended && !(wide && out.narrow)) best = best == 0 ? rtt : std::min(best, rtt);
  }
  return best;
}

bool PathSpray::after_report(base::TimeNs now) {
  if (paths_ == 1) return false;
  const base::DurationNs best = best_rtt_ns();
  bool found_lost = false;
  for (std::uint8_t path = 0; path < paths_; ++path) {
    PathOut& out = paths_out_[path];
    if (!is_after(out.checkpoint, out.resolved)) continue;
    const bool known = out.rtt.smoothed_ns() > 0;
    const base::DurationNs slower = std::max<base::DurationNs>(0, out.rtt.smoothed_ns() - best);
    // RECOVERY R2.3.1: A sender MUST declare lost the packets in flight on a path once a packet is known to have
    //     arrived that left more than the path's lateness after them: they leave the window.
    const base::DurationNs lateness = known ? slower + 4 * out.rtt.variation_ns() + kLatenessNs : kUnknownLatenessNs;
    if (newest_arrived_ns_ <= base::after(out.checkpoint_ns, lateness)) continue;
    declare_lost(out, out.checkpoint);
    found_lost = true;
  }
  renew_weights(now);
  renew_control_path(now);
  return found_lost;
}

void PathSpray::renew_weights(base::TimeNs now) {
  double best_loss = 1.0;
  for (std::uint8_t path = 0; path < paths_; ++path) {
    if (!paths_out_[path].suspended) best_loss = std::min(best_loss, paths_out_[path].loss);
  }
  // RECOVERY R2.2.4: A sender SHOULD tolerate the loss of the best path plus the larger of half of it and 0.5 %, and
  //     twice the delay of the best path plus 50 us. What all paths have in common is congestion, and changes no
  //     weight.
  const double tolerated_loss = best_loss + std::max(best_loss / 2, kLossMargin);
  const double tolerated_rtt = static_cast<double>(2 * best_rtt_ns() + kDelayMarginNs);
  max_weight_ = 0;
  const bool wide = any_wide();
  for (std::uint8_t path = 0; path < paths_; ++path) {
    PathOut& out = paths_out_[path];
    double share = 1.0;
    if (out.loss > tolerated_loss) share = kHalvingLoss / (kHalvingLoss + out.loss - tolerated_loss);
    const auto rtt = static_cast<double>(out.rtt.smoothed_ns());
    const double by_delay = rtt > tolerated_rtt ? tolerated_rtt * tolerated_rtt / (rtt * rtt) : 1.0;
    share *= by_delay;
    // RECOVERY R2.2.5: A path whose delay alone makes its weight less than 32 SHOULD rest: it carries one packet after
    //     20 ms, and after twice as long each time, up to 640 ms, until one of them is less late.
    // Without a sample since the measurements began anew it stays as it is; few samples may be late by chance.
    bool resting = out.resting;
    if (rtt > 0 && (out.resting || out.rtt.samples() >= kLatenessSamples))
      resting = by_delay * kFullWeight < kMinWeight;
    if (resting && !out.resting && !out.suspended) begin_retries(out, now);
    if (resting != out.resting) out.credit = 0;
    out.resting = resting;
    // RECOVERY R2.2.3: A weight SHOULD be 1,024 for a path as good as its best sibling.
    const auto weight = std::max(kMinWeight, static_cast<std::uint32_t>(share * kFullWeight));
    if (weight != out.weight) {
      out.weight = weight;
      out.loss_gain = 1 / (kLossHorizon * std::sqrt(static_cast<double>(weight) / kFullWeight));
    }
    if (!is_out(out) && !(wide && out.narrow)) max_weight_ = std::max(max_weight_, weight);
  }
}

bool PathSpray::is_typical(const PathOut& out) const { return !is_out(out) && 2 * out.weight >= max_weight_; }

// Keeps the control path while it is good enough. Otherwise takes the path with the lowest data delay, but not one on
// which replies to probes are known to be slow.
void PathSpray::renew_control_path(base::TimeNs now) {
  if (leave_late_control_path(now)) return;
  const auto usable = [&](const PathOut& out) { return is_typical(out) && now >= out.probe_backoff_until_ns; };
  // RECOVERY R2.4.1: Probes, except trailing ones (4.7.5), MUST take the control path: one that works and is quick, as
  //     the sender knows from data and from replies.
  if (usable(paths_out_[control_path_]) && is_quick(paths_out_[control_path_])) return;
  std::uint8_t best = paths_;
  const auto is_better = [&](const PathOut& a, const PathOut& b) {
    if (is_quick(a) != is_quick(b)) return is_quick(a);
    if (!is_quick(a)) return a.probe_rtt_ns < b.probe_rtt_ns;
    return a.rtt.smoothed_ns() < b.rtt.smoothed_ns();
  };
  for (std::uint8_t path = 0; path < paths_; ++path) {
    if (!usable(paths_out_[path])) continue;
    if (best == paths_ || is_better(paths_out_[path], paths_out_[best])) best = path;
  }
  if (best < paths_) control_path_ = best;
}

// Of replies to probes; also while nothing is known.
bool PathSpray::is_quick(const PathOut& out) const {
  return out.probe_rtt_ns <= 2 * base_probe_rtt_ns_ + kDelayMarginNs;
}

bool PathSpray::leave_late_control_path(base::TimeNs now) {
  const base::DurationNs best_ns = best_rtt_ns();
  const PathOut& control = paths_out_[control_path_];
  // RECOVERY R2.4.4: A sender SHOULD leave a control path whose round trip is more than 1.5 times the best path's plus
  //     50 us, for the best one that answers probes quickly, but not again within 1 s.
  if (control.rtt.smoothed_ns() <= best_ns + best_ns / 2 + kDelayMarginNs) return false;
  if (now < control_kept_until_ns_ || control.rtt.samples() < kLatenessSamples) return false;
  for (std::uint8_t path = 0; path < paths_; ++path) {
    const PathOut& out = paths_out_[path];
    if (is_out(out) || out.narrow || out.rtt.smoothed_ns() != best_ns || out.rtt.samples() < kLatenessSamples) continue;
    if (!is_quick(out) || now < out.probe_backoff_until_ns) continue;
    control_path_ = path;
    control_kept_until_ns_ = base::after(now, kControlPathNs);
    return true;
  }
  return false;
}

base::DurationNs PathSpray::on_sample(std::uint8_t path, std::uint32_t reply_path, base::DurationNs rtt_ns) {
  PathOut& out = paths_out_[path];
  if (paths_ == 1) {
    out.rtt.on_sample(rtt_ns);
    return rtt_ns;
  }
  // RECOVERY R2.5.3: A sender MUST compare only samples whose replies took the same path back: with a new control path
  //     the measurements of all paths start anew.
  if (reply_path != reply_path_) {
    if (reply_path != control_path_) return 0;  // sampled before the control path changed, or over another path
    reply_path_ = reply_path;
    for (PathOut& each : paths_out_) each.rtt = RttEstimator{};
  }
  // RECOVERY R2.2.5: Of a resting path only the newest sample counts.
  if (out.resting) out.rtt.restart_average();
  out.rtt.on_sample(rtt_ns);
  base_rtt_ns_ = base_rtt_ns_ == 0 ? rtt_ns : std::min(base_rtt_ns_, rtt_ns);
  if (!is_typical(out)) return 0;
  const auto queue_ns = [](const PathOut& of) { return of.rtt.smoothed_ns() - of.rtt.min_ns(); };
  base::DurationNs shortest = queue_ns(out);
  for (std::uint8_t other = 0; other < paths_; ++other) {
    const PathOut& sibling = paths_out_[other];
    if (sibling.rtt.smoothed_ns() > 0 && is_typical(sibling)) shortest = std::min(shortest, queue_ns(sibling));
  }
  // RECOVERY R2.5.2: A path that is suspended, has less than half of the largest weight, or a queue of more than twice
  //     the shortest and 50 us, MUST NOT give the rate controller samples: one slow path must not slow the others.
  if (queue_ns(out) > 2 * shortest + kDelayMarginNs) return 0;
  // RECOVERY R2.5.1: A sender MUST subtract a path's constant extra delay from its samples before the rate controller
  //     gets them.
  return base_rtt_ns_ + (rtt_ns - out.rtt.min_ns());
}

PathSpray::Changes PathSpray::take_changes() {
  const Changes changes = changes_;
  changes_ = {};
  return changes;
}

PathView PathSpray::view(std::uint8_t path) const {
  const PathOut& out = paths_out_[path];
  PathView view;
  view.packets_sent = out.packets_sent;
  view.packets_reported = out.packets_reported;
  view.loss = out.loss;
  view.rtt_ns = out.rtt.smoothed_ns();
  view.weight = is_out(out) || out.narrow ? 0 : out.weight;
  view.suspended = out.suspended;
  view.resting = out.resting;
  view.narrow = out.narrow;
  view.in_flight = packets_between(out.resolved, out.last_sequence);
  return view;
}

}  // namespace mlt::core
