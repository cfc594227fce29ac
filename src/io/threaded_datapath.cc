#include "io/threaded_datapath.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace mlt::io {

namespace {

// What the threads themselves count: the first of reported_.
enum OwnCounter : std::size_t {
  kThreads,
  kLoops,
  kSleeps,
  kWakes,            // by the owner, of a thread that slept
  kSendRingFull,     // the owner found no room
  kSendsTimedOut,    // the system took nothing for too long; the run was lost
  kReceiveRingFull,  // more handed up than was asked for; dropped
  kOwnCounters
};
constexpr std::array<std::string_view, kOwnCounters> kOwnNames = {
    "io_threads",        "io_thread_loops",    "io_thread_sleeps",     "io_thread_wakes",
    "io_send_ring_full", "io_sends_timed_out", "io_receive_ring_full",
};

}  // namespace

std::unique_ptr<ThreadedDatapath> ThreadedDatapath::open(std::vector<IoGroup> groups, std::uint16_t peers,
                                                         base::DurationNs spin_ns, OsError& error) {
  MLT_CHECK(!groups.empty());
  std::unique_ptr<ThreadedDatapath> threaded(new ThreadedDatapath());
  if (!threaded->owner_.bell.is_open()) {
    error = os_error(errno, "open a descriptor for the I/O threads of", groups[0].network->local_address().format());
    return nullptr;
  }
  const std::size_t paths = groups[0].network->paths();
  threaded->known_peers_.resize(peers);
  threaded->group_of_.resize(paths);
  threaded->path_addresses_.resize(paths);
  threaded->path_devices_.resize(paths);
  threaded->capabilities_ = groups[0].outer->capabilities();
  threaded->capabilities_.name = "threads(" + threaded->capabilities_.name + ")";
  std::size_t served = 0;
  for (IoGroup& group : groups) {
    served += group.paths.size();
    threaded->combine(group.outer->capabilities());
    if (!threaded->add_group(std::move(group), spin_ns, error)) return nullptr;
  }
  MLT_CHECK(served == paths);
  threaded->name_counters();
  return threaded;
}

bool ThreadedDatapath::add_group(IoGroup group, base::DurationNs spin_ns, OsError& error) {
  const auto number = static_cast<std::uint8_t>(groups_.size());
  for (const std::uint8_t path : group.paths) {
    MLT_CHECK(path < group_of_.size());
    group_of_[path] = number;
    path_addresses_[path] = group.network->path_address(path);
    path_devices_[path] = group.network->path_device(path);
  }
  auto thread = IoThread::start(std::move(group.outer), {number, group.cpu, spin_ns}, owner_, error);
  if (!thread) return false;
  groups_.push_back({group.network, std::move(thread)});
  return true;
}

void ThreadedDatapath::combine(const Capabilities& can) {
  capabilities_.max_run_segments = std::min(capabilities_.max_run_segments, can.max_run_segments);
  capabilities_.max_run_bytes = std::min(capabilities_.max_run_bytes, can.max_run_bytes);
  capabilities_.max_datagram_bytes = std::min(capabilities_.max_datagram_bytes, can.max_datagram_bytes);
  capabilities_.receive_buffer_bytes = std::min(capabilities_.receive_buffer_bytes, can.receive_buffer_bytes);
  capabilities_.sets_dscp &= can.sets_dscp;
  capabilities_.reads_ecn &= can.reads_ecn;
  capabilities_.segmentation_offload &= can.segmentation_offload;
  capabilities_.receive_offload &= can.receive_offload;
  capabilities_.busy_poll &= can.busy_poll;
}

// ---- peers ---------------------------------------------------------------------------------------------------------

bool ThreadedDatapath::set_peer(std::uint16_t rank, const SocketAddress& address, OsError& error) {
  return set_peer_paths(rank, std::span(&address, 1), error);
}

bool ThreadedDatapath::set_peer_paths(std::uint16_t rank, std::span<const SocketAddress> addresses, OsError& error) {
  bool known = true;
  for (const Group& group : groups_) {
    group.thread->ask([&](Datapath&) { known = known && group.network->set_peer_paths(rank, addresses, error); });
  }
  if (known) known_peers_[rank] = true;
  return known;
}

NetworkDatapath::PathCount ThreadedDatapath::path_count(std::uint8_t path) const {
  const Group& group = groups_[group_of_[path]];
  PathCount count;
  group.thread->ask([&](Datapath&) { count = group.network->path_count(path); });
  return count;
}

// ---- sending -------------------------------------------------------------------------------------------------------

SendStatus ThreadedDatapath::send(base::TimeNs, const base::DatagramRun& run) {
  if (run.peer >= known_peers_.size() || !known_peers_[run.peer] || run.path >= paths()) return SendStatus::kNoPeer;
  if (run.total_bytes > capabilities_.max_run_bytes ||
      std::min(run.datagram_bytes, run.total_bytes) > capabilities_.max_datagram_bytes) {
    return SendStatus::kTooLarge;
  }
  if (!groups_[group_of_[run.path]].thread->send(taken_, run)) {
    ++send_ring_full_;
    return SendStatus::kWouldBlock;
  }
  ++taken_;
  return SendStatus::kSent;
}

std::uint64_t ThreadedDatapath::oldest_run() const {
  std::uint64_t oldest = taken_;
  for (const Group& group : groups_) oldest = std::min(oldest, group.thread->sends().oldest(taken_));
  return oldest;
}

void ThreadedDatapath::wake_threads() {
  for (const Group& group : groups_) group.thread->wake();
}

std::uint64_t ThreadedDatapath::runs_left() {
  wake_threads();
  if (const std::uint64_t oldest = oldest_run(); oldest == taken_) return oldest;
  // Said before the second look: what leaves after it rings the bell.
  owner_.waits_for_sends.store(true);
  return oldest_run();
}

bool ThreadedDatapath::all_have_room() {
  return std::all_of(groups_.begin(), groups_.end(), [](const Group& one) { return one.thread->sends().has_room(); });
}

bool ThreadedDatapath::has_room() {
  if (all_have_room()) return true;
  ++send_ring_full_;
  wake_threads();
  owner_.waits_for_sends.store(true);
  return all_have_room();
}

bool ThreadedDatapath::poll_refused(RefusedRun& refused) {
  for (const Group& group : groups_) {
    if (!group.thread->sends().pop_refused(refused)) continue;
    if (refused.status == SendStatus::kFailed) last_error_ = refused.error;
    return true;
  }
  return false;
}

// ---- receiving -----------------------------------------------------------------------------------------------------

std::size_t ThreadedDatapath::take_received(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) {
  std::size_t count = 0;
  ++turn_;
  for (std::size_t i = 0; i < groups_.size() && count < budget_runs; ++i) {
    // What the earlier ones left, in equal parts; with fewer runs than groups the others have their turn next time.
    const std::size_t part = (budget_runs - count + groups_.size() - i - 1) / (groups_.size() - i);
    count += groups_[(turn_ + i) % groups_.size()].thread->receive(now, part, sink);
  }
  return count;
}

std::size_t ThreadedDatapath::receive(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) {
  wake_threads();
  const std::size_t count = take_received(now, budget_runs, sink);
  if (count > 0 || budget_runs == 0) return count;
  // Nothing there: the next arrival rings, and what came meanwhile is taken now.
  owner_.bell.arm();
  return take_received(now, budget_runs, sink);
}

// ---- counters ------------------------------------------------------------------------------------------------------

// The threads' names and those of what is inside, each once: groups count their paths under names of their own.
void ThreadedDatapath::name_counters() {
  for (const std::string_view name : kOwnNames) reported_.push_back({name, 0});
  for (const Group& group : groups_) {
    group.thread->ask([&](Datapath& outer) {
      const auto add = [&](std::span<const NamedCounter> counters) {
        for (const NamedCounter& counter : counters) {
          const auto same = [&](const NamedCounter& one) { return one.name == counter.name; };
          if (std::none_of(reported_.begin(), reported_.end(), same)) reported_.push_back({counter.name, 0});
        }
      };
      add(group.network->counters());
      if (&outer != group.network) add(outer.counters());
    });
  }
}

std::span<const NamedCounter> ThreadedDatapath::counters() const {
  for (NamedCounter& counter : reported_) counter.value = 0;
  const auto count = [this](std::span<const NamedCounter> counters) {
    for (const NamedCounter& counter : counters) {
      const auto same = [&](const NamedCounter& one) { return one.name == counter.name; };
      std::find_if(reported_.begin(), reported_.end(), same)->value += counter.value;
    }
  };
  reported_[kThreads].value = groups_.size();
  reported_[kSendRingFull].value = send_ring_full_;
  for (const Group& group : groups_) {
    reported_[kWakes].value += group.thread->wakes();
    group.thread->ask([&](Datapath& outer) {
      const IoThread::Counts& counts = group.thread->counts();
      reported_[kLoops].value += counts.loops;
      reported_[kSleeps].value += counts.sleeps;
      reported_[kSendsTimedOut].value += counts.sends_timed_out;
      reported_[kReceiveRingFull].value += counts.receive_ring_full;
      count(group.network->counters());
      if (&outer != group.network) count(outer.counters());
    });
  }
  return reported_;
}

}  // namespace mlt::io
