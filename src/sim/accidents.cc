#include "sim/accidents.h"

#include <algorithm>

namespace mlt::sim {

namespace {

constexpr base::DurationNs kConnectSpreadNs = 200 * base::kMicrosecond;

}  // namespace

void Accidents::begin(const Accident& accident) {
  using Kind = Accident::Kind;
  const auto a = static_cast<std::uint16_t>(accident.a);
  const auto b = static_cast<std::uint16_t>(accident.b);
  Network& network = simulator_.network();
  switch (accident.kind) {
    case Kind::kPause:
      return pause ? pause(a, accident.length_ns) : simulator_.pause(a, accident.length_ns);
    case Kind::kPartition:
      network.block(a, b, true);
      if (accident.amount < 0.7) network.block(b, a, true);
      return;
    case Kind::kLinkDown:
      network.link(accident.a).up = false;
      return;
    case Kind::kGrayLink:
      network.link(accident.a).data.drop = network.link(accident.a).control.drop = accident.amount;
      return;
    case Kind::kSlowLink:
      return slow_down(accident);
    case Kind::kDisconnect:
      return simulator_.disconnect(a, b, accident.amount < 0.5 ? 0 : accident.length_ns / 2);
    case Kind::kCrash:
      return simulator_.crash(a, accident.length_ns / 2);
    case Kind::kLeave:
      return simulator_.leave(a);
    case Kind::kPathLimit:
      return simulator_.limit_path(a, {b, static_cast<std::uint32_t>(accident.amount)});
    case Kind::kShortLink:
      network.link(accident.a).mtu_bytes = static_cast<std::uint32_t>(accident.amount);
      return on_short_link(network.link(accident.a).mtu_bytes);
    case Kind::kPausedLink:
      return network.pause(simulator_.now(), accident.a, accident.amount > 0 ? 0xFFU : 0xFEU);
    case Kind::kBlackHole:
      (accident.amount > 0 ? network.link(accident.a).control : network.link(accident.a).data).drop = 1;
      return;
  }
}

// Of two at once the slower applies: at a thousandth of a thousandth of its rate one datagram would take ten seconds,
// and delay all behind it long after the accidents are over.
void Accidents::slow_down(const Accident& accident) {
  Network& network = simulator_.network();
  double& rate = network.link(accident.a).rate_bytes_per_second;
  rate = std::min(rate, network.topology().edges[accident.a].link.rate_bytes_per_second * accident.amount);
}

void Accidents::end(const Accident& accident) {
  using Kind = Accident::Kind;
  const auto a = static_cast<std::uint16_t>(accident.a);
  const auto b = static_cast<std::uint16_t>(accident.b);
  Network& network = simulator_.network();
  switch (accident.kind) {
    case Kind::kPause:
    case Kind::kPathLimit:
      return;
    case Kind::kPartition:
      network.block(a, b, false);
      network.block(b, a, false);
      return;
    case Kind::kDisconnect:
      if (!scenario_.first_use.is_on) simulator_.connect(a, b, kConnectSpreadNs);
      return;
    case Kind::kCrash:
    case Kind::kLeave:
      if (!restarts_) return;
      simulator_.restart(a);
      if (!scenario_.first_use.is_on) simulator_.connect_all(kConnectSpreadNs);
      return;
    case Kind::kPausedLink:
      return network.pause(simulator_.now(), accident.a, 0);
    default:
      network.link(accident.a) = network.topology().edges[accident.a].link;
  }
}

void Accidents::heal() {
  for (std::uint32_t edge = 0; edge < simulator_.network().edge_count(); ++edge) {
    simulator_.network().link(edge).data = {};
    if (!scenario_.control_datagrams_lost) simulator_.network().link(edge).control = {};
  }
}

}  // namespace mlt::sim
