#include "sim/scenario_short.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "wire/packet.h"

namespace mlt::sim {

namespace {

using base::DurationNs;
using base::kMillisecond;
using base::Prng;

// What every path carries (clause R2.6.5), and a little more: the protocol does not know shorter limits.
constexpr std::uint32_t kMinBytes = 560;

// Long enough for a search that a loss starts, over a link with other losses too.
void draw_short_link(Prng& prng, Scenario& scenario) {
  const std::uint32_t full = scenario.simulator.segment_bytes + MLT_DATA_HEADER_BYTES;
  Accident accident;
  accident.kind = Accident::Kind::kShortLink;
  const std::vector<Edge> edges = scenario.topology().edges;
  accident.a = static_cast<std::uint32_t>(prng.below(edges.size()));
  accident.start_ns = static_cast<DurationNs>(prng.below(40 * kMillisecond));
  // Half of them on the path of a transfer of full packets.
  const Exchange& exchange = scenario.exchanges[prng.below(scenario.exchanges.size())];
  if (prng.chance(0.5) && exchange.send.bytes >= scenario.simulator.segment_bytes) {
    const auto nic = std::find_if(edges.begin(), edges.end(),
                                  [&exchange](const Edge& edge) { return edge.from == exchange.send.host; });
    accident.a = static_cast<std::uint32_t>(nic - edges.begin());
    accident.start_ns =
        std::max<DurationNs>(0, exchange.send_at_ns - static_cast<DurationNs>(prng.below(kMillisecond)));
  }
  accident.length_ns = static_cast<DurationNs>(5e6 * std::exp(prng.uniform() * std::log(800.0)));  // 5 ms to 4 s
  // Most of them one or a few bytes too short, like the overhead of a tunnel.
  const std::uint64_t max_bytes = full - 1 - kMinBytes;
  const std::uint64_t missing =
      prng.chance(0.6) ? 1 + prng.below(std::min<std::uint64_t>(max_bytes, 100)) : prng.below(max_bytes);
  accident.amount = static_cast<double>(full - std::max<std::uint64_t>(missing, 1));
  scenario.accidents.push_back(accident);
  scenario.quiet_ns = std::max(scenario.quiet_ns, accident.start_ns + accident.length_ns);
}

}  // namespace

void draw_short_links(Scenario& scenario) {
  Prng prng(Prng(scenario.seed ^ 0x5403712ULL).next());
  if (scenario.faultless || scenario.control_datagrams_lost) return;
  if (scenario.simulator.segment_bytes + MLT_DATA_HEADER_BYTES <= kMinBytes + 1 || !prng.chance(0.4)) return;
  for (std::uint64_t more = 1 + prng.below(3); more > 0; --more) draw_short_link(prng, scenario);
}

}  // namespace mlt::sim
