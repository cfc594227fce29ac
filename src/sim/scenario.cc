#include "sim/scenario.h"

#include <algorithm>
#include <cmath>

#include "sim/log_uniform.h"
#include "sim/scenario_budget.h"
#include "sim/scenario_collectives.h"
#include "sim/scenario_erasure.h"
#include "sim/scenario_fed.h"
#include "sim/scenario_first_use.h"
#include "sim/scenario_late.h"
#include "sim/scenario_long.h"
#include "sim/scenario_retirement.h"
#include "sim/scenario_short.h"
#include "sim/scenario_up_to.h"
#include "sim/scenario_window.h"

namespace mlt::sim {

namespace {

using base::DurationNs;
using base::kMicrosecond;
using base::kMillisecond;
using base::kSecond;
using base::Prng;

template <typename T>
T pick(Prng& prng, std::initializer_list<T> values) {
  return values.begin()[prng.below(values.size())];
}

DurationNs spread_ns(Prng& prng, DurationNs min, DurationNs max) {
  return static_cast<DurationNs>(log_uniform(prng, static_cast<double>(min), static_cast<double>(max)));
}

Impairments draw_impairments(Prng& prng) {
  Impairments faults;
  if (prng.chance(0.7)) faults.drop = 0.25 * prng.uniform() * prng.uniform();
  if (prng.chance(0.3)) faults.duplicate = 0.2 * prng.uniform();
  if (prng.chance(0.3)) faults.reorder = 0.3 * prng.uniform();
  if (prng.chance(0.2)) faults.corrupt = 0.05 * prng.uniform();
  return faults;
}

void draw_endpoint(Prng& prng, Scenario& scenario) {
  core::EndpointConfig& endpoint = scenario.simulator.host.endpoint;
  scenario.simulator.segment_bytes = pick<std::uint32_t>(prng, {64, 256, 1'432, 1'432, 1'432, 4'096});
  endpoint.paths = static_cast<std::uint8_t>(prng.chance(0.5) ? 1 : pick<std::uint32_t>(prng, {2, 4, 4, 8, 16}));
  endpoint.max_sends = endpoint.max_receives = pick<std::uint32_t>(prng, {16, 128});
  endpoint.max_tags = 512;
  endpoint.retire_after = 0;  // the oracle's watches identify transfers by their numbers as posted
  endpoint.bitmap_words = 1U << 14;
  endpoint.early_segments = static_cast<std::uint32_t>(log_uniform(prng, 1, 256));
  endpoint.max_window_bytes = 0;  // see draw_long_paths()
  endpoint.early_transfers = static_cast<std::uint32_t>(log_uniform(prng, 1, 64));
  endpoint.finished_log = pick<std::uint32_t>(prng, {16, 512});
  endpoint.reply_queue = pick<std::uint32_t>(prng, {4, 64, 512});
  endpoint.packets_per_ack = pick<std::uint32_t>(prng, {1, 10, 10, 10});
  endpoint.operation_timeout_ns = 8 * kSecond;
  endpoint.dscp.data_classes = pick<std::uint8_t>(prng, {1, 3, 7});
  endpoint.timely.line_rate_bytes_per_second = scenario.fabric.host_link.rate_bytes_per_second;
  SimulatorConfig& simulator = scenario.simulator;
  simulator.window_bytes = std::max(static_cast<std::uint32_t>(4'096U << prng.below(10)), 4 * simulator.segment_bytes);
  simulator.host.capabilities.max_run_segments = pick<std::uint32_t>(prng, {1, 7, 64});
  simulator.host.capabilities.max_run_bytes = pick<std::uint32_t>(prng, {9'000, 16'000, 65'507});
  simulator.host.nic_backlog_bytes = pick<std::uint64_t>(prng, {16'384, 262'144});
  simulator.host.socket_buffer_bytes = 4U << 20;
  simulator.control_delay_ns = spread_ns(prng, 20 * kMicrosecond, 5 * kMillisecond);
}

void draw_fabric(Prng& prng, Scenario& scenario) {
  Fabric& fabric = scenario.fabric;
  fabric.host_link.rate_bytes_per_second = pick(prng, {2.5e7, 1.25e8, 1.25e9, 3.125e9});
  fabric.host_link.propagation_ns = spread_ns(prng, 200, 500 * kMicrosecond);
  if (prng.chance(0.4)) fabric.host_link.jitter_ns = spread_ns(prng, 100, 200 * kMicrosecond);
  fabric.host_link.reorder_ns = spread_ns(prng, kMicrosecond, kMillisecond);
  if (!scenario.faultless) {
    if (prng.chance(0.7)) fabric.host_link.data = draw_impairments(prng);
    if (prng.chance(0.5)) fabric.host_link.control = draw_impairments(prng);
  }
  fabric.core_link = fabric.host_link;
  if (prng.chance(0.3)) fabric.core_link.rate_bytes_per_second *= pick(prng, {0.25, 0.5, 4.0});
}

void draw_ports(Prng& prng, Scenario& scenario) {
  const core::DscpMap& dscp = scenario.simulator.host.endpoint.dscp;
  Fabric& fabric = scenario.fabric;
  fabric.port = uniform_port(dscp, kUnlimited, kUnlimited);
  if (scenario.faultless) return;
  const std::uint64_t packet = scenario.simulator.segment_bytes + MLT_DATA_HEADER_BYTES + kOverheadBytes;
  if (prng.chance(0.5)) {
    const auto limit = static_cast<std::uint64_t>(log_uniform(prng, 8, 200)) * packet;
    const std::uint64_t threshold = prng.chance(0.6) ? std::max<std::uint64_t>(packet, limit / 4) : kUnlimited;
    fabric.port = uniform_port(dscp, limit, threshold);
    fabric.port.queues[0].limit_bytes = std::max<std::uint64_t>(limit, 64'000);
    if (threshold != kUnlimited && prng.chance(0.3)) {
      for (std::uint32_t queue = 1; queue < kQueues; ++queue) fabric.port.queues[queue].red_max_bytes = limit / 2 + 1;
    }
  }
  if (prng.chance(0.2)) fabric.switch_buffer_bytes = static_cast<std::uint64_t>(log_uniform(prng, 64, 512)) * packet;
}

void draw_tags(Prng& prng, const Scenario& scenario, Plan& send) {
  const std::uint32_t classes = scenario.simulator.host.endpoint.dscp.data_classes;
  const auto class_of = [&] { return static_cast<std::uint8_t>(prng.below(classes)); };
  send.uniform_priority = core::SegmentPriority::important(class_of());
  if (prng.chance(0.2)) send.uniform_priority.bits &= static_cast<std::uint8_t>(~core::SegmentPriority::kImportant);
  if (!prng.chance(0.5)) return;
  const std::uint32_t segments = core::SegmentGrid(send.bytes, scenario.simulator.segment_bytes).count();
  const double critical = prng.chance(0.5) ? 0.0 : 0.1;
  const bool one_class = scenario.faultless || prng.chance(0.7);  // as in the paper: a layer has one class
  core::SegmentPriority tag{class_of()};
  for (std::uint32_t segment = 0; segment < segments; ++segment) {
    if (!one_class) tag = {class_of()};
    core::SegmentPriority own = tag;
    if (prng.chance(0.5)) own.bits |= core::SegmentPriority::kImportant;
    if (prng.chance(critical)) own.bits |= core::SegmentPriority::kCritical;
    send.priorities.push_back(own);
  }
}

Exchange draw_exchange(Prng& prng, const Scenario& scenario, std::uint64_t index, bool in_order, double max_bytes) {
  Exchange exchange;
  Plan& send = exchange.send;
  Plan& receive = exchange.receive;
  send.host = receive.peer = static_cast<std::uint16_t>(prng.below(scenario.hosts));
  const auto step = static_cast<std::uint16_t>(1 + prng.below(scenario.hosts - 1U));
  send.peer = receive.host = static_cast<std::uint16_t>((send.host + step) % scenario.hosts);
  // Some reuse a tag repeatedly: the k-th send of it matches the k-th receive.
  send.tag = receive.tag = in_order ? 1'000 + index % 3 : index;
  send.element = receive.element =
      prng.chance(0.8)
          ? wire::ElementType::kFloat32
          : pick(prng, {wire::ElementType::kFloat16, wire::ElementType::kInt64, wire::ElementType::kUint8});
  const std::uint32_t size = wire::element_bytes(send.element);
  send.bytes = prng.chance(0.04) ? 0 : size * static_cast<std::uint32_t>(1 + log_uniform(prng, 1, max_bytes / size));
  receive.bytes = send.bytes;
  if (prng.chance(0.02)) receive.bytes += size;
  if (prng.chance(0.01)) receive.element = wire::ElementType::kUint8;
  if (wire::is_floating_point(receive.element) && prng.chance(0.6)) {
    receive.loss_bound = prng.chance(0.2) ? 0.999 * prng.uniform() : 0.3 * prng.uniform();
  }
  receive.stop = prng.chance(0.6) ? core::StopPolicy::kPatient : core::StopPolicy::kEager;
  receive.fill = prng.chance(0.6) ? core::Fill::kZero : core::Fill::kKeep;
  receive.by_place_function = prng.chance(0.2);
  if (prng.chance(0.1)) receive.deadline_ns = spread_ns(prng, 10 * kMicrosecond, 100 * kMillisecond);
  if (!scenario.faultless && prng.chance(0.05)) send.timeout_ns = spread_ns(prng, kMillisecond, kSecond);
  if (!scenario.faultless && prng.chance(0.05)) receive.timeout_ns = spread_ns(prng, kMillisecond, kSecond);
  send.order = static_cast<std::uint32_t>(prng.below(4));
  draw_tags(prng, scenario, send);

  const DurationNs base_ns = static_cast<DurationNs>(index) * 50 * kMicrosecond;
  const DurationNs apart = spread_ns(prng, kMicrosecond, 20 * kMillisecond);
  const bool receive_first = prng.chance(0.6);
  // Sends and receives of one tag match in the order of their posts.
  exchange.send_at_ns = base_ns + (in_order || !receive_first ? 0 : apart);
  exchange.receive_at_ns = base_ns + (in_order || receive_first ? 0 : apart);
  if (!scenario.faultless && prng.chance(0.04)) {
    exchange.cancel_at_ns = base_ns + spread_ns(prng, kMicrosecond, 20 * kMillisecond);
    exchange.cancel_send = prng.chance(0.5);
  }
  return exchange;
}

void draw_accidents(Prng& prng, Scenario& scenario, std::size_t edges) {
  using Kind = Accident::Kind;
  if (scenario.faultless || prng.chance(0.4)) return;
  for (std::uint64_t count = 1 + prng.below(4); count > 0; --count) {
    Accident accident;
    accident.kind = pick(prng, {Kind::kPause, Kind::kPartition, Kind::kLinkDown, Kind::kGrayLink, Kind::kSlowLink,
                                Kind::kDisconnect, Kind::kCrash, Kind::kBlackHole});
    accident.start_ns = static_cast<DurationNs>(prng.below(30 * kMillisecond));
    accident.length_ns = spread_ns(prng, 10 * kMicrosecond, 300 * kMillisecond);
    switch (accident.kind) {
      case Kind::kPartition:
      case Kind::kDisconnect:
        accident.a = static_cast<std::uint32_t>(prng.below(scenario.hosts));
        accident.b = static_cast<std::uint32_t>((accident.a + 1 + prng.below(scenario.hosts - 1U)) % scenario.hosts);
        accident.amount = prng.uniform();
        break;
      case Kind::kPause:
      case Kind::kCrash:
        accident.a = static_cast<std::uint32_t>(prng.below(scenario.hosts));
        break;
      default:
        accident.a = static_cast<std::uint32_t>(prng.below(edges));
        accident.amount =
            accident.kind == Kind::kBlackHole ? static_cast<double>(prng.below(2)) : 0.05 + 0.9 * prng.uniform();
    }
    scenario.accidents.push_back(accident);
  }
}

// Posts after a reconnection: the generations of the same tags start at zero there.
void draw_second_lives(Prng& prng, Scenario& scenario, double max_bytes) {
  const std::size_t before = scenario.exchanges.size();
  for (const Accident& accident : scenario.accidents) {
    if (accident.kind != Accident::Kind::kDisconnect && accident.kind != Accident::Kind::kCrash) continue;
    for (std::uint64_t more = 1 + prng.below(6); more > 0; --more) {
      Exchange exchange = draw_exchange(prng, scenario, prng.below(before), false, max_bytes);
      const auto a = static_cast<std::uint16_t>(accident.a);
      auto b = static_cast<std::uint16_t>(accident.b);
      if (accident.kind == Accident::Kind::kCrash) {
        b = static_cast<std::uint16_t>((a + 1 + prng.below(scenario.hosts - 1U)) % scenario.hosts);
      }
      const bool back = prng.chance(0.5);
      exchange.send.host = exchange.receive.peer = back ? b : a;
      exchange.send.peer = exchange.receive.host = back ? a : b;
      const DurationNs later = accident.start_ns + accident.length_ns + spread_ns(prng, kMicrosecond, kMillisecond);
      exchange.send_at_ns += later;
      exchange.receive_at_ns += later;
      if (exchange.cancel_at_ns > 0) exchange.cancel_at_ns += later;
      scenario.exchanges.push_back(exchange);
    }
  }
}

// Drawn last, so that earlier seeds keep their meaning.
void draw_rarities(Prng& prng, Scenario& scenario, double max_bytes) {
  SimulatorConfig& simulator = scenario.simulator;
  core::EndpointConfig& endpoint = simulator.host.endpoint;
  const std::uint64_t packet = simulator.segment_bytes + MLT_DATA_HEADER_BYTES + kOverheadBytes;
  draw_second_lives(prng, scenario, max_bytes);
  if (prng.chance(0.1)) endpoint.timely.hyper_active_after = 5;
  // A receiver that expects a smaller tensor, or none; one of the two sides may be rejected for lack of space.
  Exchange& smaller = scenario.exchanges[prng.below(scenario.exchanges.size())];
  if (prng.chance(0.1)) smaller.receive.bytes = prng.chance(0.5) ? 0 : smaller.receive.bytes / 16 * 8;
  if (prng.chance(0.05)) endpoint.max_tags = 1U + static_cast<std::uint32_t>(prng.below(16));
  if (prng.chance(0.05)) endpoint.bitmap_words = 1U << (4 + prng.below(4));
  // A bitmap of several datagrams.
  if (simulator.segment_bytes == 64 && scenario.fabric.core_link.rate_bytes_per_second >= 1e8 && prng.chance(0.2)) {
    Exchange& large = scenario.exchanges[prng.below(scenario.exchanges.size())];
    large.send.priorities.clear();
    large.send.bytes = large.receive.bytes =
        64 * (MLT_BITMAP_CHUNK_SEGMENTS + 1U + static_cast<std::uint32_t>(prng.below(2 * MLT_BITMAP_CHUNK_SEGMENTS)));
  }
  if (scenario.faultless) return;
  if (prng.chance(0.1))
    simulator.host.socket_buffer_bytes = static_cast<std::uint64_t>(log_uniform(prng, 8, 128)) * packet;
  if (prng.chance(0.1)) {
    scenario.fabric.switch_buffer_bytes = static_cast<std::uint64_t>(log_uniform(prng, 8, 64)) * packet;
  }
  // Longer than any operation may take: only the control connection works where only data passes.
  if (!scenario.accidents.empty() || !prng.chance(0.1)) return;
  simulator.window_bytes = std::max(simulator.window_bytes, 1U << 20);
  Accident hole;
  hole.kind = Accident::Kind::kBlackHole;
  hole.a = static_cast<std::uint32_t>(prng.below(scenario.topology().edges.size()));
  hole.start_ns = static_cast<DurationNs>(prng.below(10 * kMillisecond));
  hole.length_ns = endpoint.operation_timeout_ns + kSecond;
  hole.amount = 1;
  scenario.accidents.push_back(hole);
}

// Sizes and bounds as users write them: hundreds of elements, and fractions that give whole numbers of them.
void draw_round_bounds(Prng& prng, const Scenario& scenario, Exchange& exchange) {
  const std::uint32_t round = 100 * wire::element_bytes(exchange.send.element);
  if (exchange.send.bytes != exchange.receive.bytes || exchange.send.bytes < round) return;
  exchange.send.bytes = exchange.receive.bytes = exchange.send.bytes / round * round;
  if (!exchange.send.priorities.empty()) {
    exchange.send.priorities.resize(core::SegmentGrid(exchange.send.bytes, scenario.simulator.segment_bytes).count());
  }
  if (!wire::is_floating_point(exchange.receive.element)) return;
  exchange.receive.loss_bound = pick(prng, {0.01, 0.1, 0.25, 0.29, 0.5, 0.57, 0.6, 0.9});
}

void draw_leave(Prng& prng, Scenario& scenario, double max_bytes) {
  Accident accident;
  accident.kind = Accident::Kind::kLeave;
  accident.a = static_cast<std::uint32_t>(prng.below(scenario.hosts));
  accident.start_ns = spread_ns(prng, 100 * kMicrosecond, 30 * kMillisecond);
  accident.length_ns = spread_ns(prng, 10 * kMicrosecond, 300 * kMillisecond);
  scenario.accidents.push_back(accident);
  // All its output fits.
  core::EndpointConfig& endpoint = scenario.simulator.host.endpoint;
  endpoint.finished_log = endpoint.reply_queue = 512;
  for (std::uint64_t more = prng.below(4); more > 0; --more) {
    Exchange exchange = draw_exchange(prng, scenario, prng.below(scenario.exchanges.size()), false, max_bytes);
    const DurationNs later = accident.start_ns + accident.length_ns + spread_ns(prng, kMicrosecond, kMillisecond);
    exchange.send_at_ns += later;
    exchange.receive_at_ns += later;
    if (exchange.cancel_at_ns > 0) exchange.cancel_at_ns += later;
    scenario.exchanges.push_back(exchange);
  }
}

// Close to the length of some transfer's longest segment, where one byte matters.
void draw_path_limit(Prng& prng, Scenario& scenario) {
  const Exchange& exchange = scenario.exchanges[prng.below(scenario.exchanges.size())];
  const std::uint32_t longest = std::min(exchange.send.bytes, scenario.simulator.segment_bytes);
  Accident accident;
  accident.kind = Accident::Kind::kPathLimit;
  accident.a = exchange.send.host;
  accident.b = exchange.send.peer;
  accident.start_ns = exchange.send_at_ns + spread_ns(prng, kMicrosecond, 5 * kMillisecond);
  accident.amount = std::max(0.0, static_cast<double>(longest) + pick(prng, {-1'000.0, -8.0, -4.0, -1.0, 0.0, 8.0}));
  scenario.accidents.push_back(accident);
}

// A separate generator: earlier draws keep their meaning.
void draw_third(Scenario& scenario, double max_bytes) {
  Prng prng(Prng(scenario.seed ^ 0x7417DULL).next());
  core::EndpointConfig& endpoint = scenario.simulator.host.endpoint;
  if (prng.chance(0.3)) {
    for (Exchange& exchange : scenario.exchanges) {
      if (prng.chance(0.5)) draw_round_bounds(prng, scenario, exchange);
    }
  }
  if (prng.chance(0.2)) endpoint.first_sequence = 0U - static_cast<std::uint32_t>(1 + prng.below(200));
  if (prng.chance(0.15)) {
    scenario.simulator.overrunning_host = static_cast<std::uint16_t>(prng.below(scenario.hosts));
    scenario.simulator.overrun_factor = pick<std::uint32_t>(prng, {2, 8, 1'000});
  }
  if (prng.chance(0.2)) {
    for (std::uint64_t more = 1 + prng.below(3); more > 0; --more) draw_path_limit(prng, scenario);
  }
  // Cancellations and pauses without network faults: anything lost then was declared lost too early.
  if (scenario.faultless && prng.chance(0.5)) {
    for (Exchange& exchange : scenario.exchanges) {
      if (!prng.chance(0.15)) continue;
      exchange.cancel_at_ns = exchange.send_at_ns + spread_ns(prng, kMicrosecond, 20 * kMillisecond);
      exchange.cancel_send = prng.chance(0.7);
    }
  }
  if (scenario.faultless && prng.chance(0.3)) {
    Accident pause;
    pause.a = static_cast<std::uint32_t>(prng.below(scenario.hosts));
    pause.start_ns = spread_ns(prng, 100 * kMicrosecond, 20 * kMillisecond);
    pause.length_ns = spread_ns(prng, 10 * kMicrosecond, 200 * kMillisecond);
    scenario.accidents.push_back(pause);
    scenario.simulator.host.socket_buffer_bytes = 1U << 30;  // it drops nothing
  }
  if (!scenario.faultless && prng.chance(0.15)) draw_leave(prng, scenario, max_bytes);
  for (const Accident& accident : scenario.accidents) {
    scenario.quiet_ns = std::max(scenario.quiet_ns, accident.start_ns + accident.length_ns);
  }
}

}  // namespace

Topology Scenario::topology() const {
  switch (shape) {
    case Shape::kStar:
      return star(hosts, fabric);
    case Shape::kDumbbell:
      return dumbbell(hosts / 2, static_cast<std::uint16_t>(hosts - hosts / 2), fabric);
    case Shape::kLeafSpine: {
      Topology made = leaf_spine(2, spines, hosts / 2, fabric);
      const std::uint32_t first_spine = hosts + 2U;
      for (Edge& edge : made.edges) {
        const std::uint32_t spine = std::max(edge.from, edge.to);
        if (spine < first_spine || spine_delay.empty()) continue;
        edge.link.propagation_ns =
            static_cast<DurationNs>(static_cast<double>(edge.link.propagation_ns) * spine_delay[spine - first_spine]);
      }
      return made;
    }
  }
  return star(hosts, fabric);
}

Scenario draw_scenario(std::uint64_t seed, Draw draw) {
  Scenario scenario;
  scenario.seed = seed;
  scenario.simulator.seed = seed;
  // Neighbouring seeds must not differ by the generator's own increment: one would then draw the other's numbers,
  // shifted by one.
  const bool first = draw == Draw::kFirst;
  Prng prng(first ? seed * 0x9E3779B97F4A7C15ULL + 0x5CE7A210ULL : Prng(seed ^ 0x5CE7A210ULL).next());
  scenario.faultless = prng.chance(0.15);
  scenario.hosts =
      static_cast<std::uint16_t>(prng.chance(0.8) ? 2 + prng.below(4) : pick<std::uint64_t>(prng, {8, 16, 32}));
  scenario.shape = pick(prng, {Shape::kStar, Shape::kStar, Shape::kDumbbell, Shape::kLeafSpine});
  if (scenario.shape == Shape::kLeafSpine) {
    scenario.hosts = static_cast<std::uint16_t>(scenario.hosts + scenario.hosts % 2);
    scenario.spines = pick<std::uint32_t>(prng, {2, 4, 8});
  }
  draw_fabric(prng, scenario);
  draw_endpoint(prng, scenario);
  draw_ports(prng, scenario);
  scenario.clocks_differ = prng.chance(0.5);
  if (prng.chance(0.4)) scenario.wake_up_most_ns = spread_ns(prng, kMicrosecond, 200 * kMicrosecond);

  const auto count = static_cast<std::uint64_t>(log_uniform(prng, 3, 60));
  const bool in_order = prng.chance(0.25);
  // Slow networks get less data; otherwise a run would take minutes of virtual time.
  const double slowest =
      std::min(scenario.fabric.host_link.rate_bytes_per_second, scenario.fabric.core_link.rate_bytes_per_second);
  const double max_bytes = std::min(240'000.0, slowest * 0.4 / static_cast<double>(count));
  for (std::uint64_t i = 0; i < count; ++i) {
    scenario.exchanges.push_back(draw_exchange(prng, scenario, i, in_order, max_bytes));
  }
  draw_accidents(prng, scenario, scenario.topology().edges.size());
  draw_rarities(prng, scenario, max_bytes);
  for (const Accident& accident : scenario.accidents) {
    scenario.quiet_ns = std::max(scenario.quiet_ns, accident.start_ns + accident.length_ns);
  }
  scenario.quiet_ns = std::max<DurationNs>(scenario.quiet_ns, 300 * kMillisecond);
  // Draws from here on were added later: earlier seeds keep their meaning if the feature is not chosen.
  if (!scenario.faultless && prng.chance(0.03)) {
    scenario.control_datagrams_lost = true;
    scenario.fabric.host_link.control.drop = 1;
    // Every window costs several timeouts then; the purpose is to see that everything still ends.
    scenario.simulator.window_bytes = 4U << 20;
    // A sender without ACKs does not slow down: a socket buffer of a few packets would drop nine of ten in each round.
    scenario.simulator.host.socket_buffer_bytes = 4U << 20;
    // Nor would a port of a few packets: seed 6038240 got 7 % through in each round, and exceeded its time limit.
    if (draw >= Draw::kFifth) {
      scenario.fabric.port = uniform_port(scenario.simulator.host.endpoint.dscp, kUnlimited, kUnlimited);
      scenario.fabric.switch_buffer_bytes = kUnlimited;
    }
  }
  if (scenario.shape == Shape::kLeafSpine && prng.chance(0.5)) {
    for (std::uint32_t spine = 0; spine < scenario.spines; ++spine) {
      scenario.spine_delay.push_back(log_uniform(prng, 1, 20));
    }
  }
  if (draw >= Draw::kThird) draw_third(scenario, max_bytes);
  if (draw >= Draw::kFourth) draw_late(scenario);
  if (draw >= Draw::kFifth) draw_short_links(scenario);
  if (draw >= Draw::kFifth) draw_retirement(scenario);
  if (draw >= Draw::kSixth) draw_fed(scenario);
  if (draw >= Draw::kSeventh) draw_long_paths(scenario);
  if (draw >= Draw::kSeventh) draw_shared_budgets(scenario);
  if (draw >= Draw::kEighth) draw_up_to(scenario);
  if (draw >= Draw::kNinth) draw_erasure_correction(scenario);
  if (draw >= Draw::kTenth) draw_first_use(scenario);
  if (draw >= Draw::kFifth) widen_window(scenario);
  if (draw >= Draw::kFifth) widen_ports(scenario);
  if (draw >= Draw::kEleventh) draw_collectives(scenario);
  scenario.limit_ns = scenario.quiet_ns + scenario.simulator.host.endpoint.operation_timeout_ns * 3 / 2;
  return scenario;
}

SimulatorConfig Scenario::configured() const {
  SimulatorConfig config = simulator;
  config.adjust = [this](std::uint16_t rank, HostConfig& host) {
    base::Prng prng(seed * 31 + rank);
    if (clocks_differ) {
      host.clock.offset_ns = static_cast<DurationNs>(prng.below(10 * base::kSecond));
      host.clock.drift_ppb = static_cast<std::int64_t>(prng.below(200'000)) - 100'000;
    }
    if (wake_up_most_ns > 0) {
      host.wake_up_ns = static_cast<DurationNs>(prng.below(static_cast<std::uint64_t>(wake_up_most_ns)));
    }
  };
  return config;
}

std::string Scenario::text() const {
  const core::EndpointConfig& endpoint = simulator.host.endpoint;
  const auto impairments = [](const char* name, const Impairments& faults) {
    return std::string(name) + " drop " + std::to_string(faults.drop) + " duplicate " +
           std::to_string(faults.duplicate) + " reorder " + std::to_string(faults.reorder) + " corrupt " +
           std::to_string(faults.corrupt) + "\n";
  };
  static constexpr const char* kShapes[] = {"star", "dumbbell", "leaf-spine"};
  static constexpr const char* kAccidents[] = {"pause",     "partition",  "link down",  "gray link",
                                               "slow link", "disconnect", "crash",      "black hole",
                                               "leave",     "path limit", "short link", "paused link"};
  std::string text =
      "seed " + std::to_string(seed) + ": " + std::to_string(hosts) + " hosts, " +
      kShapes[static_cast<std::size_t>(shape)] + ", " + std::to_string(spines) + " spines, " +
      std::to_string(endpoint.paths) + " paths, segments of " + std::to_string(simulator.segment_bytes) +
      " bytes, window " + std::to_string(simulator.window_bytes) + (endpoint.erasure_correction ? ", parity" : "") +
      (faultless ? ", faultless" : "") + (control_datagrams_lost ? ", all control datagrams lost" : "") +
      (simulator.overrun_factor > 1 ? ", overrun by " + std::to_string(simulator.overrunning_host) : "") +
      ", sequence numbers from " + std::to_string(endpoint.first_sequence) +
      (endpoint.retire_after > 0 ? ", tags forgotten after " + std::to_string(endpoint.retire_after) : "") + "\n";
  text += impairments("data:", fabric.host_link.data) + impairments("control:", fabric.host_link.control);
  if (first_use.is_on) {
    text += "connections on first use, each within " + std::to_string(first_use.set_up_most_ns) + " ns, its sides " +
            std::to_string(first_use.spread_ns) + " ns apart, unreachable after " +
            std::to_string(first_use.give_up_ns) + " ns\n";
  }
  for (const Absence& absence : absences) {
    text += "rank " + std::to_string(absence.host) +
            (absence.length_ns > 0 ? " comes after " + std::to_string(absence.length_ns) + " ns\n" : " never comes\n");
  }
  for (const Accident& accident : accidents) {
    text += std::string(kAccidents[static_cast<std::size_t>(accident.kind)]) + " of " + std::to_string(accident.a) +
            " (" + std::to_string(accident.b) + ", " + std::to_string(accident.amount) + ") from " +
            std::to_string(accident.start_ns) + " ns for " + std::to_string(accident.length_ns) + " ns\n";
  }
  text += std::to_string(exchanges.size()) + " exchanges\n";
  if (!budgets.empty()) text += std::to_string(budgets.size()) + " shared loss budgets\n";
  text += collectives.text();
  return text;
}

}  // namespace mlt::sim
