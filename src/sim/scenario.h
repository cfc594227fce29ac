// The scenario of a seed: a network, its hosts, their transfers and the faults, all drawn from the seed (swarm testing:
// every run has its own mix of features, many of them absent, so that rare pairs of them occur together).
//
// Absent on purpose: running it (sim/swarm.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/collective_call.h"
#include "sim/first_use.h"
#include "sim/oracle.h"
#include "sim/simulator.h"

namespace mlt::sim {

enum class Shape : std::uint8_t { kStar, kDumbbell, kLeafSpine };

struct Accident {
  enum class Kind : std::uint8_t {
    kPause,       // a: host; suspended for a while
    kPartition,   // a and b cannot reach each other (one direction or both) for a while
    kLinkDown,    // edge a, down for a while
    kGrayLink,    // edge a loses `amount` of its packets for a while
    kSlowLink,    // edge a runs at `amount` of its rate for a while; of two at once the slower applies
    kDisconnect,  // a and b lose their control connection and reconnect
    kCrash,       // a: host; its process crashes and restarts after a while
    kBlackHole,   // edge a: drops only data, or only control datagrams (amount 0 or 1)
    kLeave,       // a: host; its process leaves in order, and restarts after a while
    kPathLimit,   // host a learns that the network carries no larger payload to b than `amount`
    kShortLink,   // edge a silently drops datagrams of more than `amount` bytes for a while
    kPausedLink,  // edge a: its port queues data (amount 0), or everything (amount 1), for a while instead of sending
  };
  Kind kind = Kind::kPause;
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  base::TimeNs start_ns = 0;  // after the run's start
  base::DurationNs length_ns = 0;
  double amount = 0;
};

struct Exchange {
  Plan send;
  Plan receive;
  base::DurationNs send_at_ns = 0;  // after the run's start
  base::DurationNs receive_at_ns = 0;
  base::DurationNs feed_every_ns = 0;  // interval of the parts of a fed send (Plan::fed_parts), also before the first
  base::DurationNs cancel_at_ns = 0;   // 0: never
  bool cancel_send = false;
};

// Of what the receives that name it may miss together (Plan::shared_budget).
struct BudgetPlan {
  std::uint64_t elements = 0;
  double bound = 0;
};

// A host that is not there at first.
struct Absence {
  std::uint16_t host = 0;
  base::DurationNs length_ns = 0;  // after the run's start; 0: it never comes
};

struct CollectivesPlan {
  std::vector<GroupPlan> groups;
  std::vector<CallPlan> calls;   // in the order of each group's calls
  std::vector<Accident> deaths;  // of hosts, for good
  bool checksums = false;

  std::string text() const;
};

struct Scenario {
  std::uint64_t seed = 0;
  Shape shape = Shape::kStar;
  std::uint32_t spines = 1;
  std::vector<double> spine_delay;  // factor on the propagation of the fabric's links, per spine: unequal paths
  std::uint16_t hosts = 2;
  SimulatorConfig simulator;
  Fabric fabric;
  bool clocks_differ = false;
  base::DurationNs wake_up_most_ns = 0;
  std::vector<Exchange> exchanges;
  std::vector<BudgetPlan> budgets;  // of float32 receives; number i + 1 is the i-th
  std::vector<Accident> accidents;
  FirstUsePlan first_use;
  std::vector<Absence> absences;        // with connections on first use
  CollectivesPlan collectives;          // run afterwards over the same network, with hosts of its own
  bool control_datagrams_lost = false;  // all of them, permanently: only the control connections work
  bool faultless = false;               // nothing drops, repeats or reorders, and no host or connection fails
  base::DurationNs quiet_ns = 0;        // time by which faults, accidents and impairments are over
  // By then every operation has ended: operations whose other side is gone have shorter timeouts.
  base::DurationNs limit_ns = 0;

  Topology topology() const;
  SimulatorConfig configured() const;  // of hosts that differ; refers to this scenario
  std::string text() const;
};

// Regression seeds keep their meaning. kFirst: the oldest, whose neighbours were not independent. kSecond: before
// orderly ends, path limits, wrapping sequence numbers, peers that exceed their share, and round bounds. kThird: before
// late networks without loss. kFourth: before links that carry only short datagrams, and before tags were forgotten.
// kFifth: before sends whose segments become ready one after another. kSixth: before long paths, windows that grow, and
// sockets that drop though the network does not. kSeventh also has receives that share a loss budget, and is
// before receives that are posted for up to a size. kEighth: before parity packets. kNinth: before connections on first
// use. kTenth: before collectives.
enum class Draw : std::uint8_t {
  kFirst,
  kSecond,
  kThird,
  kFourth,
  kFifth,
  kSixth,
  kSeventh,
  kEighth,
  kNinth,
  kTenth,
  kEleventh
};
Scenario draw_scenario(std::uint64_t seed, Draw draw = Draw::kEleventh);

}  // namespace mlt::sim
