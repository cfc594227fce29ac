#include "sim/scenario_late.h"

#include <algorithm>
#include <cmath>

#include "sim/log_uniform.h"

namespace mlt::sim {

namespace {

using base::DurationNs;
using base::kMillisecond;
using base::kSecond;
using base::Prng;

// One spine, or all but one, is slower by 1 to 200 ms; a few transfers are long enough to be affected.
void draw_slow_path(Prng& prng, Scenario& scenario) {
  if (scenario.shape != Shape::kLeafSpine || scenario.spines < 2) {
    scenario.shape = Shape::kLeafSpine;
    scenario.hosts = static_cast<std::uint16_t>(scenario.hosts + scenario.hosts % 2);
    scenario.spines = static_cast<std::uint32_t>(2 + prng.below(3));
  }
  core::EndpointConfig& endpoint = scenario.simulator.host.endpoint;
  endpoint.paths = std::max(endpoint.paths, static_cast<std::uint8_t>(2 + prng.below(3)));
  for (std::uint64_t more = 1 + prng.below(3); more > 0; --more) {
    Exchange& exchange = scenario.exchanges[prng.below(scenario.exchanges.size())];
    if (exchange.send.bytes != exchange.receive.bytes || exchange.send.element != wire::ElementType::kFloat32) continue;
    if (exchange.receive.element != exchange.send.element) continue;
    exchange.send.bytes = exchange.receive.bytes = 4 * static_cast<std::uint32_t>(10'000 + prng.below(90'000));
    exchange.send.priorities.clear();
    exchange.receive.loss_bound = 0.5 + 0.49 * prng.uniform();
    exchange.receive.stop = core::StopPolicy::kPatient;
  }
  scenario.spine_delay.resize(scenario.spines, 1.0);
  const std::uint64_t odd = prng.below(scenario.spines);
  const bool others = prng.chance(0.2);
  // A spine is two links away from either leaf.
  const double more = log_uniform(prng, 1e6, 2e8) / 2 / static_cast<double>(scenario.fabric.core_link.propagation_ns);
  for (std::uint64_t spine = 0; spine < scenario.spines; ++spine) {
    if ((spine == odd) != others) scenario.spine_delay[spine] += more;
  }
  // The window must cover a round trip, or no large transfer ends in time.
  scenario.simulator.window_bytes = std::max(scenario.simulator.window_bytes, 4U << 20);
}

void draw_held_link(Prng& prng, Scenario& scenario) {
  Accident accident;
  accident.a = static_cast<std::uint32_t>(prng.below(scenario.topology().edges.size()));
  accident.start_ns = static_cast<DurationNs>(prng.below(30 * kMillisecond));
  if (prng.chance(0.6)) {
    accident.kind = Accident::Kind::kPausedLink;
    accident.amount = prng.chance(0.7) ? 0 : 1;
    accident.length_ns = static_cast<DurationNs>(log_uniform(prng, 1e6, 2e9));
  } else {
    accident.kind = Accident::Kind::kSlowLink;
    accident.amount = log_uniform(prng, 0.001, 0.01);
    accident.length_ns = static_cast<DurationNs>(log_uniform(prng, 1e6, 5e8));
  }
  scenario.accidents.push_back(accident);
  scenario.quiet_ns = std::max(scenario.quiet_ns, accident.start_ns + accident.length_ns);
}

void draw_classes(Prng& prng, const Scenario& scenario, Plan& send) {
  const std::uint32_t classes = scenario.simulator.host.endpoint.dscp.data_classes;
  const std::uint32_t segments = core::SegmentGrid(send.bytes, scenario.simulator.segment_bytes).count();
  send.priorities.clear();
  for (std::uint32_t segment = 0; segment < segments; ++segment) {
    send.priorities.push_back({static_cast<std::uint8_t>(prng.below(classes))});
    if (prng.chance(0.5)) send.priorities.back().bits |= core::SegmentPriority::kImportant;
  }
}

}  // namespace

void draw_late(Scenario& scenario) {
  Prng prng(Prng(scenario.seed ^ 0x1A7EULL).next());
  if (!scenario.faultless || !prng.chance(0.7)) return;
  if (prng.chance(0.4)) draw_slow_path(prng, scenario);
  if (prng.chance(0.7)) {
    for (std::uint64_t more = 1 + prng.below(3); more > 0; --more) draw_held_link(prng, scenario);
  }
  for (Exchange& exchange : scenario.exchanges) {
    if (prng.chance(0.2)) draw_classes(prng, scenario, exchange.send);
    // Large parts may be missing: anything declared lost too early then stays missing.
    if (exchange.receive.loss_bound > 0 && prng.chance(0.5)) exchange.receive.loss_bound = 0.5 + 0.49 * prng.uniform();
  }
  // Delayed data arrives all at once, and the socket must not drop any.
  scenario.simulator.host.socket_buffer_bytes = 1U << 30;
}

}  // namespace mlt::sim
