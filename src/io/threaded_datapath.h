// Several I/O threads for one rank: each has a group of its paths, that is a datapath of its own with their sockets,
// and makes its system calls (IoThread). The owner's thread, which runs the protocol, only fills and empties rings.
//
// A run is sent later than send() answers: the fence of io/datapath.h, runs_taken() and runs_left(), says when memory
// that its slices point to is free, and poll_refused() what the system said. What is not memory of the run's own
// scratch is read by another thread until then, so a datapath that lends its slices for the length of send() alone
// (faults) goes inside, one per group, not around. A thread that sleeps is woken for several runs at once: at the
// latest by the owner's next receive(), which comes before it sleeps itself. Nothing allocates after construction but
// refusals, counters() and last_error().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/counters.h"
#include "io/io_thread.h"
#include "io/network_datapath.h"
#include "io/os_error.h"

namespace mlt::io {

struct IoGroup {
  std::unique_ptr<Datapath> outer;     // what runs are handed to: the network, or faults around it
  NetworkDatapath* network = nullptr;  // the one inside; it knows all paths' numbers, and serves these
  std::vector<std::uint8_t> paths;
  int cpu = -1;  // -1: any
};

class ThreadedDatapath final : public NetworkDatapath {
 public:
  // Every path is in one group. Null on failure, with `error` filled: no thread is left then.
  static std::unique_ptr<ThreadedDatapath> open(std::vector<IoGroup> groups, std::uint16_t peers,
                                                base::DurationNs spin_ns, OsError& error);

  bool set_peer(std::uint16_t rank, const SocketAddress& address, OsError& error) override;
  const SocketAddress& local_address() const override { return path_addresses_.front(); }
  std::uint8_t paths() const override { return static_cast<std::uint8_t>(path_addresses_.size()); }
  const SocketAddress& path_address(std::uint8_t path) const override { return path_addresses_[path]; }
  std::string path_device(std::uint8_t path) const override { return path_devices_[path]; }
  bool set_peer_paths(std::uint16_t rank, std::span<const SocketAddress> addresses, OsError& error) override;
  PathCount path_count(std::uint8_t path) const override;

  const Capabilities& capabilities() const override { return capabilities_; }
  SendStatus send(base::TimeNs now, const base::DatagramRun& run) override;
  std::uint64_t runs_taken() const override { return taken_; }
  std::uint64_t runs_left() override;
  bool has_room() override;
  bool poll_refused(RefusedRun& refused) override;
  std::size_t receive(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) override;
  int readable_fd() const override { return owner_.bell.fd(); }
  // has_room() is the answer to a full ring: no descriptor is writable again with it.
  int writable_fd(const base::DatagramRun&) const override { return -1; }
  // Of the last run that poll_refused() told of.
  std::string last_error() const override { return last_error_; }
  std::span<const NamedCounter> counters() const override;

 private:
  struct Group {
    NetworkDatapath* network = nullptr;  // for questions to the thread; its path_address() never changes
    std::unique_ptr<IoThread> thread;
  };

  ThreadedDatapath() = default;
  bool add_group(IoGroup group, base::DurationNs spin_ns, OsError& error);
  void wake_threads();
  void combine(const Capabilities& can);
  void name_counters();
  std::uint64_t oldest_run() const;
  bool all_have_room();
  std::size_t take_received(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink);

  OwnerBell owner_;  // before the threads, which ring it
  std::vector<Group> groups_;
  std::vector<std::uint8_t> group_of_;  // [path]
  std::vector<SocketAddress> path_addresses_;
  std::vector<std::string> path_devices_;
  std::vector<bool> known_peers_;
  Capabilities capabilities_;
  std::uint64_t taken_ = 0;
  std::uint64_t send_ring_full_ = 0;
  std::size_t turn_ = 0;  // whose refusals and receptions come first
  std::string last_error_;
  mutable std::vector<NamedCounter> reported_;  // added up when asked for
};

}  // namespace mlt::io
