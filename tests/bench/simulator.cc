// How fast is the simulator? Sixteen hosts on four leaves and four spines, every host sends to every other across the
// fabric, production endpoints and all. Prints one JSON object: events and packet-link hops per second of processor
// time; a packet that crosses four links makes four hops. Every transfer is checked byte for byte.
#include "sim/simulator.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

namespace {

using namespace mlt;

constexpr std::uint16_t kHosts = 16;
constexpr double kRate = 1.25e9;

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Result {
  double seconds = 0;
  std::uint64_t events = 0;
  std::uint64_t hops = 0;
};

// One all-to-all of tensors of `bytes`.
Result all_to_all(std::uint32_t bytes, bool& right) {
  sim::SimulatorConfig config;
  config.host.endpoint.paths = 4;
  config.host.endpoint.max_sends = config.host.endpoint.max_receives = 64;
  config.host.endpoint.early_segments = 1'024;
  config.host.endpoint.timely.line_rate_bytes_per_second = kRate;
  sim::Fabric fabric;
  fabric.host_link.rate_bytes_per_second = fabric.core_link.rate_bytes_per_second = kRate;
  fabric.port = sim::uniform_port({}, 2'000'000, 200'000);
  sim::Simulator simulator(config, sim::leaf_spine(4, 4, kHosts / 4, fabric));
  std::vector<std::byte> source(bytes);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(1 + i % 251);
  std::vector<std::vector<std::byte>> targets(std::size_t{kHosts} * kHosts, std::vector<std::byte>(bytes));
  std::uint64_t open = 0;
  simulator.on_completion = [&](std::uint16_t, const core::Completion& completion) {
    --open;
    right = right && completion.status == core::CompletionStatus::kComplete;
  };
  simulator.connect_all();
  simulator.run_for(base::kMillisecond);
  const double start = processor_seconds();
  const std::uint64_t events = simulator.events();
  const std::uint64_t hops = simulator.network().hops();
  for (std::uint16_t from = 0; from < kHosts; ++from) {
    for (std::uint16_t to = 0; to < kHosts; ++to) {
      if (from == to) continue;
      core::ReceiveRequest receive;
      receive.peer = from;
      receive.data = targets[std::size_t{from} * kHosts + to];
      receive.element = wire::ElementType::kFloat32;
      core::SendRequest send;
      send.peer = to;
      send.data = source;
      send.element = wire::ElementType::kFloat32;
      right = right && simulator.receive(to, receive) == core::PostStatus::kPosted &&
              simulator.send(from, send) == core::PostStatus::kPosted;
      open += 2;
    }
  }
  right = right && simulator.run_until([&] { return open == 0; }, 60 * base::kSecond) && simulator.fault().empty();
  Result result{processor_seconds() - start, simulator.events() - events, simulator.network().hops() - hops};
  for (std::uint16_t from = 0; from < kHosts; ++from) {
    for (std::uint16_t to = 0; to < kHosts; ++to) {
      right = right && (from == to || targets[std::size_t{from} * kHosts + to] == source);
    }
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const auto bytes = static_cast<std::uint32_t>(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1'000'000);
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  std::vector<Result> results;
  bool right = true;
  all_to_all(bytes, right);  // warm
  for (int round = 0; round < rounds && right; ++round) results.push_back(all_to_all(bytes, right));
  if (!right || results.empty()) {
    std::fprintf(stderr, "a transfer did not arrive whole\n");
    return 1;
  }
  std::sort(results.begin(), results.end(), [](const Result& a, const Result& b) { return a.seconds < b.seconds; });
  const Result& median = results[results.size() / 2];
  std::printf(
      "{\"hosts\": %d, \"bytes\": %u, \"rounds\": %zu, \"events\": %llu, \"packet_hops\": %llu, "
      "\"events_per_second\": %.0f, \"packet_hops_per_second\": %.0f}\n",
      kHosts, bytes, results.size(), static_cast<unsigned long long>(median.events),
      static_cast<unsigned long long>(median.hops), static_cast<double>(median.events) / median.seconds,
      static_cast<double>(median.hops) / median.seconds);
}
