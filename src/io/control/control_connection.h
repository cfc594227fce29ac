// One connection of the control channel. Private to control_*.cc.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "io/control/control_channel.h"
#include "io/control/liveness.h"
#include "io/os/fork_guard.h"

namespace mlt::io {

// "1.5 s", for the texts.
std::string seconds_text(base::DurationNs duration);

struct ControlChannel::Connection {
  Connection(FrameStream frames, State initial, base::TimeNs deadline)
      : stream(std::move(frames)), in_fork([this] { stream.close(); }), state(initial), closes_at(deadline) {}

  FrameStream stream;
  ForkGuard in_fork;  // a child that outlives this process would else keep the connection up
  State state;
  bool outgoing = false;        // opened by this side
  bool proved = false;          // the remote end knows the job's secret
  bool watched = false;         // in the epoll set
  bool watches_output = false;  // with EPOLLOUT
  bool goodbye_sent = false;
  bool overflowed = false;
  std::string failure;                // reason given by the caller's fail_peer(); empty: none
  std::optional<std::uint16_t> rank;  // the peer's: known from the start if outgoing, else from its hello
  SocketAddress remote;
  ClientSources::Source source = 0;  // of an incoming connection
  base::TimeNs closes_at;            // closed at this time unless it is up
  Liveness liveness;                 // once up
  bool host_hangs = false;           // this side took a peer with the same host address as silent

  std::size_t drained_bytes = 0;  // read and discarded after a refusal

  // Until it is up: a rank of a large job has a thousand connections that are.
  struct Handshake {
    std::array<std::byte, 2 * kOpeningBytes> transcript{};  // both openings, the connecting side's first
    Hello hello;                                            // the peer's
    base::TimeNs heartbeat_at = base::kNever;               // while this side waits for confirm
  };
  std::unique_ptr<Handshake> handshake = std::make_unique<Handshake>();

  std::span<std::byte, kOpeningBytes> connecting_opening() {
    return std::span(handshake->transcript).first<kOpeningBytes>();
  }
  std::span<std::byte, kOpeningBytes> listening_opening() {
    return std::span(handshake->transcript).last<kOpeningBytes>();
  }

  // An incoming connection without a proof of the job's secret; also one that was rejected and still reads the reason.
  bool is_unproved() const { return !outgoing && !proved && state != State::kClosed; }
};

}  // namespace mlt::io
