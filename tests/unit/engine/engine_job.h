// A job of several ranks in one process: an engine each, connected over real sockets on loopback.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/time.h"
#include "mlt.h"

namespace mlt::engine_test {

using base::kSecond;

struct Job {
  explicit Job(std::uint16_t ranks, FaultOptions faults = {}, std::int64_t operation_timeout_ns = 20 * kSecond) {
    Options options;
    options.faults = faults;
    options.operation_timeout_ns = operation_timeout_ns;
    open(ranks, options);
  }
  // `adjust`, if set, may change the options of a rank.
  Job(std::uint16_t ranks, const Options& options, const std::function<void(Options&)>& adjust = {}) {
    open(ranks, options, adjust);
  }
  void open(std::uint16_t ranks, const Options& given, const std::function<void(Options&)>& adjust = {}) {
    std::vector<PeerAddress> addresses;
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      Options options = given;
      options.rank = rank;
      options.ranks = ranks;
      options.job = 42;
      if (adjust) adjust(options);
      engines.push_back(std::make_unique<Engine>(options));
      addresses.push_back({rank, "127.0.0.1", engines.back()->control_port()});
    }
    std::vector<std::thread> threads;
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        std::vector<PeerAddress> peers;
        for (const PeerAddress& address : addresses) {
          if (address.rank != rank) peers.push_back(address);
        }
        engines[rank]->connect(peers, 10 * kSecond);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  Engine& operator[](std::size_t rank) { return *engines[rank]; }
  Completion finish(std::size_t rank, OperationId operation) {
    auto done = engines[rank]->wait(operation, 30 * kSecond);
    REQUIRE(done.has_value());
    return *done;
  }
  std::uint64_t count(std::size_t rank, std::string_view counter) const {
    for (const CounterValue& one : engines[rank]->counters()) {
      if (one.name == counter) return one.value;
    }
    return 0;
  }
  std::vector<std::unique_ptr<Engine>> engines;
};

}  // namespace mlt::engine_test
