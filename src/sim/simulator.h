// The virtual driver: production endpoints on a virtual network under virtual time. engine/event_loop is the other
// driver; both call the same nine entry points.
//
// The configuration, one 64-bit seed and the calls determine everything: the same run, event for event, on every host.
// Absent on purpose: workloads and checks (sim/swarm.h, sim/oracle.h). One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/connection.h"
#include "sim/host.h"
#include "sim/network.h"
#include "sim/pair_table.h"
#include "sim/virtual_driver.h"

namespace mlt::sim {

struct SimulatorConfig {
  std::uint64_t seed = 1;
  HostConfig host;                                               // of every host; see `adjust`
  std::uint32_t segment_bytes = 1'432;                           // payload of a full packet
  std::uint32_t window_bytes = 1U << 20;                         // maximum in flight to one peer
  base::DurationNs control_delay_ns = 100 * base::kMicrosecond;  // of the control connections, one direction
  base::TimeNs start_ns = base::kSecond;
  // This host assumes a multiple of the early-data space that its peers offered; ~0: no host does.
  std::uint16_t overrunning_host = 0xFFFF;
  std::uint32_t overrun_factor = 1;
  std::function<void(std::uint16_t host, HostConfig&)> adjust;  // makes hosts differ
  // Changes what `host` is told of a peer that comes up.
  std::function<void(std::uint16_t host, core::PeerUp&)> adjust_peer;
};

enum class TraceKind : std::uint8_t { kSent, kDelivered, kDropped, kMessage, kPeerUp, kPeerDown, kCompletion, kNote };

// One trace event. `packet` is null except for the first three kinds; `text` has the details.
struct TraceRecord {
  base::TimeNs at_ns = 0;
  TraceKind kind = TraceKind::kNote;
  std::uint16_t host = 0;
  const Packet* packet = nullptr;
  Fate fate = Fate::k_sent;
  std::string text;
};

class Simulator final : public VirtualDriver {
 public:
  Simulator(const SimulatorConfig& config, const Topology& topology);
  Simulator(const Simulator&) = delete;
  Simulator& operator=(const Simulator&) = delete;

  base::TimeNs now() const override { return now_; }
  std::uint16_t hosts() const override { return static_cast<std::uint16_t>(hosts_.size()); }
  Host& host(std::uint16_t rank) override { return hosts_[rank]; }
  Network& network() { return network_; }
  const Network& network() const { return network_; }

  // Connects every pair without a connection, the two sides within `spread_ns` of each other.
  void connect_all(base::DurationNs spread_ns = 0);
  void connect(std::uint16_t a, std::uint16_t b, base::DurationNs spread_ns = 0);
  // Both sides lose the connection, `a` now and `b` after `later_ns`.
  void disconnect(std::uint16_t a, std::uint16_t b, base::DurationNs later_ns = 0);
  // The process dies; its peers notice after `notice_ns`. restart() starts a new incarnation without connections.
  void crash(std::uint16_t rank, base::DurationNs notice_ns);
  void restart(std::uint16_t rank);
  // The process leaves in order: its final messages and a goodbye are sent over the control connections, then it exits.
  void leave(std::uint16_t rank);
  // Informs a host that the network carries no larger payload to a peer.
  void limit_path(std::uint16_t rank, const core::PathLimit& limit) { hosts_[rank].control(now_, limit); }
  std::uint64_t connection(std::uint16_t a, std::uint16_t b) const override { return connections_.number(a, b); }
  // What `from` puts into every datagram to `to`.
  std::uint64_t cookie(std::uint16_t from, std::uint16_t to) const { return connections_.cookie(from, to); }

  // Reliable and in order, over the control connection; false if `from` has none to `to`.
  bool send_message(std::uint16_t from, std::uint16_t to, std::span<const std::byte> bytes);
  void at(base::TimeNs when, std::function<void()> action);
  // Traffic beside that of endpoints: takes the packets with the returned number (Packet::flow) that reach a host.
  std::uint16_t add_flow(std::function<void(const Packet&)> on_arrival);

  // Processes one event; false if there is none up to `until` (the time is then `until`) or a rule was violated.
  bool step(base::TimeNs until);
  void run_for(base::DurationNs duration);
  // Runs until `condition` holds, which is evaluated after every event.
  bool run_until(const std::function<bool()>& condition, base::DurationNs limit);

  std::uint64_t events() const { return events_run_; }
  // Of these, obsolete wake-ups of hosts, without effect.
  std::uint64_t turns_moved() const { return turns_moved_; }
  const Ledger& ledger() const override { return network_.ledger(); }
  std::size_t packets_in_use() const override { return network_.packets_in_use(); }
  std::uint64_t messages_delivered() const override { return messages_delivered_; }
  std::uint64_t lost_in_crashes() const override { return lost_in_crashes_; }
  // Not if endpoints forget tags: observers identify transfers by the numbers that they had when they were posted.
  bool shows_everything() const override { return config_.host.endpoint.retire_after == 0; }

  // Delivers send_message() messages, and the ends of peers, in the host's turn; may post.
  std::function<void(std::uint16_t rank, std::uint16_t from, std::span<const std::byte> bytes)> on_machine_message;
  std::function<void(std::uint16_t rank, std::uint16_t peer)> on_peer_down;
  // Asked for every message of an endpoint before it joins its control connection, if set: true drops it.
  std::function<bool(std::uint16_t from, const core::ControlOutput&)> drop_message_if;
  // Around every call of an endpoint's entry points, if set: true before it, false after it.
  std::function<void(bool entering)> on_entry;
  std::function<void(const TraceRecord&)> trace;
  void note(std::uint16_t rank, const std::string& text);

 private:
  void transmit(std::uint16_t host, const core::Transmit& run) override;
  void message(std::uint16_t host, const core::ControlOutput& output) override;
  void completed(std::uint16_t host, const core::Completion& completion) override;
  void machine_message(std::uint16_t host, std::uint16_t from, std::span<const std::byte> bytes) override;
  void went_down(std::uint16_t host, std::uint16_t peer) override;
  void entering(std::uint16_t) override {
    if (on_entry) on_entry(true);
  }
  void left(std::uint16_t) override {
    if (on_entry) on_entry(false);
  }
  void schedule_turn(std::uint16_t host, base::TimeNs at, std::uint32_t number) override;
  std::uint64_t nic_backlog_bytes(std::uint16_t host) const override { return network_.nic_backlog_bytes(host); }
  base::TimeNs nic_drained_ns(std::uint16_t host, std::uint64_t bytes) const override {
    return network_.nic_drained_ns(now_, host, bytes);
  }
  void violation(std::uint16_t host, const std::string& text) override;

  void dispatch(const Event& event);
  void deliver(std::uint32_t edge, std::uint32_t index);
  void deliver_messages(std::uint32_t stream);
  void queue_message(std::uint16_t from, std::uint16_t to, std::span<const std::byte> bytes, bool of_machines,
                     bool goodbye = false);
  void peer_up(std::uint16_t rank, std::uint16_t peer);
  void peer_down(std::uint16_t rank, std::uint16_t peer, std::uint64_t number);
  // The connection with `peer` that the host of `rank` knows of; 0: none.
  std::uint64_t known(std::uint16_t rank, std::uint16_t peer) const {
    return known_.get(connections_.stream_of(rank, peer));
  }
  void set_known(std::uint16_t rank, std::uint16_t peer, std::uint64_t number) {
    known_[connections_.stream_of(rank, peer)] = number;
  }

  SimulatorConfig config_;
  base::TimeNs now_;
  EventHeap events_;
  Network network_;
  Connections connections_;
  base::Prng prng_;
  std::vector<Host> hosts_;
  PairTable<std::uint64_t> known_;
  std::vector<std::function<void()>> actions_;
  std::vector<std::uint32_t> free_actions_;
  std::vector<std::function<void(const Packet&)>> flows_;
  std::uint64_t events_run_ = 0;
  std::uint64_t turns_moved_ = 0;
  std::uint64_t messages_delivered_ = 0;
  std::uint64_t lost_in_crashes_ = 0;
};

}  // namespace mlt::sim
