// What a lossy mean costs in accuracy, with missing terms as zero and with the own term in their place: simulated hosts
// around one switch whose links all lose data, with production endpoints in virtual time. Prints the table of
// docs/collectives.md; 16 all-reduces of 1 MiB a cell, or as many as the first argument says.
//
// Each rank has elements drawn evenly from 0 to 2, or from -1 to 1. "As zero" is the sum over n, which loses alike. The
// bias is the mean error, over the mean of the exact result; RMS is that of the error, over the RMS of the exact
// result.
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/prng.h"
#include "bench/arguments.h"
#include "sim/collective_hosts.h"
#include "sim/scenarios/stream.h"

namespace {

using namespace mlt;

constexpr double kRate = 1.25e9;
constexpr std::size_t kElements = 1U << 18;

struct Error {
  double bias = 0, rms = 0;
};

struct Sums {
  double error = 0, squares = 0, exact = 0, exact_squares = 0;
};

Error measure(std::uint16_t ranks, double loss, double lowest, collective::Reduction reduction, int operations) {
  sim::Fabric network = test::fabric(kRate);
  sim::Topology topology = sim::star(ranks, network);
  // From a host to the switch: each hop of the ring loses once.
  for (std::uint16_t rank = 0; rank < ranks; ++rank) topology.edges[topology.edge(rank, ranks)].link.data.drop = loss;
  sim::Simulator simulator(test::configured(kRate), topology);
  sim::CollectiveHosts hosts(simulator);
  simulator.connect_all();
  simulator.run_for(10 * base::kMillisecond);
  base::Prng prng(1);
  Sums sums;
  for (int operation = 1; operation <= operations; ++operation) {
    std::vector<std::vector<float>> tensors(ranks, std::vector<float>(kElements));
    std::vector<double> exact(kElements);
    for (auto& tensor : tensors) {
      for (std::size_t i = 0; i < kElements; ++i) {
        tensor[i] = static_cast<float>(lowest + 2 * prng.uniform());
        exact[i] += static_cast<double>(tensor[i]) / ranks;
      }
    }
    collective::CollectiveRequest request;
    request.operation = static_cast<core::OperationId>(operation);
    request.reduction = reduction;
    request.loss_bound = 2 * loss;  // all that the links lose may stay missing
    for (std::uint16_t rank = 0; rank < ranks; ++rank) request.ranks.push_back(rank);
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      request.output = std::as_writable_bytes(std::span(tensors[rank]));
      hosts.start(rank, request);
    }
    const auto are_over = [&] {
      for (std::uint16_t rank = 0; rank < ranks; ++rank) {
        if (hosts.done(rank).size() < static_cast<std::size_t>(operation)) return false;
      }
      return true;
    };
    MLT_CHECK(simulator.run_until(are_over, 60 * base::kSecond) && simulator.fault().empty());
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      MLT_CHECK(hosts.done(rank).back().error.empty() && tensors[rank] == tensors[0]);
    }
    const double share = reduction == collective::Reduction::kSum ? 1.0 / ranks : 1;
    for (std::size_t i = 0; i < kElements; ++i) {
      const double error = static_cast<double>(tensors[0][i]) * share - exact[i];
      sums.error += error;
      sums.squares += error * error;
      sums.exact += exact[i];
      sums.exact_squares += exact[i] * exact[i];
    }
  }
  return {sums.error / sums.exact, std::sqrt(sums.squares / sums.exact_squares)};
}

}  // namespace

int main(int argc, char** argv) {
  const int operations = bench::Arguments(argc, argv, "[operations a cell]").number(1, 16);
  std::printf(
      "| ranks | loss | bias: as zero | own term | RMS error: as zero | own term | of -1 to 1: as zero | own term |\n"
      "|---|---|---|---|---|---|---|---|\n");
  for (const int ranks : {2, 4, 8}) {
    for (const double loss : {0.01, 0.05, 0.1}) {
      const auto size = static_cast<std::uint16_t>(ranks);
      const auto both = [&](double lowest) {
        return std::pair(measure(size, loss, lowest, collective::Reduction::kSum, operations),
                         measure(size, loss, lowest, collective::Reduction::kMean, operations));
      };
      const auto [as_zero, own_term] = both(0);
      const auto [centred_as_zero, centred_own_term] = both(-1);
      std::printf("| %d | %g %% | %.2f %% | %.3f %% | %.1f %% | %.1f %% | %.1f %% | %.1f %% |\n", ranks, loss * 100,
                  as_zero.bias * 100, own_term.bias * 100, as_zero.rms * 100, own_term.rms * 100,
                  centred_as_zero.rms * 100, centred_own_term.rms * 100);
      std::fflush(stdout);
    }
  }
  return 0;
}
