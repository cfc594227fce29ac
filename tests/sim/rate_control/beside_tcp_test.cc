// One slow port with a deep buffer, and on it: our transfers beside TCP that fills the buffer; our transfers alone that
// begin at different times, which must not take each other's queue for that of others (RECOVERY R1.2.16).
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/cubic_flow.h"
#include "sim/simulator.h"
#include "support/small_tables.h"

namespace {

using namespace mlt;
using base::kMicrosecond;
using base::kMillisecond;
using base::kSecond;

constexpr double kNicRate = 12.5e9;  // what an interface without a speed is taken for
constexpr std::size_t kTensorBytes = 256U << 10;

struct Traffic {
  double rate = 12.5e6;  // 100 Mbit/s
  std::uint64_t buffer = 512U << 10;
  double loss = 0;
  std::uint16_t senders = 1;  // of ours; hosts 1 to this send to host 0
  std::uint16_t flows = 0;    // of TCP; the hosts after
};

// Senders that always have the next tensors posted, and TCP, through host 0's port.
class BusyPort {
 public:
  explicit BusyPort(const Traffic& one)
      : case_(one), switch_(static_cast<std::uint16_t>(one.senders + one.flows + 1)), simulator_(config(), star()) {
    simulator_.on_completion = [this](std::uint16_t rank, const core::Completion& completion) {
      if (core::is_failure(completion.status)) return simulator_.fail("a transfer failed");
      const auto peer = completion.kind == core::CompletionKind::kReceive ? completion.peer : rank;
      if (completion.kind == core::CompletionKind::kReceive) received_[peer] += kTensorBytes;
      post(peer, completion.kind == core::CompletionKind::kSend);
    };
    for (std::uint16_t flow = 0; flow < one.flows; ++flow) {
      const auto host = static_cast<std::uint16_t>(one.senders + 1 + flow);
      flows_.push_back(std::make_unique<sim::CubicFlow>(simulator_, host, std::uint16_t{0}));
    }
    simulator_.connect_all();
    simulator_.run_for(kMillisecond);
  }

  void begin(std::uint16_t sender) {
    for (int ahead = 0; ahead < 4; ++ahead) {
      post(sender, false);
      post(sender, true);
    }
  }
  void begin_flows() {
    for (const auto& flow : flows_) flow->start();
  }
  void run_for(base::DurationNs duration) {
    simulator_.run_for(duration);
    REQUIRE(simulator_.fault() == "");
  }

  // Payload of each sender and of each TCP flow so far.
  std::vector<double> payload() {
    std::vector<double> made;
    for (std::uint16_t sender = 1; sender <= case_.senders; ++sender) {
      made.push_back(static_cast<double>(received_[sender]));
    }
    for (const auto& flow : flows_) made.push_back(static_cast<double>(flow->delivered_bytes()));
    return made;
  }
  // The same as shares of the port's rate, over the next `duration`.
  std::vector<double> shares(base::DurationNs duration) {
    const std::vector<double> before = payload();
    run_for(duration);
    std::vector<double> made = payload();
    for (std::size_t i = 0; i < made.size(); ++i) {
      made[i] = (made[i] - before[i]) * 1e9 / static_cast<double>(duration) / case_.rate;
    }
    return made;
  }
  // Samples of the port's queue every millisecond, in ms.
  std::vector<double> queues(base::DurationNs duration) {
    std::vector<double> made;
    for (base::DurationNs passed = 0; passed < duration; passed += kMillisecond) {
      run_for(kMillisecond);
      made.push_back(static_cast<double>(port().queued_bytes()) / case_.rate * 1e3);
    }
    std::sort(made.begin(), made.end());
    return made;
  }

 private:
  sim::SwitchPort& port() { return simulator_.network().port(simulator_.network().topology().edge(switch_, 0)); }

  static sim::SimulatorConfig config() {
    sim::SimulatorConfig made;
    made.window_bytes = 2U << 20;
    made.host.wake_up_ns = 20 * kMicrosecond;
    made.host.pauses_between_batches = true;
    made.host.endpoint = test::small_tables(made.host.endpoint);
    made.host.endpoint.early_segments = 512;
    made.host.endpoint.timely.line_rate_bytes_per_second = kNicRate;
    return made;
  }
  sim::Topology star() const {
    sim::Fabric fabric;
    fabric.host_link.rate_bytes_per_second = kNicRate;
    fabric.host_link.propagation_ns = 5 * kMicrosecond;
    fabric.port = sim::uniform_port({}, case_.buffer, sim::kUnlimited);
    fabric.port.queue_of.fill(1);
    sim::Topology made = sim::star(switch_, fabric);
    sim::Link& down = made.edges[made.edge(switch_, 0)].link;
    down.rate_bytes_per_second = case_.rate;
    down.data.drop = down.control.drop = case_.loss;
    return made;
  }

  // The sender's next send, or host 0's next receive from it.
  void post(std::uint16_t sender, bool is_send) {
    const std::uint64_t number = ++(is_send ? sends_ : receives_)[sender];
    core::PostStatus status{};
    if (is_send) {
      core::SendRequest send;
      send.operation = number * (switch_ + 1U) + sender;
      send.tag = number;
      send.peer = 0;
      send.data = tensor_;
      status = simulator_.send(sender, send);
    } else {
      std::vector<std::vector<std::byte>>& tensors = received_into_[sender];
      if (tensors.empty()) tensors.assign(8, std::vector<std::byte>(kTensorBytes));
      core::ReceiveRequest receive;
      receive.operation = number * (switch_ + 1U) + sender;
      receive.tag = number;
      receive.peer = sender;
      receive.data = tensors[number % tensors.size()];
      status = simulator_.receive(0, receive);
    }
    if (status != core::PostStatus::kPosted) simulator_.fail("a post was refused");
  }

  Traffic case_;
  std::uint16_t switch_;
  sim::Simulator simulator_;
  std::vector<std::unique_ptr<sim::CubicFlow>> flows_;
  std::vector<std::byte> tensor_ = std::vector<std::byte>(kTensorBytes);
  std::map<std::uint16_t, std::vector<std::vector<std::byte>>> received_into_;
  std::map<std::uint16_t, std::uint64_t> sends_, receives_, received_;
};

}  // namespace

TEST_CASE("beside_tcp__neither_starves") {
  const Traffic cases[] = {
      {12.5e6, 512U << 10, 0, 1, 1}, {12.5e6, 512U << 10, 0.001, 1, 1}, {12.5e6, 64U << 10, 0, 1, 1},
      {25e6, 128U << 10, 0, 1, 1},   {25e6, 512U << 10, 0, 2, 2},       {125e6, 1U << 20, 0, 1, 1},
  };
  for (const Traffic& one : cases) {
    BusyPort port(one);
    port.begin(1);
    if (one.senders > 1) port.begin(2);
    port.begin_flows();
    port.run_for(5 * kSecond);
    const std::vector<double> shares = port.shares(15 * kSecond);
    const double fair = 1.0 / (one.senders + one.flows);
    double total = 0;
    std::string text;
    for (const double share : shares) {
      text += " " + std::to_string(share / fair);
      total += share;
    }
    MESSAGE("port of " << one.rate / 125'000 << " Mbit/s and " << one.buffer / 1024 << " KiB, loss " << one.loss
                       << ": multiples of a fair share (ours, TCP's):" << text << "; all of the port " << total);
    // The target of half a fair share is for each way.
    for (const double share : shares) CHECK(share > 0.5 * fair);
    CHECK(total > 0.85);
  }
}

TEST_CASE("beside_tcp__own_senders_that_begin_one_after_another_share_and_keep_the_queue_short") {
  for (const auto& [rate, senders] : {std::pair{12.5e6, std::uint16_t{4}}, std::pair{25e6, std::uint16_t{4}},
                                      std::pair{125e6, std::uint16_t{4}}, std::pair{12.5e6, std::uint16_t{12}}}) {
    Traffic one;
    one.rate = rate;
    one.senders = senders;
    BusyPort port(one);
    for (std::uint16_t sender = 1; sender <= senders; ++sender) {
      port.begin(sender);
      port.run_for(1'300 * kMillisecond);
    }
    port.run_for(5 * kSecond);
    const std::vector<double> queues = port.queues(5 * kSecond);
    const std::vector<double> shares = port.shares(10 * kSecond);
    std::string text;
    for (const double share : shares) text += " " + std::to_string(share * senders);
    MESSAGE(senders << " through a port of " << rate / 125'000 << " Mbit/s: multiples of a fair share:" << text
                    << "; queue p50 " << queues[queues.size() / 2] << " ms, p99 " << queues[queues.size() * 99 / 100]
                    << " ms");
    for (const double share : shares) CHECK(share > 0.5 / senders);
    // T_high at equal rates is 30 packets of each. One that yields alone sees the others' queue, takes it for that of
    // other traffic, and keeps twice as much for a while; none of it fills the buffer.
    const double high_ms = 30 * 1'538.0 * senders / rate * 1e3;
    CHECK(queues[queues.size() / 2] < 0.5 * high_ms);
    CHECK(queues[queues.size() * 99 / 100] < std::min(2 * high_ms, 0.9 * (512U << 10) / rate * 1e3));
  }
}
