// The simulator (src/sim) as tests of endpoints want it: every two hosts joined by cables of their own, so that what
// happens between two leaves the others alone; posts and control events that take effect before the call returns;
// completions kept with their bitmaps. Each call REQUIREs that the simulator's host found nothing wrong (sim/host.h).
//
// Absent on purpose: events, links, hosts and faults of its own; switches and shared memory (tests/sim).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sim/simulator.h"
#include "support/small_tables.h"

namespace mlt::test {

// What almost every test of endpoints names.
using base::DurationNs;
using base::kMicrosecond;
using base::kMillisecond;
using base::kSecond;
using base::TimeNs;
using core::CompletionKind;
using core::CompletionStatus;
using core::Counter;
using core::PostStatus;
using core::SegmentPriority;
using sim::Link;

// Between two hosts, unless a test says otherwise.
inline Link default_link() {
  Link link;
  link.propagation_ns = 10 * base::kMicrosecond;
  return link;
}

struct SimulationConfig {
  std::uint64_t seed = 1;
  std::uint16_t hosts = 2;
  core::EndpointConfig endpoint = small_tables();  // rank and peers are set per host
  std::uint32_t segment_bytes = 1'432;
  std::uint32_t window_bytes = 4U << 20;
  // What senders are told; default: what the endpoint's configuration says.
  std::optional<std::uint32_t> early_segments;
  std::optional<std::uint32_t> early_transfers;
  core::TransmitCapabilities capabilities;
  // Each direction between two hosts; its port serves control datagrams before data.
  Link link = default_link();
  std::uint64_t queue_bytes = sim::kUnlimited;       // of data that waits for the link; beyond it data is dropped
  std::uint64_t mark_above_bytes = sim::kUnlimited;  // the port's threshold (sim/switch_port.h), of data
  // Behind the link, where an endpoint has several paths: path p continues over cable p.
  std::array<DurationNs, MLT_MAX_PATHS> path_delay_ns{};
  DurationNs control_delay_ns = 100 * base::kMicrosecond;  // of the control connections, one way
  DurationNs wake_up_ns = 0;                               // from an arrival to the host's turn
  std::uint64_t socket_buffer_bytes = 4U << 20;
  TimeNs start_ns = base::kSecond;
};

// A completion with its own copy of the bitmap.
struct Completed : core::Completion {
  std::vector<std::uint64_t> bitmap;
  TimeNs at_ns = 0;
  bool arrived(std::uint32_t segment) const {
    return bitmap.empty() || ((bitmap[segment / 64] >> (segment % 64)) & 1U) != 0;
  }
};

// A datagram, or a message over a control connection, as hooks see it. Path, DSCP and ECN are known where it leaves.
struct Flight {
  std::uint16_t from = 0;
  std::uint16_t to = 0;
  std::uint8_t path = 0;
  std::uint8_t dscp = 0;
  base::Ecn ecn = base::Ecn::kNotEct;
  wire::PacketType type = wire::PacketType::kData;
  bool by_control_connection = false;
  std::vector<std::byte> bytes;
};

class Simulation : private sim::Observer {
 public:
  explicit Simulation(const SimulationConfig& config);
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  sim::Simulator& simulator() { return simulator_; }
  TimeNs now() const { return simulator_.now(); }
  std::uint64_t seed() const { return config_.seed; }
  core::Endpoint& endpoint(std::uint16_t host) { return simulator_.endpoint(host); }
  // Of all paths, and the cable that only `path` takes. May be changed at any time.
  Link& link(std::uint16_t from, std::uint16_t to);
  Link& link(std::uint16_t from, std::uint16_t to, std::uint8_t path);
  void every_link(const std::function<void(Link&)>& change);

  // Both sides learn of the connection now, with new cookies; of its end likewise.
  void connect(std::uint16_t a, std::uint16_t b);
  // `b` notices it so much later.
  void disconnect(std::uint16_t a, std::uint16_t b, DurationNs later_ns = 0);
  std::uint64_t cookie(std::uint16_t from, std::uint16_t to) const { return simulator_.cookie(from, to); }
  // The host reads, sends and wakes again only at `until`; what arrives meanwhile waits in its socket's buffer.
  void pause(std::uint16_t host, TimeNs until);

  // Post at once, then let the host send. The result is the post's.
  core::PostStatus send(std::uint16_t host, const core::SendRequest& request);
  core::PostStatus receive(std::uint16_t host, const core::ReceiveRequest& request);
  void cancel(std::uint16_t host, core::OperationId operation, core::CompletionKind kind);
  // The host takes a turn now, as it would after any event.
  void wake(std::uint16_t host);
  // Tells `host` that packets with a longer payload do not get to `peer`, as a driver does that the system told.
  void limit_path(std::uint16_t host, std::uint16_t peer, std::uint32_t payload_bytes);
  void at(TimeNs when, std::function<void()> action) { simulator_.at(when, std::move(action)); }
  // Hands a datagram to `to` as if the network had carried it, now.
  void inject(std::uint16_t to, std::span<const std::byte> bytes, base::Ecn ecn = base::Ecn::kNotEct);
  // The same over the control connection from `from`.
  void message(std::uint16_t to, std::uint16_t from, std::span<const std::byte> bytes);

  void run_for(DurationNs duration);
  // Until `host` has completed `count` operations or `limit` has passed; true if it has.
  bool run_until_completed(std::uint16_t host, std::size_t count, DurationNs limit = 10 * base::kSecond);
  bool run_until(const std::function<bool()>& condition, DurationNs limit = 10 * base::kSecond);

  const std::vector<Completed>& completed(std::uint16_t host) const { return completed_[host]; }
  const Completed* find(std::uint16_t host, core::OperationId operation, core::CompletionKind kind) const;
  std::uint64_t counter(std::uint16_t host, core::Counter which) {
    return simulator_.endpoint(host).counters().value(which);
  }

  // Hooks; all optional. `drop_if` decides before the links' faults do, also of messages over control connections.
  std::function<bool(const Flight&)> drop_if;
  std::function<void(std::uint16_t from, const core::Transmit&)> on_run;
  std::function<void(std::uint16_t to, const Flight&)> on_delivery;
  // All messages over control connections are lost, as long as they are stalled.
  bool control_connections_stalled = false;

 private:
  void came_up(std::uint16_t, const core::PeerUp&) override {}
  void went_down(std::uint16_t, std::uint16_t) override {}
  void hears_goodbye(std::uint16_t, std::uint16_t, std::uint64_t) override {}
  void is_limited(std::uint16_t, const core::PathLimit&) override {}
  void reads(std::uint16_t rank, TimeNs local, std::span<const std::byte> bytes, bool by_control) override;
  void sends_run(std::uint16_t rank, TimeNs local, const core::Transmit& run) override;
  void sends(std::uint16_t, TimeNs, const sim::Packet&) override {}
  void sends_message(std::uint16_t, TimeNs, const core::ControlOutput&) override {}
  void turn_ended(std::uint16_t, TimeNs) override {}

  // What is due at this very time: the turns that a call asked for.
  void settle() { run_for(0); }
  void check() const;

  SimulationConfig config_;
  sim::Simulator simulator_;
  std::vector<std::vector<Completed>> completed_;
  // Of each host: where in completed_ the first completion of an operation is.
  std::vector<std::map<std::pair<core::OperationId, CompletionKind>, std::size_t>> first_;
};

}  // namespace mlt::test
