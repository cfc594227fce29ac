// Where a loss bound pays: tensors between two simulated hosts, and all-reduces of eight around one switch, over a link
// that loses data, with production endpoints in virtual time. Prints the tables of docs/bound.md; 1,000 operations a
// row, or as many as the first argument says.
#include <array>
#include <cstdio>
#include <string>

#include "bench/arguments.h"
#include "sim/collectives/all_reduce_times.h"
#include "sim/scenarios/tensor_times.h"

namespace {

using namespace mlt;

std::string size_name(std::size_t bytes) {
  return bytes < (1U << 20) ? std::to_string(bytes >> 10) + " KiB" : std::to_string(bytes >> 20) + " MiB";
}

std::string time_name(double ns) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), ns < 1e6 ? "%.0f us" : "%.1f ms", ns < 1e6 ? ns / 1e3 : ns / 1e6);
  return text.data();
}

// One tensor after another from one host to another.
test::TensorTimes time_tensors(const test::AllReduces& what) {
  test::Tensors tensors;
  tensors.bytes = what.bytes;
  tensors.loss_bound = what.loss_bound;
  tensors.loss = what.loss;
  tensors.rate = what.rate;
  tensors.round_trip_ns = 4 * what.propagation_ns;
  tensors.warm_up = 0;
  tensors.operations = what.operations;
  return test::time_tensors(tensors);
}

template <typename Measure>
void row(Measure measure, test::AllReduces what, double bound) {
  what.loss_bound = 0;
  const auto exact = measure(what);
  what.loss_bound = bound;
  const auto bounded = measure(what);
  std::printf("| %s | %s | %g %% | %g | %s / %s | %.2f / %.2f / %.2f | %.2f %% |\n", size_name(what.bytes).c_str(),
              time_name(4 * static_cast<double>(what.propagation_ns)).c_str(), what.loss * 100, bound,
              time_name(exact.percentile(50)).c_str(), time_name(exact.percentile(99)).c_str(),
              bounded.mean() / exact.mean(), bounded.percentile(50) / exact.percentile(50),
              bounded.percentile(99) / exact.percentile(99), bounded.missing * 100);
  std::fflush(stdout);
}

void heading(const char* title) {
  std::printf(
      "\n%s\n\n| tensor | round trip | loss | bound | exact: p50 / p99 | ratio: mean / p50 / p99 | missing |\n"
      "|---|---|---|---|---|---|---|\n",
      title);
}

// Rows of 8 MiB have a tenth of the operations.
template <typename Measure>
void table(const char* title, Measure measure, int operations) {
  test::AllReduces what;
  what.algorithm = collective::CollectiveAlgorithm::kRing;
  heading(title);
  for (const std::size_t bytes : {64U << 10, 1U << 20, 8U << 20}) {
    for (const base::DurationNs propagation_ns : {2'000, 25'000, 250'000, 2'500'000}) {
      what.bytes = bytes;
      what.propagation_ns = propagation_ns;
      what.loss = 0.01;
      what.operations = bytes > (1U << 20) ? operations / 10 : operations;
      row(measure, what, 0.1);
    }
  }
  what.operations = operations;
  what.bytes = 64U << 10;
  what.loss = 0.02;
  for (const base::DurationNs propagation_ns : {2'000, 25'000, 250'000}) {
    what.propagation_ns = propagation_ns;
    row(measure, what, 0.1);
  }
  what.bytes = 256U << 10;
  what.propagation_ns = 25'000;
  for (const double loss : {0.0, 0.001, 0.02, 0.05}) {
    for (const double bound : {0.02, 0.1}) {
      what.loss = loss;
      row(measure, what, bound);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int operations = bench::Arguments(argc, argv, "[operations a row, 10 or more]").number(1, 1'000, 10);
  table("One tensor over the lossy link", time_tensors, operations);
  table("All-reduce of eight hosts, one of which sends over the lossy link", test::time_all_reduces, operations);
  return 0;
}
