// Parity packets behind exact tensors: what they make of the slowest of a hundred where packets are lost and round
// trips are long, and that they are not there elsewhere.
#include <doctest/doctest.h>

#include "sim/scenarios/tensor_times.h"

using namespace mlt;
using namespace mlt::test;

namespace {

struct Path {
  double gigabits = 1;
  double round_trip_ms = 1;
};

Tensors over(const Path& path, std::size_t bytes, double loss, int operations) {
  Tensors what;
  what.bytes = bytes;
  what.loss = loss;
  what.rate = path.gigabits * 1.25e8;
  what.round_trip_ns = static_cast<base::DurationNs>(path.round_trip_ms * 1e6);
  what.operations = operations;
  return what;
}

TensorTimes exact(Tensors what, bool erasure_correction) {
  what.erasure_correction = erasure_correction;
  return time_tensors(what);
}

TensorTimes bounded(Tensors what) {
  what.loss_bound = 0.1;
  return time_tensors(what);
}

}  // namespace

TEST_CASE("parity__brings_the_p99_of_exact_tensors_to_that_of_a_bound") {
  for (const Path& path : {Path{1, 1}, Path{1, 10}, Path{25, 10}, Path{1, 100}}) {
    CAPTURE(path.gigabits);
    CAPTURE(path.round_trip_ms);
    const Tensors what = over(path, 1U << 20, 0.01, 150);
    const TensorTimes without = exact(what, false);
    const TensorTimes with = exact(what, true);
    const double bound = bounded(what).percentile(99);
    MESSAGE(path.gigabits, " Gbit/s, ", path.round_trip_ms, " ms: p99 ", without.percentile(99) / 1e6,
            " ms without parity, ", with.percentile(99) / 1e6, " with it, ", bound / 1e6, " with a bound of 0.1; ",
            100 * with.parity_share, " % parity");
    CHECK(with.percentile(99) <= 1.1 * bound);
    CHECK(with.mean() < without.mean());
    CHECK(with.segments_restored > 0);
    CHECK(with.parity_share < 0.06);
  }
}

TEST_CASE("parity__keeps_long_tensors_near_the_ideal") {
  for (const auto& [path, loss] : {std::pair{Path{1, 100}, 0.01}, {Path{10, 10}, 0.01}, {Path{25, 10}, 0.001}}) {
    CAPTURE(path.gigabits);
    CAPTURE(loss);
    Tensors what = over(path, 32U << 20, loss, 4);
    const TensorTimes with = exact(what, true);
    const double share = ideal_ns(what) / with.mean();
    const double bound = ideal_ns(what) / bounded(what).mean();  // early data limits it where links are fast
    MESSAGE(path.gigabits, " Gbit/s, ", path.round_trip_ms, " ms, ", loss * 100, " %: ", share, " of the ideal, ",
            ideal_ns(what) / exact(what, false).mean(), " without parity, ", bound, " with a bound");
    CHECK(share >= std::min(0.9, 0.97 * bound));
  }
}

TEST_CASE("parity__is_not_there_without_loss_or_over_short_round_trips") {
  for (const auto& [path, loss] :
       {std::pair{Path{10, 0.02}, 0.01}, {Path{25, 0.1}, 0.02}, {Path{1, 10}, 0.0}, {Path{25, 100}, 0.0}}) {
    CAPTURE(path.round_trip_ms);
    CAPTURE(loss);
    const Tensors what = over(path, 1U << 20, loss, 40);
    const TensorTimes without = exact(what, false);
    const TensorTimes with = exact(what, true);
    CHECK(with.parity_packets == 0);
    CHECK(with.ns == without.ns);
  }
}

// A tensor's parity must never cost more than it saves.
TEST_CASE("parity__makes_no_tensor_slower_on_average") {
  for (const std::size_t bytes : {4'096UL, 65'536UL, 1UL << 20, 4UL << 20}) {
    for (const double loss : {0.0005, 0.005, 0.05}) {
      for (const Path& path : {Path{1, 0.6}, Path{10, 0.6}, Path{1, 4}}) {
        CAPTURE(bytes);
        CAPTURE(loss);
        CAPTURE(path.gigabits);
        CAPTURE(path.round_trip_ms);
        const Tensors what = over(path, bytes, loss, 60);
        const TensorTimes without = exact(what, false);
        const TensorTimes with = exact(what, true);
        CHECK(with.mean() <= 1.03 * without.mean());
      }
    }
  }
}

TEST_CASE("parity__is_of_use_where_replies_are_lost_too_and_delays_vary") {
  Tensors what = over({1, 10}, 1U << 20, 0.01, 100);
  what.reply_loss = 0.01;
  what.jitter_ns = 500 * base::kMicrosecond;
  const TensorTimes without = exact(what, false);
  const TensorTimes with = exact(what, true);
  MESSAGE("mean ", without.mean() / 1e6, " ms without parity, ", with.mean() / 1e6, " with it");
  CHECK(with.segments_restored > 0);
  CHECK(with.mean() < 0.85 * without.mean());
}
