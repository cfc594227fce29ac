// What one seed means: a network, its hosts, what they send each other and what goes wrong, all drawn from the seed
// (swarm testing: every run has its own mix of features, many of them absent, so that rare pairs of them meet).
//
// Absent on purpose: running it (sim/swarm.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/oracle.h"
#include "sim/simulator.h"

namespace mlt::sim {

enum class Shape : std::uint8_t { kStar, kDumbbell, kLeafSpine };

struct Accident {
  enum class Kind : std::uint8_t {
    kPause,       // a: host; it stops for a while
    kPartition,   // a and b can't reach each other (one way or both) for a while
    kLinkDown,    // edge a, down for a while
    kGrayLink,    // edge a loses `amount` of its packets for a while
    kSlowLink,    // edge a runs at `amount` of its rate for a while; of two at once the slower counts
    kDisconnect,  // a and b lose their control connection and make a new one
    kCrash,       // a: host; its process dies and starts again after a while
    kBlackHole,   // edge a: data only is lost, or control datagrams only (amount 0 or 1)
    kLeave,       // a: host; its process leaves in order, and starts again after a while
    kPathLimit,   // host a is told that the network carries no larger payload to b than `amount`
    kShortLink,   // edge a carries no datagram of more than `amount` bytes for a while, and nobody is told
    kPausedLink,  // edge a: its port sends no data (amount 0), or nothing at all (amount 1), for a while, and keeps it
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
  base::DurationNs feed_every_ns = 0;  // parts of a fed send (Plan::fed_parts): the first so long after the post
  base::DurationNs cancel_at_ns = 0;   // 0: never
  bool cancel_send = false;
};

struct Scenario {
  std::uint64_t seed = 0;
  Shape shape = Shape::kStar;
  std::uint32_t spines = 1;
  std::vector<double> spine_delay;  // times the propagation of the fabric's links, per spine: paths that differ
  std::uint16_t hosts = 2;
  SimulatorConfig simulator;
  Fabric fabric;
  bool clocks_differ = false;
  base::DurationNs wake_up_most_ns = 0;
  std::vector<Exchange> exchanges;
  std::vector<Accident> accidents;
  bool control_datagrams_lost = false;  // all of them, for good: only the control connections work
  bool faultless = false;               // nothing drops, repeats or reorders, and no host or connection fails
  base::DurationNs quiet_ns = 0;        // faults and accidents are over by then; impairments of links too
  // By then every operation has ended: the timeouts of those whose other side is gone are shorter.
  base::DurationNs limit_ns = 0;

  Topology topology() const;
  std::string text() const;
};

// Regressions keep the meaning that their seeds had. kFirst: the oldest, whose neighbours were not independent.
// kSecond: before orderly ends, path limits, sequence numbers that wrap, peers beyond their share and round bounds.
// kThird: before networks that lose nothing and are late. kFourth: before links that carry short datagrams only,
// and before tags were forgotten. kFifth: before sends whose segments become ready one after another.
enum class Draw : std::uint8_t { kFirst, kSecond, kThird, kFourth, kFifth, kSixth };
Scenario draw_scenario(std::uint64_t seed, Draw draw = Draw::kSixth);

}  // namespace mlt::sim
