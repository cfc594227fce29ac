// Connections on first use (3.10 of PROTOCOL.md) in a run of the swarm: what is posted to a peer waits until this host
// knows a connection with it, as posts of the engine do, and is posted without one, and rejected, when the peer has not
// come in time. Either side's first post starts the connection. A peer that left or crashed is connected with again by
// the next post to it.
//
// Absent on purpose: the frames and the hellos of the set-up (io/control), which do not apply under virtual time, and
// when hosts come and go (sim/scenario.h).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "base/prng.h"
#include "base/time.h"
#include "sim/simulator.h"

namespace mlt::sim {

struct FirstUsePlan {
  bool is_on = false;
  // From the first post to the connection, and between its two sides: drawn for each, up to this.
  base::DurationNs set_up_most_ns = 0;
  base::DurationNs spread_ns = 0;
  base::DurationNs give_up_ns = 0;  // a peer that has not come by then is unreachable
};

class FirstUse {
 public:
  FirstUse(Simulator& simulator, const FirstUsePlan& plan, std::uint64_t seed);
  ~FirstUse();
  FirstUse(const FirstUse&) = delete;
  FirstUse& operator=(const FirstUse&) = delete;

  // Runs `action`, which posts something of `host` to `peer`: now, or once it may. In the order of these calls.
  void post(std::uint16_t host, std::uint16_t peer, std::function<void()> action);
  // Posts that wait.
  std::size_t waiting() const { return waiting_; }

 private:
  using Pair = std::pair<std::uint16_t, std::uint16_t>;  // in order: of a host, and its peer

  void request(std::uint16_t host, std::uint16_t peer);
  void try_to_connect(std::uint16_t a, std::uint16_t b, base::TimeNs give_up_at);
  // Posts what waits at `host`, connected or not.
  void release(std::uint16_t host, std::uint16_t peer);

  Simulator& simulator_;
  const FirstUsePlan plan_;
  base::Prng prng_;
  std::map<Pair, std::deque<std::function<void()>>> posts_;
  std::map<Pair, bool> is_connecting_;  // the lower rank first
  std::size_t waiting_ = 0;
};

}  // namespace mlt::sim
