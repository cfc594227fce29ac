// All counters of a rank, as of one moment: what counters() returns, also after the loop ended and its parts are gone.
//
// Locking: take() requires the loop's lock, because it reads the parts; values() runs on any thread.
// Invariant: values() returns one whole snapshot. No turn runs during take(), so that all values fit each other, except
// those of Driving and of I/O threads, which other threads change meanwhile.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "collective/collectives.h"
#include "core/endpoint.h"
#include "engine/datapath_opening.h"
#include "engine/driving.h"
#include "io/control/control_channel.h"
#include "mlt.h"

namespace mlt::engine {

class CounterSnapshot {
 public:
  // Of a summation service.
  struct OfService {
    std::uint64_t rounds = 0;
    std::uint64_t late_pushes = 0;
  };
  // Those that count.
  struct Sources {
    const core::Endpoint& endpoint;
    const OpenedDatapath& datapath;
    const io::ControlChannel& channel;
    const Driving& driving;
    std::uint64_t send_failures = 0;
    std::uint64_t loops = 0;  // turns of the event loop
    std::uint64_t rings_cut_by_rate = 0;
    collective::ChecksumCounts checksums;
    std::uint64_t workers_gone = 0;    // whose share push-pulls no longer have
    std::optional<OfService> service;  // empty: this rank is none
  };

  void take(const Sources& sources);
  // Empty before the first take().
  std::vector<CounterValue> values() const;

 private:
  mutable std::mutex mutex_;
  std::vector<CounterValue> values_;  // guarded by mutex_
};

}  // namespace mlt::engine
