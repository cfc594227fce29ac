// Where parity packets pay: exact tensors between two simulated hosts, one after another, over a link that loses data,
// with production endpoints in virtual time. Without parity, with it, and with a loss bound of 0.1. Prints the table of
// docs/bound.md; 300 tensors a row, or as many as the first argument says. Then how fast one core sums parity up.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "base/galois.h"
#include "bench/arguments.h"
#include "sim/scenarios/tensor_times.h"

namespace {

using namespace mlt;

std::string size_name(std::size_t bytes) {
  return bytes < (1U << 20) ? std::to_string(bytes >> 10) + " KiB" : std::to_string(bytes >> 20) + " MiB";
}

void row(test::Tensors what) {
  what.erasure_correction = false;
  const test::TensorTimes exact = test::time_tensors(what);
  what.erasure_correction = true;
  const test::TensorTimes parity = test::time_tensors(what);
  what.loss_bound = 0.1;
  what.erasure_correction = false;
  const test::TensorTimes bounded = test::time_tensors(what);
  const double ideal = test::ideal_ns(what);
  std::printf("| %s | %g Gbit/s | %g ms | %g %% | %.2f / %.2f | %.2f / %.2f | %.2f / %.2f | %.2f | %.1f %% |\n",
              size_name(what.bytes).c_str(), what.rate * 8e-9, static_cast<double>(what.round_trip_ns) * 1e-6,
              what.loss * 100, ideal / exact.mean(), ideal / exact.percentile(99), ideal / parity.mean(),
              ideal / parity.percentile(99), ideal / bounded.mean(), ideal / bounded.percentile(99),
              parity.percentile(99) / bounded.percentile(99), 100 * parity.parity_share);
  std::fflush(stdout);
}

void time_sums() {
  constexpr std::size_t kBytes = 1'432;
  constexpr int kSegments = 200, kParities = 8, kRounds = 50;
  std::vector<std::byte> segments(kBytes * kSegments, std::byte{0x5A}), sums(kBytes * kParities);
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < kSegments; ++i) {
      for (std::size_t j = 0; j < kParities; ++j) {
        base::galois::multiply_add(sums.data() + j * kBytes, segments.data() + i * kBytes, kBytes,
                                   static_cast<std::uint8_t>(i + j + 2));
      }
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("\nOne core multiplies and adds %.1f GB/s.\n",
              static_cast<double>(kBytes) * kSegments * kParities * kRounds / seconds * 1e-9);
}

}  // namespace

int main(int argc, char** argv) {
  const int operations = bench::Arguments(argc, argv, "[tensors a row, 10 or more]").number(1, 300, 10);
  std::printf(
      "| tensor | rate | round trip | loss | exact: mean / p99 | with parity | bound 0.1 | p99 to bound's | parity |\n"
      "|---|---|---|---|---|---|---|---|---|\n");
  test::Tensors what;
  what.operations = operations;
  for (const double loss : {0.01, 0.001}) {
    what.loss = loss;
    for (const auto& [gigabits, milliseconds] : {std::pair{1.0, 1.0}, {1.0, 10.0}, {25.0, 10.0}, {1.0, 100.0}}) {
      what.rate = gigabits * 1.25e8;
      what.round_trip_ns = static_cast<base::DurationNs>(milliseconds * 1e6);
      row(what);
    }
  }
  what.bytes = 64U << 10;
  what.loss = 0.01;
  for (const double milliseconds : {1.0, 10.0}) {
    what.rate = 1.25e9;
    what.round_trip_ns = static_cast<base::DurationNs>(milliseconds * 1e6);
    row(what);
  }
  what.bytes = 64U << 20;
  what.operations = std::max(3, operations / 30);
  for (const double loss : {0.01, 0.001}) {
    what.loss = loss;
    for (const double gigabits : {1.0, 10.0, 25.0}) {
      for (const double milliseconds : {0.1, 1.0, 10.0, 100.0}) {
        what.rate = gigabits * 1.25e8;
        what.round_trip_ns = static_cast<base::DurationNs>(milliseconds * 1e6);
        row(what);
      }
    }
  }
  time_sums();
  return 0;
}
