#include "sim/simulator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace mlt::sim {

namespace {

// Bytes of every delivered datagram that enter the digest: a data packet's header. Payloads enter it on completion.
constexpr std::size_t kDigestedBytes = MLT_DATA_HEADER_BYTES;

std::uint32_t longest_datagram(std::uint32_t segment_bytes) {
  return std::max<std::uint32_t>(segment_bytes + MLT_DATA_HEADER_BYTES, wire::kMaxControlBytes);
}

}  // namespace

Simulator::Simulator(const SimulatorConfig& config, const Topology& topology)
    : config_(config),
      now_(config.start_ns),
      network_(topology, config.seed ^ 0x6E6574776F726BULL, longest_datagram(config.segment_bytes), events_),
      connections_(topology.hosts, config.seed ^ 0x636F6F6B6965ULL),
      prng_(config.seed ^ 0x73696DULL) {
  hosts_.reserve(topology.hosts);
  World& world = *this;
  for (std::uint16_t rank = 0; rank < topology.hosts; ++rank) {
    HostConfig host = config.host;
    if (config.adjust) config.adjust(rank, host);
    host.endpoint.rank = rank;
    host.endpoint.peers = topology.hosts;
    host.endpoint.max_segment_bytes = config.segment_bytes;
    hosts_.emplace_back(world, rank, host);
    hosts_.back().start();
  }
}

void Simulator::connect_all(base::DurationNs spread_ns) {
  for (std::uint16_t b = 0; b < hosts(); ++b) {
    for (std::uint16_t a = 0; a < b; ++a) {
      if (connections_.number(a, b) == 0) connect(a, b, spread_ns);
    }
  }
}

void Simulator::connect(std::uint16_t a, std::uint16_t b, base::DurationNs spread_ns) {
  if (!hosts_[a].is_up() || !hosts_[b].is_up() || connections_.number(a, b) != 0) return;
  const std::uint64_t number = connections_.open(a, b);
  if (prng_.chance(0.5)) std::swap(a, b);
  peer_up(a, b);
  if (spread_ns == 0) return peer_up(b, a);
  const auto later = static_cast<base::DurationNs>(prng_.below(static_cast<std::uint64_t>(spread_ns)));
  at(now_ + later, [this, a, b, number] {
    if (connections_.number(a, b) == number) peer_up(b, a);
  });
}

void Simulator::peer_up(std::uint16_t rank, std::uint16_t peer) {
  if (!hosts_[rank].is_up()) return;
  if (known(rank, peer) != 0) peer_down(rank, peer, known(rank, peer));  // a new hello ends the old connection
  set_known(rank, peer, connections_.number(rank, peer));
  core::PeerUp up;
  up.peer = peer;
  up.local_cookie = connections_.cookie(peer, rank);
  up.remote_cookie = connections_.cookie(rank, peer);
  up.segment_bytes = config_.segment_bytes;
  up.window_bytes = config_.window_bytes;
  up.own_window_bytes = config_.window_bytes;
  up.early_segments = hosts_[peer].config().endpoint.early_segments_per_peer();
  up.early_transfers = hosts_[peer].config().endpoint.early_transfers_per_peer();
  if (rank == config_.overrunning_host) {
    up.early_segments *= config_.overrun_factor;
    up.early_transfers *= config_.overrun_factor;
  }
  if (config_.adjust_peer) config_.adjust_peer(rank, up);
  if (trace) trace({now_, TraceKind::kPeerUp, rank, nullptr, {}, "peer " + std::to_string(peer) + " is up"});
  hosts_[rank].control(now_, up, known(rank, peer));
}

void Simulator::peer_down(std::uint16_t rank, std::uint16_t peer, std::uint64_t number) {
  if (!hosts_[rank].is_up() || known(rank, peer) != number) return;
  set_known(rank, peer, 0);
  if (trace) trace({now_, TraceKind::kPeerDown, rank, nullptr, {}, "peer " + std::to_string(peer) + " is down"});
  hosts_[rank].control(now_, core::PeerDown{peer});
}

void Simulator::disconnect(std::uint16_t a, std::uint16_t b, base::DurationNs later_ns) {
  const std::uint64_t number = connections_.number(a, b);
  if (number == 0) return;
  connections_.close(a, b);
  peer_down(a, b, number);
  if (later_ns == 0) return peer_down(b, a, number);
  at(now_ + later_ns, [this, a, b, number] { peer_down(b, a, number); });
}

void Simulator::crash(std::uint16_t rank, base::DurationNs notice_ns) {
  if (!hosts_[rank].is_up()) return;
  note(rank, "crashes");
  for (std::uint16_t peer = 0; peer < hosts(); ++peer) {
    if (peer == rank) continue;
    const std::uint64_t number = connections_.number(rank, peer);
    set_known(rank, peer, 0);
    if (number == 0) continue;
    connections_.close(rank, peer);
    at(now_ + notice_ns, [this, rank, peer, number] { peer_down(peer, rank, number); });
  }
  lost_in_crashes_ += hosts_[rank].unread();
  if (on_crash) on_crash(rank, hosts_[rank].endpoint());
  hosts_[rank].crash();
}

void Simulator::leave(std::uint16_t rank) {
  if (!hosts_[rank].is_up()) return;
  note(rank, "leaves");
  hosts_[rank].close(now_);
  for (std::uint16_t peer = 0; peer < hosts(); ++peer) {
    if (peer == rank) continue;
    if (const std::uint64_t number = connections_.number(rank, peer); number != 0) {
      if (known(rank, peer) != 0) {
        queue_message(rank, peer, {}, false, true);
      } else {  // not up here yet: no message is possible, and the peer sees the connection end
        peer_down(peer, rank, number);
      }
      connections_.close(rank, peer);
    }
    set_known(rank, peer, 0);  // also if it has ended and its end has not been read here
  }
  lost_in_crashes_ += hosts_[rank].unread();
  if (on_crash) on_crash(rank, hosts_[rank].endpoint());
  hosts_[rank].crash();
}

void Simulator::restart(std::uint16_t rank) {
  if (hosts_[rank].is_up()) return;
  note(rank, "starts again");
  hosts_[rank].start();
}

// ---- events --------------------------------------------------------------------------------------------------------

void Simulator::at(base::TimeNs when, std::function<void()> action) {
  std::uint32_t slot = 0;
  if (free_actions_.empty()) {
    slot = static_cast<std::uint32_t>(actions_.size());
    actions_.push_back(std::move(action));
  } else {
    slot = free_actions_.back();
    free_actions_.pop_back();
    actions_[slot] = std::move(action);
  }
  events_.push(std::max(when, now_), EventKind::kAction, 0, slot);
}

std::uint16_t Simulator::add_flow(std::function<void(const Packet&)> on_arrival) {
  flows_.push_back(std::move(on_arrival));
  return static_cast<std::uint16_t>(flows_.size());
}

bool Simulator::step(base::TimeNs until) {
  if (!fault().empty()) return false;
  if (events_.next_at() > until) {
    now_ = std::max(now_, until);
    return false;
  }
  const Event event = events_.pop();
  now_ = event.at;
  ++events_run_;
  mix(static_cast<std::uint64_t>(event.at));
  mix((std::uint64_t{event.target} << 8) | static_cast<std::uint64_t>(event.kind));
  dispatch(event);
  return true;
}

void Simulator::dispatch(const Event& event) {
  switch (event.kind) {
    case EventKind::kArrival:
      if (network_.arrive(now_, event.target, event.argument)) deliver(event.target, event.argument);
      return;
    case EventKind::kPort:
      return network_.serve(now_, event.target);
    case EventKind::kTurn:
      if (!hosts_[event.target].on_turn(now_, event.argument)) ++turns_moved_;
      return;
    case EventKind::kMessage:
      return deliver_messages(event.target);
    case EventKind::kAction: {
      const std::function<void()> action = std::move(actions_[event.argument]);
      actions_[event.argument] = nullptr;
      free_actions_.push_back(event.argument);
      return action();
    }
  }
}

void Simulator::run_for(base::DurationNs duration) {
  const base::TimeNs until = now_ + duration;
  while (step(until)) {
  }
}

bool Simulator::run_until(const std::function<bool()>& condition, base::DurationNs limit) {
  const base::TimeNs until = now_ + limit;
  while (!condition()) {
    if (!step(until)) return condition();
  }
  return true;
}

void Simulator::deliver(std::uint32_t edge, std::uint32_t index) {
  (void)edge;
  const Packet& packet = network_.packet(index);
  Host& host = hosts_[packet.to];
  const std::span<const std::byte> header = packet.datagram().first(std::min<std::size_t>(packet.size, kDigestedBytes));
  for (std::size_t at = 0; at + 8 <= header.size(); at += 8) mix(base::load_le64(header.data() + at));
  if (trace) trace({now_, TraceKind::kDelivered, packet.to, &packet, Fate::k_delivered, {}});
  Fate fate = Fate::k_delivered;
  if (packet.flow != 0) {
    flows_[packet.flow - 1U](packet);
  } else if (!host.is_up()) {
    fate = Fate::k_dropped_host_down;
  } else if (!host.receive(now_, packet)) {
    fate = Fate::k_dropped_socket_buffer;
  }
  network_.finish(index, fate);
}

void Simulator::deliver_messages(std::uint32_t index) {
  Connections::Stream& stream = connections_.stream(index);
  const std::uint16_t from = connections_.from_of(index);
  const std::uint16_t to = connections_.to_of(index);
  stream.scheduled = false;
  while (!stream.waiting.empty()) {
    const Connections::Message& first = stream.waiting.front();
    if (first.connection == known(to, from)) {
      base::TimeNs at_ns = first.ready_ns;
      // TCP needs both directions; it retries when its timer expires.
      if (at_ns <= now_ && (network_.is_blocked(from, to) || network_.is_blocked(to, from))) {
        at_ns = now_ + Connections::kTcpTimeoutNs;
      }
      if (at_ns > now_) {
        stream.scheduled = true;
        events_.push(at_ns, EventKind::kMessage, index, 0);
        return;
      }
      if (first.goodbye) {
        if (observer != nullptr) observer->hears_goodbye(to, from, first.connection);
        peer_down(to, from, first.connection);
        stream.waiting.pop_front();
        continue;
      }
      if (trace) trace({now_, TraceKind::kMessage, to, nullptr, {}, "message from " + std::to_string(from)});
      ++messages_delivered_;
      hosts_[to].control(now_, from, first.bytes, first.of_machines);
    }
    stream.waiting.pop_front();  // discarded with its closed connection
  }
}

// ---- requests of hosts ---------------------------------------------------------------------------------------------

void Simulator::transmit(std::uint16_t host, const core::Transmit& run) {
  const base::TimeNs local = hosts_[host].config().clock.local(now_);
  if (observer != nullptr) observer->sends_run(host, local, run);
  std::uint32_t slice = 0;
  std::uint32_t left = run.total_bytes;
  const std::uint64_t cookie = connections_.cookie(host, run.peer);
  for (std::uint32_t i = 0; i < run.datagram_count; ++i) {
    const std::uint32_t size = std::min(run.datagram_bytes, left);
    left -= size;
    const std::uint32_t index = network_.new_packet();
    Packet& packet = network_.packet(index);
    packet.from = host;
    packet.to = run.peer;
    packet.path = run.path;
    packet.dscp = run.dscp;
    packet.ecn = run.ecn;
    packet.flow = 0;
    packet.size = size;
    std::uint32_t filled = 0;
    for (int part = 0; part < 2 && filled < size; ++part, ++slice) {  // a datagram is one or two whole slices
      const base::Slice& s = run.slices[slice];
      if (slice >= run.slice_count || s.size > size - filled) return violation(host, "slices across datagrams");
      if (s.size > 0) std::memcpy(packet.bytes + filled, s.data, s.size);
      filled += static_cast<std::uint32_t>(s.size);
    }
    wire::Prefix prefix;
    if (filled != size || wire::decode_prefix(packet.datagram(), prefix) != wire::DropReason::kNone ||
        prefix.cookie != cookie) {
      // A connection may have just been replaced; the endpoint learns of it in its next turn.
      if (hosts_[host].connection(run.peer) == connections_.number(host, run.peer)) {
        return violation(host, "a datagram that its peer would reject");
      }
    }
    packet.type = prefix.type;
    if (trace) trace({now_, TraceKind::kSent, host, &packet, Fate::k_sent, {}});
    if (observer != nullptr) observer->sends(host, local, packet);
    network_.send(now_, index);
  }
}

void Simulator::message(std::uint16_t host, const core::ControlOutput& output) {
  if (observer != nullptr) observer->sends_message(host, hosts_[host].config().clock.local(now_), output);
  if (drop_message_if && drop_message_if(host, output)) return;
  if (known(host, output.peer) != 0) queue_message(host, output.peer, {output.bytes, output.size}, false);
}

bool Simulator::send_message(std::uint16_t from, std::uint16_t to, std::span<const std::byte> bytes) {
  if (known(from, to) == 0) return false;
  queue_message(from, to, bytes, true);
  return true;
}

void Simulator::queue_message(std::uint16_t from, std::uint16_t to, std::span<const std::byte> bytes, bool of_machines,
                              bool goodbye) {
  const std::uint32_t index = connections_.stream_of(from, to);
  Connections::Stream& stream = connections_.stream(index);
  Connections::Message message;
  message.connection = known(from, to);
  message.ready_ns = now_ + config_.control_delay_ns;
  message.bytes.assign(bytes.begin(), bytes.end());
  message.of_machines = of_machines;
  message.goodbye = goodbye;
  stream.waiting.push_back(std::move(message));
  if (stream.scheduled) return;
  stream.scheduled = true;
  events_.push(stream.waiting.front().ready_ns, EventKind::kMessage, index, 0);
}

void Simulator::completed(std::uint16_t host, const core::Completion& completion) {
  if (trace) {
    trace({now_,
           TraceKind::kCompletion,
           host,
           nullptr,
           {},
           (completion.kind == core::CompletionKind::kSend ? "send " : "receive ") +
               std::to_string(completion.operation) + " ends: status " +
               std::to_string(static_cast<int>(completion.status)) + ", missing " +
               std::to_string(completion.missing_bytes) + " of " + std::to_string(completion.total_bytes)});
  }
  if (on_completion) on_completion(host, completion);
}

void Simulator::machine_message(std::uint16_t host, std::uint16_t from, std::span<const std::byte> bytes) {
  if (on_machine_message) on_machine_message(host, from, bytes);
}

void Simulator::went_down(std::uint16_t host, std::uint16_t peer) {
  if (on_peer_down) on_peer_down(host, peer);
}

void Simulator::schedule_turn(std::uint16_t host, base::TimeNs at_ns, std::uint32_t number) {
  events_.push(std::max(at_ns, now_), EventKind::kTurn, host, number);
}

void Simulator::violation(std::uint16_t host, const std::string& text) {
  fail("rank " + std::to_string(host) + ": " + text);
}

void Simulator::note(std::uint16_t rank, const std::string& text) {
  if (trace) trace({now_, TraceKind::kNote, rank, nullptr, {}, text});
}

}  // namespace mlt::sim
