#include "engine/control_service.h"

#include <poll.h>

#include "io/os/clock.h"

namespace mlt::engine {

namespace {

using base::TimeNs;

// Max time to send the last frames when the context is closed.
constexpr base::DurationNs kGoodbyeNs = base::kSecond;
constexpr base::DurationNs kChannelPollNs = 50 * base::kMicrosecond;

}  // namespace

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
  // PROTOCOL 9.1.5: An endpoint MUST NOT keep a backstop message that the connection does not take: it is lost like a
  //     datagram, and that peer is failing.
  while (endpoint_.poll_control(now, output_)) {
    channel_.send(output_.peer, kBackstopMessage, {output_.bytes, output_.size});
  }
}

// The outcomes of the last receives precede the goodbye on the same connection.
void ControlService::say_goodbye(TimeNs& now, io::ControlSink& sink) {
  endpoint_.on_control(now, core::Closing{});
  send_fallback(now);
  // PROTOCOL 10.1.2: Goodbye MUST follow these on the same connection, which keeps the order.
  channel_.say_goodbye();
  const TimeNs until = now + kGoodbyeNs;
  while (!channel_.finished() && now < until) {
    pollfd ready{channel_.poll_fd(), POLLIN, 0};
    ::poll(&ready, 1, 10);
    now = io::monotonic_now();
    channel_.service(now, sink);
  }
}

}  // namespace mlt::engine
