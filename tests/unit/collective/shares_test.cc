// Shares by rate: no link is loaded more than the best cut loads the slowest, found by search; slow hosts and links.
#include "collective/shares.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/prng.h"

using namespace mlt::collective;

namespace {

double rate_of(std::uint8_t code) { return code == kNoLimit ? INFINITY : std::exp2(8 + code / 8.0); }

// Of a tensor of 1, over the links of these rates; `units` empty: equal chunks.
double time_of(const std::vector<std::uint8_t>& codes, const std::vector<std::uint16_t>& units) {
  const std::size_t n = codes.size();
  double slowest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto share = [&](std::size_t chunk) {
      return units.empty() ? 1.0 / static_cast<double>(n) : units[chunk % n] / double{kShareUnits};
    };
    slowest = std::max(slowest, (2 - share(i + 1) - share(i + 2)) / rate_of(codes[i]));
  }
  return slowest;
}

// The links to and from this host are slower by `codes_slower`.
std::vector<std::uint8_t> with_slow_host(std::size_t n, std::size_t host, std::uint8_t codes_slower) {
  std::vector<std::uint8_t> codes(n, 150);
  codes[host] = codes[(host + n - 1) % n] = static_cast<std::uint8_t>(150 - codes_slower);
  return codes;
}

}  // namespace

TEST_CASE("rate_code__is_logarithmic_and_never_means_that_there_is_no_rate") {
  CHECK(rate_code(0) == kNoLimit);
  CHECK(rate_code(256) == 1);
  CHECK(rate_code(1e-9) == 1);
  CHECK(rate_code(1e30) == 254);
  CHECK(rate_code(std::nan("")) == kNoLimit);
  for (double rate = 512; rate < 1e11; rate *= 1.37) {
    CAPTURE(rate);
    CHECK(std::abs(std::log2(rate_of(rate_code(rate)) / rate)) < 0.063);
    CHECK(rate_code(2 * rate) == rate_code(rate) + 8);
  }
}

TEST_CASE("shares__are_equal_where_rates_are_or_a_member_takes_none_or_there_are_two") {
  CHECK(shares_by_rate(std::vector<std::uint8_t>(8, 150)).empty());
  CHECK(shares_by_rate(std::vector<std::uint8_t>(8, kNoLimit)).empty());
  CHECK(shares_by_rate(std::vector<std::uint8_t>{140, 148}).empty());
  std::vector<std::uint8_t> codes = with_slow_host(4, 1, 8);
  CHECK_FALSE(shares_by_rate(codes).empty());
  codes[3] = kNoShares;
  CHECK(shares_by_rate(codes).empty());
}

TEST_CASE("shares__of_a_host_of_half_the_rate_make_every_link_take_as_long_as_twice_the_tensor") {
  for (const std::size_t n : {3U, 4U, 8U, 64U}) {
    for (const std::size_t host : {std::size_t{0}, std::size_t{1}, n - 1}) {
      CAPTURE(n);
      CAPTURE(host);
      const std::vector<std::uint8_t> codes = with_slow_host(n, host, 8);
      const auto units = shares_by_rate(codes);
      REQUIRE(units.size() == n);
      CHECK(std::accumulate(units.begin(), units.end(), 0U) == kShareUnits);
      CHECK(units[(host + 1) % n] > kShareUnits * 98 / 100);
      CHECK(time_of(codes, units) < 1.01 * 2 / rate_of(150));
      const double gain = 2.0 * static_cast<double>(n - 1) / static_cast<double>(n);
      CHECK(time_of(codes, {}) > 0.98 * gain * time_of(codes, units));
    }
  }
}

// By search: the least time for which chunks can spare each link enough, found chunk by chunk from each first one.
TEST_CASE("shares__are_within_a_tenth_of_the_best_for_any_rates") {
  mlt::base::Prng prng(7);
  int cut = 0;
  for (int i = 0; i < 300; ++i) {
    CAPTURE(i);
    const std::size_t n = 3 + prng.below(6);
    std::vector<std::uint8_t> codes(n);
    for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(120 + prng.below(30));
    if (prng.chance(0.2)) codes[prng.below(n)] = kNoLimit;
    const auto can = [&](double time) {
      // Chunk 0 tried in steps; then each link's need fixes the next chunk: the least that spares it.
      for (int step = 0; step <= 200; ++step) {
        std::vector<double> x(n + 2);
        x[0] = step / 200.0;
        // Link i is spared by chunks i + 1 and i + 2: from link n - 1 (chunks 0 and 1) on.
        double sum = x[0];
        bool closes = true;
        for (std::size_t k = 1; k < n; ++k) {
          const std::size_t link = (k - 1 + n - 1) % n;  // spared by chunks k - 1 and k
          x[k] = std::max(0.0, 2 - time * rate_of(codes[link]) - x[k - 1]);
          sum += x[k];
        }
        closes = x[n - 1] + x[0] >= 2 - time * rate_of(codes[n - 2]) - 1e-9;  // chunks n - 1 and 0
        if (closes && sum <= 1 + 1e-9) return true;
      }
      return false;
    };
    double low = 0, high = time_of(codes, {});
    for (int k = 0; k < 40; ++k) {
      const double middle = (low + high) / 2;
      (can(middle) ? high : low) = middle;
    }
    const auto units = shares_by_rate(codes);
    if (!units.empty()) {
      ++cut;
      CHECK(time_of(codes, units) < time_of(codes, {}) * 0.9);
      CHECK(time_of(codes, units) < 1.1 * high);
    } else {
      CHECK(time_of(codes, {}) < 1.3 * high);
    }
  }
  CHECK(cut > 100);
}

TEST_CASE("cut_id__names_a_cut_and_none_is_named_like_equal_chunks") {
  CHECK(cut_id({}) == 0);
  CHECK(cut_id(std::vector<std::uint16_t>{4'096, 0, 0}) != cut_id(std::vector<std::uint16_t>{0, 4'096, 0}));
  mlt::base::Prng prng(3);
  for (int i = 0; i < 100'000; ++i) {
    const std::vector<std::uint16_t> units = {static_cast<std::uint16_t>(prng.below(4'096)),
                                              static_cast<std::uint16_t>(prng.below(4'096)), 1};
    REQUIRE(cut_id(units) != 0);
  }
}

TEST_CASE("part_begin__covers_all_elements_once_whatever_their_number") {
  for (const std::size_t elements :
       {std::size_t{0}, std::size_t{1}, std::size_t{4'095}, std::size_t{4'097}, std::size_t{1} << 40}) {
    CHECK(part_begin(elements, 0) == 0);
    CHECK(part_begin(elements, kShareUnits) == elements);
    for (std::size_t units = 1; units <= kShareUnits; ++units) {
      REQUIRE(part_begin(elements, units) >= part_begin(elements, units - 1));
    }
  }
}
