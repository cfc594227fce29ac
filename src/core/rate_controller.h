// What a rate controller is: one object per peer, told of every round-trip sample, asked for a rate. One file per
// algorithm; none reads a clock. Rates are payload-plus-header bytes per second.
#pragma once

#include <concepts>
#include <cstdint>

#include "base/time.h"

namespace mlt::core {

template <typename T>
concept RateController =
    requires(T controller, const T& constant, base::TimeNs now, base::DurationNs rtt_ns, std::uint64_t bytes) {
      // Something is sent, and nothing was in flight.
      { controller.on_resumed() } -> std::same_as<void>;
      // A report that arrived at `now` tells of so many bytes, of headers and payload, that the peer was not known to
      // have. Before the report's sample.
      { controller.on_delivered(now, bytes) } -> std::same_as<void>;
      // Most of a round of many packets must be sent again.
      { controller.on_round_lost() } -> std::same_as<void>;
      // A round-trip sample of a data packet.
      { controller.on_rtt_sample(now, rtt_ns) } -> std::same_as<void>;
      // Current sending rate; positive.
      { constant.rate_bytes_per_second() } -> std::convertible_to<double>;
    };

}  // namespace mlt::core
