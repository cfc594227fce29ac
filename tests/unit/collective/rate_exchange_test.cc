// How members learn each other's rates: all know the same at the same call, however far their calls are apart.
#include "collective/rate_exchange.h"

#include <doctest/doctest.h>

#include <deque>

#include "base/prng.h"

using namespace mlt::collective;

namespace {

// Members that begin calls when they like, but none before its call four before has the shape of the member before.
class Members {
 public:
  Members(std::uint32_t n, std::uint64_t seed) : prng_(seed) {
    for (std::uint32_t i = 0; i < n; ++i) members_.push_back({RateExchange(n, i), {}, {}, 0});
    rates.assign(n, 150);
  }
  // Of the link from each member to the next.
  std::vector<std::uint8_t> rates;
  std::uint32_t epoch = 0, first = 0;

  // All make so many further calls.
  void run(std::uint32_t calls) {
    const std::uint32_t end = next_ + calls;
    const auto is_over = [&] {
      return std::ranges::all_of(members_, [&](const Member& one) { return one.next == end && one.due.empty(); });
    };
    while (!is_over()) {
      const auto i = static_cast<std::uint32_t>(prng_.below(members_.size()));
      prng_.chance(0.5) ? begin(i, end) : arrive(i);
    }
    next_ = end;
  }
  // Of each call, at a member.
  const std::vector<std::vector<std::uint16_t>>& cuts(std::uint32_t member) const { return members_[member].cuts; }

 private:
  struct Member {
    RateExchange rates;
    std::deque<std::pair<std::uint32_t, std::uint8_t>> due;  // announced to it, not arrived yet
    std::vector<std::vector<std::uint16_t>> cuts;
    std::uint32_t next = 0;
    std::uint32_t arrived = 0;  // calls whose shape has arrived: in order here
  };
  void begin(std::uint32_t i, std::uint32_t end) {
    Member& one = members_[i];
    if (one.next == end || one.next >= one.arrived + kLanes) return;
    const std::uint8_t code = one.rates.begin(epoch, first + one.next, [&] { return rates[i]; });
    members_[(i + 1) % members_.size()].due.emplace_back(one.next, code);
    one.cuts.push_back(one.rates.shares());
    ++one.next;
  }
  void arrive(std::uint32_t i) {
    Member& one = members_[i];
    // A receive is posted once the call has begun here.
    if (one.due.empty() || one.due.front().first >= one.next) return;
    one.rates.on_announced(epoch, first + one.due.front().first, one.due.front().second);
    one.arrived = one.due.front().first + 1;
    one.due.pop_front();
  }

  mlt::base::Prng prng_;
  std::vector<Member> members_;
  std::uint32_t next_ = 0;
};

}  // namespace

TEST_CASE("rate_exchange__all_members_cut_every_call_alike_and_by_the_rates_of_the_period_before") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    const auto n = static_cast<std::uint32_t>(3 + seed % 6);
    Members members(n, seed);
    members.rates[1] = members.rates[0] = 142;
    const auto expected = shares_by_rate(members.rates);
    REQUIRE(expected.size() == n);
    members.run(4 * n);
    members.rates.assign(n, 150);
    members.run(4 * n * 12);
    for (std::uint32_t i = 0; i < n; ++i) {
      CAPTURE(i);
      REQUIRE(members.cuts(i) == members.cuts(0));
    }
    for (std::uint32_t call = 0; call < 4 * n; ++call) CHECK(members.cuts(0)[call].empty());
    // The slowest rate of the first period is announced in the second, and counts in the third.
    for (std::uint32_t call = 4 * n; call < 12 * n; ++call) CHECK(members.cuts(0)[call] == expected);
    // The rate rises by one code a period.
    CHECK_FALSE(members.cuts(0)[12 * n].empty());
    CHECK(members.cuts(0)[12 * n] != expected);
    CHECK(members.cuts(0).back().empty());
  }
}

TEST_CASE("rate_exchange__one_member_that_takes_no_shares_keeps_all_chunks_equal") {
  Members members(5, 1);
  members.rates = {150, 140, 140, 150, kNoShares};
  members.run(60);
  for (std::uint32_t i = 0; i < 5; ++i) {
    for (const auto& cut : members.cuts(i)) CHECK(cut.empty());
  }
}

TEST_CASE("rate_exchange__falls_at_once_and_rises_slowly") {
  RateExchange one(3, 0);
  std::uint32_t call = 0;
  const auto announces = [&](std::uint8_t measured) {
    const std::uint8_t code = one.begin(0, call, [&] { return measured; });
    call += 12;
    return code;
  };
  CHECK(announces(150) == 150);
  CHECK(announces(100) == 100);
  CHECK(announces(150) == 101);
  CHECK(announces(150) == 102);
  CHECK(announces(102) == 102);
  CHECK(announces(kNoLimit) == kNoLimit);
  CHECK(announces(90) == 90);
  CHECK(announces(kNoShares) == kNoShares);
  CHECK(announces(120) == 120);
}

// A program that pauses before every period, so long that nothing is known of the link any more.
TEST_CASE("rate_exchange__announces_the_slowest_rate_of_the_period_before") {
  RateExchange one(3, 0);
  for (std::uint32_t call = 0; call < 12 * 20; ++call) {
    const bool has_paused = call % 12 == 0;
    const std::uint8_t code = one.begin(0, call, [&] { return has_paused ? std::uint8_t{206} : std::uint8_t{124}; });
    if (call % 12 == 0) CHECK(code == (call == 0 ? 206 : 124));
  }
}

TEST_CASE("rate_exchange__begins_anew_with_an_epoch_and_ignores_what_is_of_another") {
  Members members(4, 9);
  members.rates[2] = members.rates[1] = 130;
  members.run(20);
  REQUIRE_FALSE(members.cuts(0).back().empty());
  RateExchange one(4, 0);
  const auto rate = [] { return std::uint8_t{150}; };
  CHECK(one.begin(0, 0, rate) == 150);
  one.on_announced(0, 0, 130);
  CHECK(one.begin(0, 4, rate) == 130);
  CHECK(one.begin(1, 7, rate) == 150);
  one.on_announced(0, 4, 110);
  CHECK(one.begin(1, 8, rate) == kNoShares);
  CHECK(one.begin(1, 11, rate) == kNoShares);
}

TEST_CASE("rate_exchange__of_one_or_two_announces_nothing") {
  for (const std::uint32_t n : {1U, 2U}) {
    RateExchange one(n, 0);
    for (std::uint32_t call = 0; call < 20; ++call) {
      CHECK(one.begin(0, call, [] { return std::uint8_t{150}; }) == kNoShares);
      one.on_announced(0, call, 100);
      CHECK(one.shares().empty());
    }
  }
}
