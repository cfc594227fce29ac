#include "support/simulation.h"

#include <doctest/doctest.h>

#include <utility>

namespace mlt::test {

namespace {

// What a cable adds where the link before it already took its time: nothing.
constexpr double kNoSerialisation = 1e18;

// From every host to every other an edge; with several paths it ends at a node that only this pair has, and continues
// over an edge for each path.
sim::Topology topology_of(const SimulationConfig& config) {
  sim::Topology topology;
  const std::uint32_t paths = config.endpoint.paths;
  topology.hosts = config.hosts;
  topology.nodes = config.hosts;
  sim::PortConfig port;
  port.queue_of.fill(1);
  port.queue_of[config.endpoint.dscp.control] = 0;
  port.queues[1].limit_bytes = config.queue_bytes;
  port.queues[1].red_min_bytes = port.queues[1].red_max_bytes = config.mark_above_bytes;
  for (std::uint16_t from = 0; from < config.hosts; ++from) {
    for (std::uint16_t to = 0; to < config.hosts; ++to) {
      if (to == from) continue;
      if (paths == 1) {
        Link link = config.link;
        link.propagation_ns += config.path_delay_ns[0];
        topology.edges.push_back({from, to, link, port});
        continue;
      }
      const std::uint32_t fork = topology.nodes++;
      const auto first = static_cast<std::uint32_t>(topology.edges.size());
      topology.edges.push_back({from, fork, config.link, port});
      sim::PlannedRoutes planned{from, to, {}};
      for (std::uint32_t path = 0; path < paths; ++path) {
        planned.ways.push_back({first, static_cast<std::uint32_t>(topology.edges.size())});
        Link cable;
        cable.rate_bytes_per_second = kNoSerialisation;
        cable.propagation_ns = config.path_delay_ns[path];
        topology.edges.push_back({fork, to, cable, {}});
      }
      topology.planned.push_back(std::move(planned));
    }
  }
  topology.buffer_bytes.assign(topology.nodes, sim::kUnlimited);
  return topology;
}

sim::SimulatorConfig simulator_of(const SimulationConfig& config) {
  sim::SimulatorConfig simulator;
  simulator.seed = config.seed;
  simulator.host.endpoint = config.endpoint;
  simulator.host.capabilities = config.capabilities;
  simulator.host.wake_up_ns = config.wake_up_ns;
  simulator.host.socket_buffer_bytes = config.socket_buffer_bytes;
  simulator.host.nic_backlog_bytes = sim::kUnlimited;  // what the endpoint sends is what is tested
  simulator.segment_bytes = config.segment_bytes;
  simulator.window_bytes = config.window_bytes;
  simulator.control_delay_ns = config.control_delay_ns;
  simulator.start_ns = config.start_ns;
  simulator.adjust_peer = [segments = config.early_segments, transfers = config.early_transfers](std::uint16_t,
                                                                                                 core::PeerUp& up) {
    up.early_segments = segments.value_or(up.early_segments);
    up.early_transfers = transfers.value_or(up.early_transfers);
  };
  return simulator;
}

wire::PacketType type_of(std::span<const std::byte> bytes) {
  wire::Prefix prefix;
  (void)wire::decode_prefix(bytes, prefix);
  return prefix.type;
}

}  // namespace

Simulation::Simulation(const SimulationConfig& config)
    : config_(config),
      simulator_(simulator_of(config), topology_of(config)),
      completed_(config.hosts),
      first_(config.hosts) {
  simulator_.observer = this;
  simulator_.on_completion = [this](std::uint16_t rank, const core::Completion& completion) {
    first_[rank].try_emplace({completion.operation, completion.kind}, completed_[rank].size());
    Completed& done = completed_[rank].emplace_back();
    static_cast<core::Completion&>(done) = completion;
    done.bitmap.assign(completion.received_bitmap.begin(), completion.received_bitmap.end());
    done.received_bitmap = {};
    done.at_ns = simulator_.now();
  };
  simulator_.network().drop_if = [this](const sim::Packet& packet) {
    if (!drop_if) return false;
    const std::span<const std::byte> bytes = packet.datagram();
    return drop_if({packet.from,
                    packet.to,
                    packet.path,
                    packet.dscp,
                    packet.ecn,
                    packet.type,
                    false,
                    {bytes.begin(), bytes.end()}});
  };
  simulator_.drop_message_if = [this](std::uint16_t from, const core::ControlOutput& output) {
    if (!drop_if) return control_connections_stalled;
    const std::span<const std::byte> bytes(output.bytes, output.size);
    const Flight flight{
        from, output.peer, 0, 0, base::Ecn::kNotEct, type_of(bytes), true, {bytes.begin(), bytes.end()}};
    return drop_if(flight) || control_connections_stalled;
  };
  simulator_.connect_all();
  run_for(config.wake_up_ns);
}

Link& Simulation::link(std::uint16_t from, std::uint16_t to) {
  const std::uint32_t pair = std::uint32_t{from} * (config_.hosts - 1U) + (to < from ? to : to - 1U);
  const std::uint32_t paths = config_.endpoint.paths;
  return simulator_.network().link(pair * (paths == 1 ? 1 : 1 + paths));
}

Link& Simulation::link(std::uint16_t from, std::uint16_t to, std::uint8_t path) {
  REQUIRE(path < config_.endpoint.paths);
  if (config_.endpoint.paths == 1) return link(from, to);
  const std::uint32_t pair = std::uint32_t{from} * (config_.hosts - 1U) + (to < from ? to : to - 1U);
  return simulator_.network().link(pair * (1U + config_.endpoint.paths) + 1U + path);
}

void Simulation::every_link(const std::function<void(Link&)>& change) {
  for (std::uint16_t from = 0; from < config_.hosts; ++from) {
    for (std::uint16_t to = 0; to < config_.hosts; ++to) {
      if (to != from) change(link(from, to));
    }
  }
}

void Simulation::connect(std::uint16_t a, std::uint16_t b) {
  simulator_.connect(a, b);
  settle();
}

void Simulation::disconnect(std::uint16_t a, std::uint16_t b, DurationNs later_ns) {
  simulator_.disconnect(a, b, later_ns);
  settle();
}

void Simulation::pause(std::uint16_t host, TimeNs until) { simulator_.host(host).pause(now(), until); }

core::PostStatus Simulation::send(std::uint16_t host, const core::SendRequest& request) {
  const core::PostStatus status = simulator_.send(host, request);
  settle();
  return status;
}

core::PostStatus Simulation::receive(std::uint16_t host, const core::ReceiveRequest& request) {
  const core::PostStatus status = simulator_.receive(host, request);
  settle();
  return status;
}

void Simulation::cancel(std::uint16_t host, core::OperationId operation, core::CompletionKind kind) {
  simulator_.cancel(host, operation, kind);
  settle();
}

void Simulation::wake(std::uint16_t host) {
  simulator_.host(host).wake(now());
  settle();
}

void Simulation::limit_path(std::uint16_t host, std::uint16_t peer, std::uint32_t payload_bytes) {
  simulator_.limit_path(host, {peer, payload_bytes});
  settle();
}

void Simulation::inject(std::uint16_t to, std::span<const std::byte> bytes, base::Ecn ecn) {
  std::vector<std::byte> copy(bytes.begin(), bytes.end());
  sim::Packet packet;
  packet.to = to;
  packet.ecn = ecn;
  packet.size = static_cast<std::uint32_t>(copy.size());
  packet.bytes = copy.data();
  simulator_.host(to).receive(now(), packet);
  settle();
}

void Simulation::message(std::uint16_t to, std::uint16_t from, std::span<const std::byte> bytes) {
  simulator_.host(to).control(now(), from, bytes, false);
  settle();
}

void Simulation::run_for(DurationNs duration) {
  simulator_.run_for(duration);
  check();
}

bool Simulation::run_until(const std::function<bool()>& condition, DurationNs limit) {
  const bool held = simulator_.run_until(condition, limit);
  check();
  return held;
}

bool Simulation::run_until_completed(std::uint16_t host, std::size_t count, DurationNs limit) {
  return run_until([&] { return completed_[host].size() >= count; }, limit);
}

const Completed* Simulation::find(std::uint16_t host, core::OperationId operation, core::CompletionKind kind) const {
  const auto found = first_[host].find({operation, kind});
  return found == first_[host].end() ? nullptr : &completed_[host][found->second];
}

void Simulation::reads(std::uint16_t rank, TimeNs local, std::span<const std::byte> bytes, bool by_control) {
  (void)local;
  if (!on_delivery) return;
  Flight flight;
  flight.to = rank;
  flight.type = type_of(bytes);
  flight.by_control_connection = by_control;
  flight.bytes.assign(bytes.begin(), bytes.end());
  on_delivery(rank, flight);
}

void Simulation::sends_run(std::uint16_t rank, TimeNs local, const core::Transmit& run) {
  (void)local;
  if (on_run) on_run(rank, run);
}

void Simulation::check() const { REQUIRE_MESSAGE(simulator_.fault().empty(), simulator_.fault(), ", seed ", seed()); }

}  // namespace mlt::test
