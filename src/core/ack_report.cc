#include "core/ack_report.h"

#include <algorithm>

namespace mlt::core {

namespace {

// Max ACK delay of a usable sample: longer than a busy host delays a reply.
constexpr DurationNs kLongestHoldNs = base::kMillisecond;

}  // namespace

AckReport::AckReport(Shared& shared, TimeNs now, TimeNs arrival_ns, std::uint16_t from, std::uint32_t reply_sequence)
    : shared_(shared),
      now_(now),
      arrival_ns_(arrival_ns),
      from_(from),
      reply_path_(wire::reply_path(reply_sequence)),
      reply_(reply_delay(wire::reply_made_ns(reply_sequence))) {}

ReplyDelay AckReport::reply_delay(std::uint32_t made_ns) {
  Peer& peer = shared_.peers[from_];
  const double packets = ReplyWait::kSurePackets * (peer.segment_bytes + MLT_DATA_HEADER_BYTES);
  const DurationNs sure_ns =
      base::serialisation_ns(static_cast<std::uint64_t>(packets), peer.rate->rate_bytes_per_second());
  return peer.reply_wait.on_reply(arrival_ns_, reply_path_, made_ns, sure_ns);
}

// A wait as long as the whole round trip is a clock that jumped.
DurationNs AckReport::without_wait(DurationNs network_ns) const {
  return reply_.wait_ns < network_ns ? network_ns - reply_.wait_ns : network_ns;
}

void AckReport::take_block(std::uint8_t path, const wire::AckBlock& block, bool fresh) {
  Peer& peer = shared_.peers[from_];
  TimeNs sent_ns = base::kNever;
  if (fresh) {
    const std::uint32_t age = static_cast<std::uint32_t>(now_) - block.echo_timestamp_ns;
    // Network time from arrival stamps, for the rate. A slow host is no congestion; the window bounds it.
    const std::uint32_t network = static_cast<std::uint32_t>(arrival_ns_) - block.echo_timestamp_ns - block.hold_ns;
    // PROTOCOL 6.8.2: A sender MUST ignore a sample of 2^31 ns or more: it is a stale echo or a clock that jumped.
    if (age < 0x8000'0000U && network < 0x8000'0000U &&
        block.hold_ns < 0x8000'0000U) {  // else a stale echo, or a clock that jumped
      const DurationNs rtt_ns = std::max<DurationNs>(1, network);
      sent_ns = now_ - age;
      // PROTOCOL 6.8.1: On ECHO a sender MUST take two samples: the reply time, now less the echoed timestamp, for
      //     timeouts, of the first block only; and the network time, the arrival of the datagram less the echoed
      //     timestamp less hold, for the rate and the estimates of the path (R2.5).
      // Round trip including both hosts' threads, for the timers. The other blocks of an ACK were delayed.
      // PROTOCOL 6.8.2: An echo that was held for more than 1 ms gives neither sample: the queue that it saw is gone,
      //     and nothing was there that needed a reply.
      // With a steady flow of packets the delay is short: the newest is echoed.
      if (block.hold_ns <= kLongestHoldNs) {
        if (first_) peer.rtt.on_sample(age);
        const DurationNs rate_sample_ns = peer.spray.on_sample(path, reply_path_, rtt_ns);
        if (rate_sample_ns_ == 0) rate_sample_ns_ = rate_sample_ns;
      }
    }
  }
  first_ = false;
  if (peer.spray.on_block(path, block, sent_ns)) progress_ = true;
}

void AckReport::finish(std::uint32_t probe_timestamp_ns, MtuChecks& mtu_checks) {
  Peer& peer = shared_.peers[from_];
  const std::uint64_t delivered_bytes =
      peer.spray.take_delivered_packets() * (peer.segment_bytes + MLT_DATA_HEADER_BYTES);
  // RECOVERY R1.2.15: The reports of R1.2.12 count as having arrived so much earlier.
  peer.rate->on_delivered(arrival_ns_ - reply_.wait_ns, delivered_bytes);
  // PROTOCOL 23.3.2: A sender MUST NOT control the rate to such a peer: a round trip shows how busy the processes are,
  //     not a network.
  // RECOVERY R1.2.15: A sender MUST subtract from `rtt` the wait of the reply that reports it.
  if (rate_sample_ns_ > 0 && !peer.holds_back) {
    peer.rate->on_rtt_sample(now_, without_wait(rate_sample_ns_), reply_);
  }
  peer.path_window.on_report(delivered_bytes, peer.rate->rate_bytes_per_second(), peer.rate->base_rtt_ns());
  if (probe_timestamp_ns != 0) {
    peer.probe_turns.on_reply();
    // PROTOCOL 9.1.6: Where the newest reply to a probe came over the control connection, a sender MUST send each
    //     further probe of the reply timer and of a stalled window to that peer both ways from the first on, until one
    //     with a probe timestamp comes as a datagram.
    peer.replies_by_control = reply_path_ == wire::kNoReplyPath;
    const std::uint32_t rtt = static_cast<std::uint32_t>(now_) - probe_timestamp_ns;
    // PROTOCOL 6.8.3: A sender MUST take the probe timestamp of a reply, if it is not zero, as a sample of the reply
    //     time.
    if (rtt < 0x8000'0000U && rtt > 0) {
      peer.rtt.on_sample(rtt);
      peer.spray.on_probe_reply(reply_path_, rtt);
    }
    const std::uint32_t network = static_cast<std::uint32_t>(arrival_ns_) - probe_timestamp_ns;
    if (network < 0x8000'0000U && network > 0) peer.rate->on_base_sample(now_, without_wait(network));
    if (peer.window.is_resolved_by(now_, rtt)) {
      // PROTOCOL 6.3.6: A sender MUST take a reply to a probe that was sent after the window had stalled as proof that
      //     everything sent before is resolved: nothing is in flight any more.
      // The window was full for a whole timeout, nothing was sent since, and the peer replied to a probe sent after
      // that: packets that it has not received by now are lost.
      peer.spray.declare_all_lost();
      progress_ = true;
    }
  }
  if (peer.spray.after_report(now_)) progress_ = true;
  mtu_checks.on_loss(from_, peer.spray.take_lossy_paths());
  const PathSpray::Changes changes = peer.spray.take_changes();
  shared_.counters.add(Counter::k_paths_suspended, changes.suspended);
  shared_.counters.add(Counter::k_paths_resumed, changes.resumed);
  if (!progress_) return;
  if (peer.window.on_progress(shared_.counters)) shared_.timers.cancel(shared_.peer_timer(from_));
}

}  // namespace mlt::core
