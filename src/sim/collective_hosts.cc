#include "sim/collective_hosts.h"

#include <variant>

#include "base/check.h"
#include "sim/simulator_verbs.h"

namespace mlt::sim {

class CollectiveHosts::Machine final : private SimulatorVerbs {
 public:
  Machine(Simulator& simulator, std::uint16_t rank)
      : SimulatorVerbs(simulator, rank),
        collectives_(rank, *this, simulator.host(rank).config().endpoint.operation_timeout_ns) {}

  collective::Collectives& collectives() { return collectives_; }

  std::vector<collective::CollectiveDone> done;
  base::TimeNs timer_ns = base::kNever;  // the earliest that is scheduled
  bool crashed = false;

 private:
  collective::Collectives collectives_;
};

CollectiveHosts::CollectiveHosts(Simulator& simulator, bool shares_by_rate, bool checksums) : simulator_(simulator) {
  for (std::uint16_t rank = 0; rank < simulator.hosts(); ++rank) {
    machines_.push_back(std::make_unique<Machine>(simulator, rank));
    machines_.back()->collectives().set_shares_by_rate(shares_by_rate);
    machines_.back()->collectives().set_checksums(checksums);
  }
  simulator.on_completion = [this](std::uint16_t rank, const core::Completion& completion) {
    MLT_CHECK(collective::machine_of(completion.operation) == collective::MachineId::kCollective);
    collective::Collectives& machine = machines_[rank]->collectives();
    machine.on_completion(simulator_.now(), completion);
    machine.retry(simulator_.now());
    // What it lacks may be passed on now: a feed is taken in the next turn only.
    simulator_.host(rank).wake(simulator_.now());
    settle(rank);
  };
  simulator.on_machine_message = [this](std::uint16_t rank, std::uint16_t from, std::span<const std::byte> bytes) {
    const auto message = collective::decode(bytes);
    MLT_CHECK(message);
    collective::Collectives& machine = machines_[rank]->collectives();
    if (const auto* failed = std::get_if<collective::Failed>(&*message)) {
      machine.on_message(simulator_.now(), from, *failed);
    } else {
      machine.on_message(simulator_.now(), from, std::get<collective::Called>(*message));
    }
    settle(rank);
  };
  simulator.on_peer_down = [this](std::uint16_t rank, std::uint16_t peer) {
    machines_[rank]->collectives().on_peer_down(simulator_.now(), peer);
    settle(rank);
  };
  simulator.on_crash = [this](std::uint16_t rank, const core::Endpoint&) { machines_[rank]->crashed = true; };
}

CollectiveHosts::~CollectiveHosts() {
  simulator_.on_completion = nullptr;
  simulator_.on_machine_message = nullptr;
  simulator_.on_peer_down = nullptr;
  simulator_.on_crash = nullptr;
}

void CollectiveHosts::start(std::uint16_t rank, const collective::CollectiveRequest& request) {
  MLT_CHECK(!machines_[rank]->crashed);
  machines_[rank]->collectives().start(simulator_.now(), request);
  settle(rank);
}

void CollectiveHosts::cancel(std::uint16_t rank, core::OperationId operation) {
  machines_[rank]->collectives().cancel(simulator_.now(), operation);
  settle(rank);
}

const std::vector<collective::CollectiveDone>& CollectiveHosts::done(std::uint16_t rank) const {
  return machines_[rank]->done;
}

std::uint64_t CollectiveHosts::rings_cut_by_rate(std::uint16_t rank) const {
  return machines_[rank]->collectives().rings_cut_by_rate();
}

const collective::ChecksumCounts& CollectiveHosts::checksum_counts(std::uint16_t rank) const {
  return machines_[rank]->collectives().checksum_counts();
}

bool CollectiveHosts::has_crashed(std::uint16_t rank) const { return machines_[rank]->crashed; }

std::size_t CollectiveHosts::open(std::uint16_t rank) const {
  return machines_[rank]->crashed ? 0 : machines_[rank]->collectives().open();
}

void CollectiveHosts::settle(std::uint16_t rank) {
  Machine& machine = *machines_[rank];
  collective::CollectiveDone done;
  while (machine.collectives().poll_done(done)) {
    machine.done.push_back(done);
    if (on_done) on_done(rank, done);
  }
  const base::TimeNs next = machine.collectives().next_timeout();
  if (next >= machine.timer_ns) return;
  machine.timer_ns = next;
  simulator_.at(next, [this, rank, next] { on_timer(rank, next); });
}

// settle() has already scheduled a timer that was moved to a later time.
void CollectiveHosts::on_timer(std::uint16_t rank, base::TimeNs at) {
  Machine& machine = *machines_[rank];
  if (machine.timer_ns == at) machine.timer_ns = base::kNever;
  if (machine.crashed) return;
  machine.collectives().on_timeout(simulator_.now());
  settle(rank);
}

}  // namespace mlt::sim
