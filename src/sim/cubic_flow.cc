#include "sim/cubic_flow.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"

namespace mlt::sim {

namespace {

constexpr double kC = 0.4;                               // RFC 9438, section 5
constexpr double kKept = 0.7;                            // beta_cubic
constexpr double kReno = 3 * (1 - kKept) / (1 + kKept);  // alpha_cubic
constexpr std::uint64_t kReordering = 3;
constexpr base::DurationNs kMinTcpTimeoutNs = 200 * base::kMillisecond;
constexpr base::DurationNs kWatchNs = 50 * base::kMillisecond;
// TCP's and IPv4's headers are 24 bytes longer than what Packet counts for UDP's and IPv4's, with time stamps.
constexpr std::uint32_t kHeaderBytes = 24;

}  // namespace

CubicFlow::CubicFlow(Simulator& simulator, std::uint16_t from, std::uint16_t to, double max_window)
    : simulator_(simulator),
      from_(from),
      to_(to),
      flow_(simulator.add_flow([this](const Packet& packet) { on_arrival(packet); })),
      max_window_(max_window) {}

void CubicFlow::start() {
  heard_ns_ = simulator_.now();
  send_more();
  watch();
}

void CubicFlow::on_arrival(const Packet& packet) {
  const std::uint64_t number = base::load_le64(packet.bytes);
  if (packet.to == from_) return on_acknowledged(number);
  ++delivered_;
  send(to_, from_, kHeaderBytes, wire::PacketType::kAck, number);
}

void CubicFlow::on_acknowledged(std::uint64_t number) {
  heard_ns_ = simulator_.now();
  timeouts_ = 0;
  if (number < first_ || sent_[number - first_].is_over) return;
  Sent& sent = sent_[number - first_];
  sent.is_over = true;
  --in_flight_;
  const base::DurationNs rtt_ns = heard_ns_ - sent.at_ns;
  smoothed_rtt_ns_ += smoothed_rtt_ns_ == 0 ? rtt_ns : (rtt_ns - smoothed_rtt_ns_) / 8;
  if (number >= recovery_end_) grow(rtt_ns);
  for (std::uint64_t earlier = first_; earlier + kReordering <= number; ++earlier) {
    if (!sent_[earlier - first_].is_over) on_loss(earlier);
  }
  while (!sent_.empty() && sent_.front().is_over) {
    sent_.pop_front();
    ++first_;
  }
  send_more();
}

// By one packet for every acknowledgement in slow start, then along W_cubic, or Reno's window if that is larger.
void CubicFlow::grow(base::DurationNs rtt_ns) {
  if (window_ < threshold_) {
    window_ = std::min(window_ + 1, max_window_);
    return;
  }
  const base::TimeNs now = simulator_.now();
  if (epoch_ns_ == 0) {
    epoch_ns_ = now;
    window_before_ = std::max(window_before_, window_);
    until_before_s_ = std::cbrt((window_before_ - window_) / kC);
    as_reno_ = window_;
  }
  as_reno_ += (as_reno_ < window_before_ ? kReno : 1) / window_;
  const double t = static_cast<double>(now - epoch_ns_ + rtt_ns) * 1e-9 - until_before_s_;
  const double target = std::clamp(kC * t * t * t + window_before_, window_, 1.5 * window_);
  window_ = std::min(std::max(window_ + (target - window_) / window_, as_reno_), max_window_);
}

void CubicFlow::on_loss(std::uint64_t number) {
  sent_[number - first_].is_over = true;
  --in_flight_;
  ++lost_;
  if (number < recovery_end_) return;
  recovery_end_ = first_ + sent_.size();
  // Fast convergence: a flow that is losing share leaves more to the others.
  window_before_ = window_ < window_before_ ? window_ * (1 + kKept) / 2 : window_;
  window_ = threshold_ = std::max(2.0, window_ * kKept);
  epoch_ns_ = 0;
}

void CubicFlow::send_more() {
  while (static_cast<double>(in_flight_) < window_) {
    send(from_, to_, kPayloadBytes + kHeaderBytes, wire::PacketType::kData, first_ + sent_.size());
    sent_.push_back({simulator_.now(), false});
    ++in_flight_;
  }
}

void CubicFlow::send(std::uint16_t from, std::uint16_t to, std::uint32_t bytes, wire::PacketType type,
                     std::uint64_t number) {
  Network& network = simulator_.network();
  const std::uint32_t index = network.new_packet();
  Packet& packet = network.packet(index);
  std::byte* const content = packet.bytes;
  packet = Packet{};
  packet.bytes = content;
  packet.from = from;
  packet.to = to;
  packet.type = type;
  packet.flow = flow_;
  packet.size = bytes;
  base::store_le64(packet.bytes, number);
  network.send(simulator_.now(), index);
}

// The retransmission timeout: all that is in flight is lost.
void CubicFlow::watch() {
  simulator_.at(simulator_.now() + kWatchNs, [this] {
    // RFC 6298, 5.5: twice as long each time.
    const base::DurationNs timeout_ns = std::max(kMinTcpTimeoutNs, 2 * smoothed_rtt_ns_) << std::min(timeouts_, 8U);
    if (in_flight_ > 0 && simulator_.now() - heard_ns_ > timeout_ns) {
      ++timeouts_;
      for (std::uint64_t number = first_; number < first_ + sent_.size(); ++number) {
        if (!sent_[number - first_].is_over) on_loss(number);
      }
      first_ += sent_.size();
      sent_.clear();
      recovery_end_ = first_;
      window_ = 1;
      window_before_ = 0;
      heard_ns_ = simulator_.now();
      send_more();
    }
    watch();
  });
}

}  // namespace mlt::sim
