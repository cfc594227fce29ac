// What a host refuses of its endpoint.
#include "sim/host.h"

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>

using namespace mlt;
using sim::run_fault;

namespace {

constexpr std::uint8_t kPaths = 4;

// Two datagrams of two slices each, the last one shorter.
struct Run {
  std::array<std::byte, 100> bytes{};
  std::unique_ptr<core::Transmit> run = std::make_unique<core::Transmit>();
  core::TransmitCapabilities capabilities;

  Run() {
    run->datagram_count = 2;
    run->datagram_bytes = 50;
    run->slice_count = 4;
    run->slices[0] = {bytes.data(), 20};
    run->slices[1] = {bytes.data(), 30};
    run->slices[2] = {bytes.data(), 20};
    run->slices[3] = {bytes.data(), 10};
    run->total_bytes = 80;
    run->path = kPaths - 1;
    run->dscp = 63;
  }
  std::string fault() const { return run_fault(*run, capabilities, kPaths); }
};

}  // namespace

TEST_CASE("run_fault__finds_none_in_a_run_that_keeps_the_rules") { CHECK(Run().fault() == ""); }

TEST_CASE("run_fault__names_each_rule_that_a_run_breaks") {
  const auto after = [](void (*change)(Run&)) {
    Run run;
    change(run);
    return run.fault();
  };
  CHECK(after([](Run& r) { r.run->datagram_count = 0; }) == "an empty run");
  CHECK(after([](Run& r) { r.capabilities.max_run_segments = 1; }) == "too many datagrams");
  CHECK(after([](Run& r) {
          r.run->datagram_count = base::kMaxRunSegments + 1;
          r.capabilities.max_run_segments = base::kMaxRunSegments + 1;
        }) == "too many datagrams");
  CHECK(after([](Run& r) { r.capabilities.max_run_bytes = 79; }) == "too many bytes");
  CHECK(after([](Run& r) { r.run->slice_count = 0; }) == "slices beyond the run");
  CHECK(after([](Run& r) { r.run->total_bytes = 50; }) == "the last datagram is too long");
  CHECK(after([](Run& r) { r.run->total_bytes = 101; }) == "the last datagram is too long");
  CHECK(after([](Run& r) { r.run->dscp = 64; }) == "a DSCP of more than 6 bits");
  CHECK(after([](Run& r) { r.run->path = kPaths; }) == "a path that it does not have");
  CHECK(after([](Run& r) { r.run->slices[3].size = 0; }) == "an empty slice");
  CHECK(after([](Run& r) { r.run->slices[3].size = 11; }) == "slices that do not add up to the run");
}
