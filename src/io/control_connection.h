// One connection of the control channel. Private to control_*.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "io/control_channel.h"

namespace mlt::io {

struct ControlChannel::Connection {
  Connection(FrameStream frames, State initial, base::TimeNs now)
      : stream(std::move(frames)), state(initial), opened_at(now), last_heard(now) {}

  FrameStream stream;
  State state;
  bool outgoing = false;        // we connected
  bool watched = false;         // in the epoll set
  bool watches_output = false;  // with EPOLLOUT
  bool goodbye_sent = false;
  bool overflowed = false;
  bool spoke = false;                 // since the last heartbeat was due
  std::optional<std::uint16_t> rank;  // the peer's: known from the start if outgoing, else from its hello
  SocketAddress remote;
  Hello hello;  // the peer's
  base::TimeNs opened_at;
  base::TimeNs last_heard;
  base::TimeNs next_heartbeat = base::kNever;

  bool is_incoming_handshake() const {
    return !outgoing && (state == State::kAwaitHello || state == State::kAwaitConfirm);
  }
};

}  // namespace mlt::io
