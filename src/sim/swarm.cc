#include "sim/swarm.h"

#include <algorithm>
#include <vector>

#include "sim/accidents.h"
#include "sim/collective_swarm.h"
#include "sim/first_use.h"
#include "sim/simulator.h"

namespace mlt::sim {

namespace {

using base::DurationNs;

// Maximum number of events without progress once the faults are over: more than every timer of every host many times
// over. While a link delivers what it had held back, every delivered packet is progress.
constexpr std::uint64_t kIdleEventsPerHostSecond = 5'000;  // of an operation's timeout
constexpr std::uint64_t kProgressEvery = 1'024;

class SwarmRun {
 public:
  explicit SwarmRun(const Scenario& scenario)
      : scenario_(scenario),
        simulator_(scenario.configured(), scenario.topology()),
        oracle_(simulator_, true),
        accidents_(simulator_, scenario, true),
        first_use_(simulator_, scenario.first_use, scenario.seed),
        ids_(scenario.exchanges.size()) {
    // Rule 8 applies until the network's first fault.
    simulator_.network().on_fault = [this] { oracle_.on_network_fault(); };
    accidents_.pause = [this](std::uint16_t host, DurationNs length_ns) { oracle_.pause(host, length_ns); };
    accidents_.on_short_link = [this](std::uint32_t mtu_bytes) { oracle_.on_short_link(mtu_bytes); };
  }

  Verdict go(const std::function<void(const TraceRecord&)>& trace) {
    simulator_.trace = trace;
    if (trace) {
      simulator_.network().on_drop = [this](const Packet& packet, Fate fate) {
        simulator_.trace({simulator_.now(), TraceKind::kDropped, packet.from, &packet, fate, ""});
      };
    }
    oracle_.on_overrunning(scenario_.simulator.overrunning_host);
    for (const BudgetPlan& budget : scenario_.budgets) {
      oracle_.share_budget(budget.elements, wire::element_bytes(wire::ElementType::kFloat32), budget.bound);
    }
    const base::TimeNs start = simulator_.now();
    connect_all();
    // The connections exist before the first post: a rejected post then has a reason.
    const base::TimeNs first = start + base::kMillisecond;
    for (std::size_t i = 0; i < scenario_.exchanges.size(); ++i) schedule_exchange(first, i);
    for (const Absence& absence : scenario_.absences) {
      simulator_.crash(absence.host, 0);
      if (absence.length_ns > 0)
        later(first + absence.length_ns, [this, &absence] { simulator_.restart(absence.host); });
    }
    for (const Accident& accident : scenario_.accidents) schedule_accident(first, accident);
    simulator_.at(first + scenario_.quiet_ns, [this] { heal(); });
    const base::TimeNs last = first + scenario_.limit_ns;
    std::uint64_t idle_since = 0;
    const auto timeout_s =
        static_cast<std::uint64_t>(scenario_.simulator.host.endpoint.operation_timeout_ns / base::kSecond);
    const std::uint64_t max_idle = kIdleEventsPerHostSecond * simulator_.hosts() * timeout_s;
    std::uint64_t progress = 0;
    std::uint64_t min_in_flight = ~0ULL;
    while (!(scheduled_ == 0 && first_use_.waiting() == 0 && oracle_.all_ended()) && simulator_.step(last)) {
      if (simulator_.events() % kProgressEvery != 0) continue;
      oracle_.check_limits(false);
      const std::uint64_t now = oracle_.progress();
      const std::uint64_t in_flight = packets_in_flight();
      // A rescheduled wake-up leaves an obsolete event: as many as packets that are due at one timeout together.
      const std::uint64_t happened = simulator_.events() - simulator_.turns_moved();
      if (now != progress || !quiet_ || in_flight < min_in_flight) idle_since = happened;
      if (quiet_) min_in_flight = std::min(min_in_flight, in_flight);
      progress = now;
      if (happened - idle_since > max_idle) {
        simulator_.fail("rule 7: " + std::to_string(happened - idle_since) +
                        " events without progress; open: " + oracle_.unfinished());
      }
    }
    const base::TimeNs ended = simulator_.now();
    drain();
    oracle_.finish();
    Verdict verdict;
    verdict.fault = simulator_.fault();
    verdict.events = simulator_.events();
    verdict.hops = simulator_.network().hops();
    verdict.operations = oracle_.posted();
    verdict.completions = oracle_.completions();
    verdict.dropped = simulator_.network().ledger().dropped(true).packets;
    verdict.digest = simulator_.digest();
    verdict.virtual_ns = ended - start;
    return verdict;
  }

 private:
  struct Ids {
    core::OperationId send = 0;
    core::OperationId receive = 0;
  };

  std::uint64_t packets_in_flight() {
    const Ledger& ledger = simulator_.network().ledger();
    return ledger.in_flight(false).packets + ledger.in_flight(true).packets;
  }

  void later(base::TimeNs when, std::function<void()> action) {
    ++scheduled_;
    simulator_.at(when, [this, action = std::move(action)] {
      --scheduled_;
      action();
    });
  }

  // On first use each connection is set up by the first post that needs it.
  void connect_all() {
    if (!scenario_.first_use.is_on) simulator_.connect_all(scenario_.faultless ? 0 : 200 * base::kMicrosecond);
  }

  void schedule_exchange(base::TimeNs first, std::size_t index) {
    const Exchange& exchange = scenario_.exchanges[index];
    later(first + exchange.receive_at_ns, [this, index, &plan = exchange.receive] {
      first_use_.post(plan.host, plan.peer, [this, index, &plan] { ids_[index].receive = oracle_.post_receive(plan); });
    });
    later(first + exchange.send_at_ns, [this, index, &plan = exchange.send] {
      first_use_.post(plan.host, plan.peer, [this, index, &plan] {
        ids_[index].send = oracle_.post_send(plan);
        if (scenario_.first_use.is_on) schedule_feeds(simulator_.now(), index);
      });
    });
    if (!scenario_.first_use.is_on) schedule_feeds(first + exchange.send_at_ns, index);
    if (exchange.cancel_at_ns > 0) {
      later(first + exchange.cancel_at_ns, [this, index] {
        oracle_.cancel(scenario_.exchanges[index].cancel_send ? ids_[index].send : ids_[index].receive);
      });
    }
  }

  void schedule_feeds(base::TimeNs posted, std::size_t index) {
    const Exchange& exchange = scenario_.exchanges[index];
    for (std::uint32_t part = 0; part < exchange.send.fed_parts; ++part) {
      later(posted + (part + 1) * exchange.feed_every_ns,
            [this, index, part] { oracle_.feed(ids_[index].send, part); });
    }
  }

  void schedule_accident(base::TimeNs first, const Accident& accident) {
    later(first + accident.start_ns, [this, &accident] { accidents_.begin(accident); });
    later(first + accident.start_ns + accident.length_ns, [this, &accident] { accidents_.end(accident); });
  }

  // Ends all network faults: whatever is open must end.
  void heal() {
    accidents_.heal();
    quiet_ = true;
  }

  // Delivers what is in flight: late packets must not touch memory that the application has back.
  void drain() {
    // An ABORT without a reply is sent three times.
    const base::TimeNs until = simulator_.now() + 4 * base::kSecond;
    while (simulator_.step(until)) {
    }
    for (int more = 0; more < 60 && simulator_.network().packets_in_use() > 0; ++more) {
      simulator_.run_for(base::kSecond / 4);
    }
  }

  const Scenario& scenario_;
  Simulator simulator_;
  Oracle oracle_;
  Accidents accidents_;
  FirstUse first_use_;
  std::vector<Ids> ids_;
  std::uint64_t scheduled_ = 0;
  bool quiet_ = false;
};

const char* type_name(wire::PacketType type) {
  switch (type) {
    case wire::PacketType::kData:
      return "DATA";
    case wire::PacketType::kAck:
      return "ACK";
    case wire::PacketType::kProbe:
      return "PROBE";
    case wire::PacketType::kBitmap:
      return "BITMAP";
    case wire::PacketType::kStop:
      return "STOP";
    case wire::PacketType::kAbort:
      return "ABORT";
    case wire::PacketType::kMtuProbe:
      return "MTU_PROBE";
    case wire::PacketType::kMtuReply:
      return "MTU_REPLY";
    case wire::PacketType::kRetire:
      return "RETIRE";
    case wire::PacketType::kParity:
      return "PARITY";
  }
  return "?";
}

}  // namespace

Verdict run_scenario(const Scenario& scenario, const std::function<void(const TraceRecord&)>& trace) {
  Verdict verdict = SwarmRun(scenario).go(trace);
  if (!verdict.fault.empty() || scenario.collectives.calls.empty()) return verdict;
  const Verdict collectives = run_collectives(scenario, trace);
  verdict.fault = collectives.fault;
  verdict.events += collectives.events;
  verdict.hops += collectives.hops;
  verdict.operations += collectives.operations;
  verdict.completions += collectives.completions;
  verdict.dropped += collectives.dropped;
  verdict.digest = verdict.digest * 31 + collectives.digest;
  verdict.virtual_ns += collectives.virtual_ns;
  return verdict;
}

std::string trace_line(const TraceRecord& record) {
  std::string line = std::to_string(record.at_ns) + " rank " + std::to_string(record.host) + " ";
  if (record.packet == nullptr) return line + record.text;
  const Packet& packet = *record.packet;
  line += kFateNames[static_cast<std::size_t>(record.fate)];
  line += std::string(" ") + type_name(packet.type) + " " + std::to_string(packet.from) + ">" +
          std::to_string(packet.to) + " path " + std::to_string(packet.path) + " dscp " + std::to_string(packet.dscp) +
          " ecn " + std::to_string(static_cast<int>(packet.ecn)) + " " + std::to_string(packet.size) + " bytes";
  wire::DataHeader header;
  const wire::Prefix& prefix = header.prefix;
  if (wire::decode_prefix(packet.datagram(), header.prefix) != wire::DropReason::kNone) return line + " damaged";
  line += " round " + std::to_string(prefix.round) + " flags " + std::to_string(prefix.flags);
  std::span<const std::byte> payload;
  wire::ParityHeader parity;
  if (packet.type == wire::PacketType::kParity &&
      wire::decode_parity(packet.datagram(), parity, payload) == wire::DropReason::kNone) {
    line += " sequence " + std::to_string(prefix.sequence) + " tag " + std::to_string(parity.tag) + " generation " +
            std::to_string(parity.generation) + " block " + std::to_string(parity.block) + " of " +
            std::to_string(parity.block_segments) + " index " + std::to_string(parity.index);
  }
  if (packet.type == wire::PacketType::kData &&
      wire::decode_data(packet.datagram(), header, payload) == wire::DropReason::kNone) {
    line += " sequence " + std::to_string(prefix.sequence) + " tag " + std::to_string(header.tag) + " generation " +
            std::to_string(header.generation) + " offset " + std::to_string(header.offset_bytes);
  }
  return line;
}

}  // namespace mlt::sim
