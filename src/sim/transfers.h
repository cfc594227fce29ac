// A schedule of transfers with dependencies, run through production endpoints on a virtual network: the traffic of
// push-pull, a ring or an aggregation tree, and when each part has arrived.
//
// A transfer starts at its host at its start time, once every transfer that it depends on has arrived there; so an
// aggregator forwards when all its inputs have arrived. Every byte that arrives is compared with what was sent. Packets
// take the shortest routes, spread over equal ones, or the routes that the schedule states for a pair of hosts. Absent
// on purpose: the time for summing, aggregation in switches (modelled by a host beside the switch); the translation of
// plans into schedules (mlt.simulation). One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/time.h"

namespace mlt::sim {

// Between two nodes; hosts are numbered first, then switches.
struct Cable {
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  double rate_bytes_per_second = 1.25e9;  // in each direction
  base::DurationNs propagation_ns = base::kMicrosecond;
};

struct ScheduledTransfer {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint64_t bytes = 0;
  base::DurationNs start_ns = 0;     // earliest start, from the start of the run
  std::vector<std::uint32_t> after;  // transfers that end at `from`, as indices into the schedule
};

// The routes of all packets from one host to another: path p takes route p modulo their number. A route is every node
// from `from` to `to`; where several cables join two of them, route k takes cable k modulo their number. The route back
// is the same in reverse unless it is stated.
struct ScheduledWays {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::vector<std::vector<std::uint32_t>> ways;  // at most `paths`
};

struct TransferSchedule {
  std::uint32_t hosts = 0;
  std::uint32_t switches = 0;
  std::vector<Cable> cables;
  std::vector<ScheduledTransfer> transfers;
  std::vector<ScheduledWays> ways;  // for pairs that do not take the shortest
  std::vector<double> line_rates;   // bytes per second, of each host to one peer; 0: its fastest cable's; empty: all 0
  std::vector<std::uint64_t> buffers;           // bytes of memory that the ports of each switch share; empty: no limit
  std::uint32_t paths = 1;                      // over which every transfer is spread
  std::uint64_t queue_limit_bytes = 2'000'000;  // per queue of every switch port
  std::uint64_t queue_threshold_bytes = 200'000;  // above it packets are marked, or dropped if not ECN-capable
  double loss = 0;                                // probability that a cable loses a data packet
  double loss_bound = 0;                          // fraction of every transfer that may be missing
  std::uint64_t seed = 1;
  std::uint32_t segment_bytes = 1'432;
  base::DurationNs limit_ns = 60 * base::kSecond;  // of virtual time
};

struct TransferTimes {
  std::vector<base::DurationNs> finish_ns;  // of each transfer at its receiver, from the start of the run
  std::uint64_t data_packets = 0;           // sent by hosts, retransmissions included
  std::uint64_t drops = 0;                  // of packets of any kind
  std::uint64_t hops = 0;                   // packets times cables crossed
  std::uint64_t events = 0;
  std::uint64_t digest = 0;  // of every event: equal for equal runs
};

inline constexpr std::uint32_t kMaxScheduleHosts = 256;  // every host keeps state for every other
inline constexpr std::uint32_t kMaxTransfersPerHost = 65'536;

// `progress` is called periodically with the number of transfers that have arrived; it may throw to end the run. Throws
// std::invalid_argument, which names the invalid value, before anything runs; std::runtime_error if a transfer failed
// or the time limit was reached.
TransferTimes run_transfers(const TransferSchedule& schedule,
                            const std::function<void(std::uint64_t)>& progress = nullptr);

}  // namespace mlt::sim
