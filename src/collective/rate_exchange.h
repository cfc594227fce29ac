// How the members of a group learn each other's rates: every fourth call's shape carries one to the next member, so
// that after as many of these calls as there are members all know all, and cut the calls that follow alike
// (section 22.8 of PROTOCOL.md).
//
// Agreement needs no message of its own, because the calls of a group are in order: when a call begins, those four
// before it have ended, with the shapes that they brought. Absent on purpose: the shares (shares.h).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "collective/shares.h"
#include "collective/verbs.h"

namespace mlt::collective {

class RateExchange {
 public:
  RateExchange() = default;
  // Of a group of `members`, at index `own`.
  RateExchange(std::uint32_t members, std::uint32_t own) : own_(own), codes_(members, kNoShares) {}

  // A call begins; they begin in order. Returns what its shape announces. `own_rate` is asked in every turn: the code
  // of the link to the next member, of which the slowest of a period is announced in the next. An epoch's first call
  // begins anew, with equal chunks: if a member fails before it begins that call, all calls of the epoch fail.
  std::uint8_t begin(std::uint32_t epoch, std::uint32_t sequence, const std::function<std::uint8_t()>& own_rate);
  // The shape of a call, from the member before this one.
  void on_announced(std::uint32_t epoch, std::uint32_t sequence, std::uint8_t code);

  // Of the call that began last.
  const std::vector<std::uint16_t>& shares() const { return shares_; }

 private:
  static constexpr std::uint32_t kCallsPerTurn = kLanes;
  // Between two, every link carries the tensor once, however it is cut.
  static constexpr std::uint32_t kMinMembers = 3;

  // Place of a call in the group's periods.
  struct Place {
    std::uint32_t period = 0;
    std::uint32_t turn = 0;
    bool is_first = false;  // of its period
    bool announces = false;
  };
  Place place_of(std::uint32_t sequence) const;
  std::uint8_t next_code(std::uint8_t measured) const;

  std::uint32_t own_ = 0;
  std::uint32_t epoch_ = 0;
  std::uint32_t first_ = 0;  // call of the epoch
  std::uint32_t period_ = 0;
  std::vector<std::uint8_t> codes_;  // of this period, by member
  std::vector<std::uint16_t> shares_;
  std::uint8_t announced_ = kNoShares;  // of the period before
  std::uint8_t slowest_ = kNoLimit;     // of this rank's link, since the period began
};

}  // namespace mlt::collective
