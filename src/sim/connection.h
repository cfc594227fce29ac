// The control connections between hosts as an endpoint sees them: peers come up with fresh cookies and go down, and
// messages arrive whole and in order, late if the network is cut.
//
// Absent on purpose: the frames and the handshake (io/control_*), which do not apply under virtual time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/prng.h"
#include "core/event.h"
#include "sim/event_heap.h"
#include "sim/pair_table.h"

namespace mlt::sim {

class Connections {
 public:
  // Minimum delay of a TCP retransmission in Linux.
  static constexpr base::DurationNs kTcpTimeoutNs = 200 * base::kMillisecond;

  Connections(std::uint16_t hosts, std::uint64_t seed);

  // Opens a new connection with new cookies; returns its number, which is never reused.
  std::uint64_t open(std::uint16_t a, std::uint16_t b);
  void close(std::uint16_t a, std::uint16_t b);
  // 0: none.
  std::uint64_t number(std::uint16_t a, std::uint16_t b) const { return pairs_.get(key(a, b)).number; }
  // What `from` must put into every datagram to `to`.
  std::uint64_t cookie(std::uint16_t from, std::uint16_t to) const {
    return pairs_.get(key(from, to)).cookies[from < to ? 0 : 1];
  }

  // Queues a message; the caller schedules `stream` at the returned time unless that stream is scheduled already.
  struct Message {
    std::uint64_t connection = 0;
    base::TimeNs ready_ns = 0;
    std::vector<std::byte> bytes;
    bool of_machines = false;  // between collective state machines, not between endpoints
    bool goodbye = false;      // last message
  };
  struct Stream {
    std::deque<Message> waiting;
    bool scheduled = false;
  };
  std::uint32_t stream_of(std::uint16_t from, std::uint16_t to) const { return std::uint32_t{from} * hosts_ + to; }
  Stream& stream(std::uint32_t index) { return streams_[index]; }
  std::uint16_t from_of(std::uint32_t stream) const { return static_cast<std::uint16_t>(stream / hosts_); }
  std::uint16_t to_of(std::uint32_t stream) const { return static_cast<std::uint16_t>(stream % hosts_); }

 private:
  struct Pair {
    std::uint64_t number = 0;
    std::array<std::uint64_t, 2> cookies{};  // of the lower rank, of the higher
  };
  std::uint32_t key(std::uint16_t a, std::uint16_t b) const { return a < b ? stream_of(a, b) : stream_of(b, a); }

  std::uint16_t hosts_;
  base::Prng prng_;
  std::uint64_t opened_ = 0;
  PairTable<Pair> pairs_;
  PairTable<Stream> streams_;
};

}  // namespace mlt::sim
