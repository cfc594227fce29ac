#include "engine/control_service.h"

#include <poll.h>

#include <algorithm>

#include "base/time.h"
#include "io/os/clock.h"

namespace mlt::engine {

namespace {

using base::TimeNs;

// Max time that a closed context waits for its peers to end the connections: its last frames are then in the buffers of
// their hosts. TCP repeats what was lost after about 0.2, 0.4, 0.9, 1.7, 3.4 and 6.8 s.
constexpr base::DurationNs kGoodbyeNs = base::kSecond;
constexpr base::DurationNs kGoodbyeLostNs = 7 * base::kSecond;
constexpr base::DurationNs kChannelPollNs = 50 * base::kMicrosecond;

// Of a rank whose operations have ended.
class IgnoringSink final : public io::ControlSink {
 public:
  void on_peer_up(const io::PeerHello&) override {}
  void on_message(std::uint16_t, std::uint8_t, std::span<const std::byte>) override {}
  void on_peer_down(std::uint16_t, io::PeerDownCause, const std::string&) override {}
  void on_refused(const io::SocketAddress&, const std::string&) override {}
  bool needs(std::uint16_t) const override { return false; }
  base::TimeNs datagram_at(std::uint16_t) const override { return 0; }
  void on_quiet(std::uint16_t) override {}
};

}  // namespace

// PROTOCOL 3.7.7: It MUST show every byte of the text that is not printable ASCII as a question mark, and at most 1,024
//     bytes.
std::string failure_reason(std::span<const std::byte> payload) {
  std::string text;
  for (const std::byte byte : payload.first(std::min(payload.size(), kMaxFailureBytes))) {
    const char c = static_cast<char>(byte);
    text += c >= ' ' && c <= '~' ? c : '?';
  }
  return text;
}

// The control connections are idle most of the time: they are read when readable or due, which is checked at most every
// kChannelPollNs while data flows.
bool ControlService::service(TimeNs now, io::ControlSink& sink) {
  if (now < channel_.next_timeout()) {
    if (now - polled_ns_ < kChannelPollNs) return false;
    polled_ns_ = now;
    pollfd readable{channel_.poll_fd(), POLLIN, 0};
    if (::poll(&readable, 1, 0) <= 0) return false;
  }
  channel_.service(now, sink);
  return true;
}

// A frame that cannot be queued is lost like a datagram: the peer is failing, and the channel reports that itself.
void ControlService::send_fallback(TimeNs now) {
  // PROTOCOL 9.1.5: An endpoint MUST NOT keep a fallback frame that the connection does not take: it is lost like a
  //     datagram, and that peer is failing.
  while (endpoint_.poll_control(now, output_)) {
    channel_.send(output_.peer, kFallbackFrame, {output_.bytes, output_.size});
  }
}

void ControlService::say_goodbye(TimeNs& now, io::ControlSink& sink, const std::string& failure) {
  report_outcomes(now);
  leave(now, sink, failure);
}

// PROTOCOL 10.1.4: An endpoint whose process ends MAY end its operations first, and keep its connections until it knows
//     the exit status, for at most 30 s: a status other than 0 is a failure (3.7.6).
void ControlService::leave_at_exit(TimeNs& now, ExitWait& exit, const std::function<void()>& end_operations) {
  report_outcomes(now);
  end_operations();
  exit.on_operations_ended();
  IgnoringSink sink;
  const TimeNs until = base::after(now, exit.max_ns().value_or(0));
  while (!exit.status() && now < until) pause(now, sink);
  const int status = exit.status().value_or(0);
  leave(now, sink, status == 0 ? std::string() : "ended with exit status " + std::to_string(status));
}

// The outcomes of the last receives precede the goodbye on the same connection.
void ControlService::report_outcomes(TimeNs now) {
  endpoint_.on_control(now, core::Closing{});
  send_fallback(now);
}

void ControlService::leave(TimeNs& now, io::ControlSink& sink, const std::string& failure) {
  if (!failure.empty()) {
    // PROTOCOL 3.7.6: Before that it SHOULD send why, as a failure message of at most 1,024 bytes of text.
    const auto bytes = std::as_bytes(std::span(failure).first(std::min(failure.size(), kMaxFailureBytes)));
    for (std::uint16_t peer = 0; peer < endpoint_.config().peers; ++peer) channel_.send(peer, kFailureMessage, bytes);
  }
  // PROTOCOL 10.1.2: Goodbye MUST follow these on the same connection, which keeps the order.
  channel_.say_goodbye(!failure.empty());
  // PROTOCOL 10.1.2: ... The endpoint waits at most 1 s for the peers to close, and at most 7 s while the host of one
  // has
  //     not acknowledged all:
  const TimeNs began = now;
  const auto is_over = [&] {
    return channel_.finished() || now - began >= kGoodbyeLostNs ||
           (now - began >= kGoodbyeNs && channel_.is_goodbye_acknowledged());
  };
  while (!is_over()) pause(now, sink);
}

void ControlService::pause(TimeNs& now, io::ControlSink& sink) {
  pollfd ready{channel_.poll_fd(), POLLIN, 0};
  ::poll(&ready, 1, 10);
  now = io::monotonic_now();
  channel_.service(now, sink);
}

}  // namespace mlt::engine
