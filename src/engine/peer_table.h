// The peers of a rank: their state, negotiated sizes, addresses, and the errors that ended them.
//
// Locking: functions marked "loop's lock" require the loop's lock (engine/driving.h), all others run on any thread.
// State and sizes are atomic. mutex_ orders changes of state and error for the threads that wait for them. The loop
// takes it only when a peer comes up or goes down, a client is rejected, or an error needs the peer's: never per
// packet. Invariants: addresses and sizes are set before the state is kUp. Absent on purpose: which changes of state
// may follow each other (io/control/control_channel.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/deadline.h"
#include "io/control/control_channel.h"
#include "io/net/socket_address.h"
#include "mlt.h"

namespace mlt::engine {

// On first use a peer is kUnnamed until its address is known, then kUnused until this rank asks for the connection. In
// the order in which they follow each other.
enum class PeerState : std::uint8_t { kUnnamed, kUnused, kConnecting, kUp, kLeft, kFailed };

class PeerTable {
 public:
  // Of a job of `ranks`, for the errors of `rank`.
  PeerTable(std::uint16_t rank, std::uint16_t ranks, bool connects_on_use = false);

  PeerState state(std::uint16_t peer) const { return peers_[peer].state.load(std::memory_order_acquire); }
  // Payload of a full packet; 0 until the peer is up.
  std::uint32_t segment_bytes(std::uint16_t peer) const {
    return peers_[peer].segment_bytes.load(std::memory_order_acquire);
  }
  // The same for packets over the network, even if the peer shares memory.
  std::uint32_t grid_bytes(std::uint16_t peer) const { return peers_[peer].grid_bytes.load(std::memory_order_acquire); }
  // Why the peer is no longer up; empty if it did not go down.
  std::string error(std::uint16_t peer) const;
  // Place in the order in which peers went down, from 1; ~0: it did not.
  std::uint32_t down_number(std::uint16_t peer) const { return peers_[peer].down_number.load(); }

  // Loop's lock. From kUnnamed to kUnused, and from there to kConnecting; else no effect.
  void on_named(std::uint16_t peer) { advance(peer, PeerState::kUnnamed, PeerState::kUnused); }
  void on_use(std::uint16_t peer) { advance(peer, PeerState::kUnused, PeerState::kConnecting); }
  // Loop's lock. Sizes of a peer that was never up: what is planned for it must not divide by 0.
  void set_sizes(std::uint16_t peer, std::uint32_t segment_bytes);
  // Loop's lock. `addresses`: where the peer receives, per path.
  void on_up(std::uint16_t peer, std::vector<io::SocketAddress> addresses, std::uint32_t segment_bytes,
             std::uint32_t grid_bytes);
  void on_down(std::uint16_t peer, io::PeerDownCause cause, const std::string& text);
  // A client was rejected before it became a peer: wait_connected() reports the last one.
  void on_client_rejected(const std::string& text);
  // Loop's lock. Empty until the peer is up.
  const std::vector<io::SocketAddress>& addresses(std::uint16_t peer) const { return peers_[peer].addresses; }

  // The loop ended: no peer changes any more, and all waits end.
  void close();

  // Waits until all of `peers` are up or have left. Throws mlt::Error if one failed, if close() was called, or at
  // `until`; its text names `timeout_ns`.
  void wait_connected(std::span<const PeerAddress> peers, std::optional<SteadyTime> until, std::int64_t timeout_ns);
  // Whether all of them are up or have left; throws as wait_connected() does. Never blocks.
  bool test_connected(std::span<const PeerAddress> peers);
  // Whether a connection with this peer may still come up.
  bool is_pending(std::uint16_t peer) const {
    const PeerState now = state(peer);
    return now == PeerState::kUnused || now == PeerState::kConnecting;
  }
  // Waits until none of them is pending, or until close(), and calls `now_and_then`, which may throw. False at `until`.
  bool wait_settled(std::span<const std::uint16_t> peers, std::optional<SteadyTime> until,
                    const std::function<void()>& now_and_then);
  // Waits until no rank of first, first + 1, ... is connecting or up, or until close(). False on timeout.
  bool wait_gone(std::uint16_t first, std::uint16_t count, std::int64_t timeout_ns);

 private:
  void advance(std::uint16_t peer, PeerState from, PeerState to);
  struct Peer {
    std::atomic<PeerState> state{PeerState::kConnecting};  // changes with mutex_
    std::atomic<std::uint32_t> segment_bytes{0};
    std::atomic<std::uint32_t> grid_bytes{0};
    std::atomic<std::uint32_t> down_number{~std::uint32_t{0}};
    std::vector<io::SocketAddress> addresses;       // loop's lock
    std::string error;                              // guarded by mutex_
    ErrorCode error_code = ErrorCode::kPeerFailed;  // guarded by mutex_
  };

  // With mutex_: whether a wait for these peers is over.
  bool is_settled(std::span<const PeerAddress> peers) const;
  void throw_if_closed() const;
  void throw_first_error(std::span<const PeerAddress> peers, std::int64_t timeout_ns) const;

  const std::uint16_t rank_;
  std::vector<Peer> peers_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t downs_ = 0;           // guarded by mutex_
  std::string last_rejected_client_;  // guarded by mutex_
  bool closed_ = false;               // guarded by mutex_
};

}  // namespace mlt::engine
