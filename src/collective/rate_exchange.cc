#include "collective/rate_exchange.h"

#include <algorithm>
#include <utility>

namespace mlt::collective {

RateExchange::Place RateExchange::place_of(std::uint32_t sequence) const {
  const auto members = static_cast<std::uint32_t>(codes_.size());
  const std::uint32_t since = sequence - first_, length = kCallsPerTurn * members;
  return {since / length, since % length / kCallsPerTurn, since % length == 0, since % kCallsPerTurn == 0};
}

// PROTOCOL 22.8.2: The calls of a group from its first, or from that with which it resumes (22.1.15), MUST be numbered
//     from 0, in periods of 4n. In every fourth call of a period, from the first on, the turn j from 0, the member of
//     index i MUST announce the rate of the link from the member of index (i - j) mod n: in turn 0 its own, later what
//     the shape from the member before it announced in the turn before. In all other calls, and in groups of one or
//     two, it MUST announce 0.
// PROTOCOL 22.8.3: The rings of a period MUST be cut by the rates announced in the period before, and those of the
//     first period into equal chunks.
std::uint8_t RateExchange::begin(std::uint32_t epoch, std::uint32_t sequence,
                                 const std::function<std::uint8_t()>& own_rate) {
  const auto members = static_cast<std::uint32_t>(codes_.size());
  if (members < kMinMembers) return kNoShares;
  if (epoch != epoch_) {
    epoch_ = epoch;
    first_ = sequence;
    std::ranges::fill(codes_, kNoShares);
  }
  const Place place = place_of(sequence);
  // Not only now: after a pause, which a program may make before every period, nothing is known of the link.
  if (place.announces) slowest_ = std::min(slowest_, own_rate());
  if (place.is_first) {
    period_ = place.period;
    shares_ = shares_by_rate(codes_);
    std::ranges::fill(codes_, kNoShares);
    codes_[own_] = announced_ = next_code(std::exchange(slowest_, kNoLimit));
  }
  return place.announces ? codes_[(own_ + members - place.turn) % members] : kNoShares;
}

// PROTOCOL 22.8.1: A member SHOULD NOT raise what it announces by more than 1 from one period to the next, unless to
//     255: a link that carries little shows no limit, and that alone must not fill it again.
std::uint8_t RateExchange::next_code(std::uint8_t measured) const {
  const auto is_rate = [](std::uint8_t code) { return code != kNoShares && code != kNoLimit; };
  return is_rate(announced_) && is_rate(measured) && measured > announced_ ? static_cast<std::uint8_t>(announced_ + 1)
                                                                           : measured;
}

void RateExchange::on_announced(std::uint32_t epoch, std::uint32_t sequence, std::uint8_t code) {
  const auto members = static_cast<std::uint32_t>(codes_.size());
  if (members < kMinMembers || epoch != epoch_) return;
  const Place place = place_of(sequence);
  if (!place.announces || place.period != period_ || place.turn + 1 >= members) return;
  codes_[(own_ + 2 * members - place.turn - 1) % members] = code;
}

}  // namespace mlt::collective
