// Interface of a rate controller: one object per peer; it takes every round-trip sample and returns a rate. One file
// per algorithm; none reads a clock. Rates are in bytes of payload and headers per second.
#pragma once

#include <concepts>
#include <cstdint>

#include "base/time.h"
#include "core/reply_wait.h"

namespace mlt::core {

template <typename T>
concept RateController = requires(T controller, const T& constant, base::TimeNs now, base::DurationNs rtt_ns,
                                  const ReplyDelay& reply, std::uint64_t bytes) {
  // The sender sends again after nothing was in flight.
  { controller.on_resumed() } -> std::same_as<void>;
  // A report that arrived at `now` acknowledges this many bytes, of headers and payload, for the first time. Called
  // before the report's sample.
  { controller.on_delivered(now, bytes) } -> std::same_as<void>;
  // Most of a round of many packets must be sent again.
  { controller.on_round_lost() } -> std::same_as<void>;
  // A round-trip sample of a data packet, without the wait of its reply.
  { controller.on_rtt_sample(now, rtt_ns, reply) } -> std::same_as<void>;
  // Current sending rate; positive.
  { constant.rate_bytes_per_second() } -> std::convertible_to<double>;
};

}  // namespace mlt::core
