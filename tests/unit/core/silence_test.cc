// How long a receive waits when nothing proves a loss, and what a trailing probe leaves behind (PROTOCOL 6.5.9, 7.4.7).
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "support/transfer.h"

using namespace mlt;
using namespace mlt::test;

namespace {

// A small transfer from host 2 to host 1 every 5 ms.
class Traffic {
 public:
  explicit Traffic(Simulation& network) : network_(network) { next(); }

 private:
  void next() {
    TransferOptions options;
    options.from = 2;
    options.tag = 1'000;
    options.operation = 1'000 + transfers_.size();
    transfers_.push_back(std::make_unique<Transfer>(network_, 1'000, options));
    transfers_.back()->post();
    network_.at(network_.now() + 5 * kMillisecond, [this] { next(); });
  }
  Simulation& network_;
  std::vector<std::unique_ptr<Transfer>> transfers_;
};

bool is_data(const Flight& flight) { return flight.type == wire::PacketType::kData; }

struct Late {
  std::size_t bytes = 1'000;
  std::uint8_t paths = 1;
  bool critical = false;
  bool busy = false;
  int lost_from = 0;  // the data packets from this on are lost once
  int lost_count = 1;
};

// A receive that is posted 5 ms after its send, of which some packets were lost: how long it takes from its post on.
DurationNs late_receive(const Late& late) {
  SimulationConfig config;
  config.hosts = 3;
  config.endpoint.paths = late.paths;
  Simulation network(config);
  std::unique_ptr<Traffic> traffic;
  if (late.busy) traffic = std::make_unique<Traffic>(network);
  network.run_for(12 * kMillisecond);
  int data = 0;
  network.drop_if = [&](const Flight& flight) {
    if (flight.from != 0 || !is_data(flight)) return false;
    const int i = data++;
    return i >= late.lost_from && i < late.lost_from + late.lost_count;
  };
  TransferOptions options;
  if (late.critical) options.uniform_priority.bits |= core::SegmentPriority::kCritical;
  Transfer transfer(network, late.bytes, options);
  REQUIRE(transfer.post_send() == core::PostStatus::kPosted);
  network.run_for(5 * kMillisecond);
  REQUIRE(transfer.post_receive() == core::PostStatus::kPosted);
  const base::TimeNs start = network.now();
  REQUIRE(transfer.run());
  CHECK(transfer.fault() == "");
  return transfer.received()->at_ns - start;
}

}  // namespace

// NOT_POSTED stops the trailing probes, and a remembered PROBE takes READY's place: the sender never learns that it may
// send them again, and only a silence ends the round.
TEST_CASE("late_receive__recovers_as_fast_on_a_busy_host") {
  for (const Late& one : {Late{1'000, 1, false, false, 0, 1}, Late{100'000, 1, true, false, 69, 1},
                          Late{100'000, 4, false, false, 69, 1}, Late{100'000, 1, false, false, 69, 1}}) {
    Late busy = one;
    busy.busy = true;
    const DurationNs quiet_ns = late_receive(one);
    const DurationNs busy_ns = late_receive(busy);
    MESSAGE(one.bytes << " bytes, " << int{one.paths} << " paths, critical " << one.critical << ": " << quiet_ns / 1'000
                      << " us quiet, " << busy_ns / 1'000 << " us busy");
    CHECK(busy_ns < 50 * kMillisecond);
  }
}

TEST_CASE("late_receive__does_not_time_out_for_one_lost_packet") {
  SimulationConfig config;
  config.hosts = 3;
  config.endpoint.paths = 4;
  Simulation network(config);
  const Traffic traffic(network);
  int data = 0;
  network.drop_if = [&](const Flight& flight) { return flight.from == 0 && is_data(flight) && data++ == 69; };
  TransferOptions options;
  options.receive_timeout_ns = options.send_timeout_ns = 500 * kMillisecond;
  Transfer transfer(network, 100'000, options);
  REQUIRE(transfer.post_send() == core::PostStatus::kPosted);
  network.run_for(5 * kMillisecond);
  REQUIRE(transfer.post_receive() == core::PostStatus::kPosted);
  REQUIRE(transfer.run());
  CHECK(transfer.received()->status == core::CompletionStatus::kComplete);
}

// What the other path's trailing probes bring is fewer than ten packets: no ACK tells the sender that a path is dead.
TEST_CASE("dead_path__of_two_is_survived_as_fast_on_a_busy_host") {
  for (const std::size_t bytes : {3'000UL, 20'000UL, 200'000UL, 2'000'000UL}) {
    for (const bool busy : {false, true}) {
      SimulationConfig config;
      config.hosts = 3;
      config.endpoint.paths = 2;
      Simulation network(config);
      std::unique_ptr<Traffic> traffic;
      if (busy) traffic = std::make_unique<Traffic>(network);
      Transfer warm(network, 100'000, TransferOptions{}.numbered(1));
      warm.post();
      REQUIRE(warm.run());
      network.run_for(10 * kMillisecond);
      network.link(0, 1, 1).data.drop = network.link(0, 1, 1).control.drop = 1;
      Transfer transfer(network, bytes, TransferOptions{}.numbered(2));
      transfer.post();
      const base::TimeNs start = network.now();
      REQUIRE(transfer.run());
      CHECK(transfer.fault() == "");
      const DurationNs took = transfer.received()->at_ns - start;
      MESSAGE(bytes << " bytes, busy " << busy << ": " << took / 1'000 << " us");
      CHECK(took < 100 * kMillisecond);
    }
  }
}

// The probe stands in the data's queue and is counted after STOP has left: its echo is told with the next answer.
TEST_CASE("trailing_probe__of_long_ago_is_no_sample_of_the_reply_time") {
  for (const bool lost_before : {false, true}) {
    SimulationConfig config;
    Simulation network(config);
    TransferOptions options;
    options.tag = options.operation = 1;
    int data = 0;
    network.drop_if = [&](const Flight& flight) { return lost_before && is_data(flight) && data++ == 20; };
    Transfer first(network, 100'000, options);
    first.post();
    REQUIRE(first.run());
    network.drop_if = nullptr;
    for (std::uint64_t i = 0; i < 3; ++i) {
      network.run_for(500 * kMillisecond);
      // Its critical segments' number is told by a probe, which overtakes data; its receive is not posted yet.
      options.tag = options.operation = 2 + i;
      options.uniform_priority.bits |= core::SegmentPriority::kCritical;
      Transfer early(network, 50'000, options);
      REQUIRE(early.post_send() == core::PostStatus::kPosted);
      network.run_for(100 * kMicrosecond);
      REQUIRE(early.post_receive() == core::PostStatus::kPosted);
      REQUIRE(early.run());
    }
    // All of a transfer is lost once; only the timer knows.
    options.tag = options.operation = 9;
    options.uniform_priority = core::SegmentPriority::important(0);
    const base::TimeNs start = network.now();
    network.drop_if = [&](const Flight& flight) { return flight.from == 0 && network.now() == start; };
    Transfer last(network, 1'000, options);
    last.post();
    REQUIRE(last.run());
    const DurationNs took = last.received()->at_ns - start;
    MESSAGE("lost before " << lost_before << ": " << took / 1'000 << " us");
    CHECK(took < 5 * kMillisecond);
  }
}

// What tells the sender of a pause is that nothing is in flight (R1.2.12): a trailing probe that came after STOP is.
TEST_CASE("trailing_probe__hides_no_pause_from_the_delivery_rate") {
  struct Case {
    std::size_t bytes;
    DurationNs pause_ns;
  };
  for (const Case& one : {Case{1'000'000, kMillisecond}, Case{100'000, 20 * kMillisecond}}) {
    double time_us[2] = {};
    double rate[2] = {};
    for (const bool lossy : {false, true}) {
      SimulationConfig config;
      config.endpoint.timely.line_rate_bytes_per_second = 1.25e9;
      config.link.rate_bytes_per_second = 6.25e8;
      Simulation network(config);
      int data = 0;
      network.drop_if = [&](const Flight& flight) { return lossy && is_data(flight) && data++ % 3'000 == 5; };
      constexpr std::uint64_t kBursts = 60;
      std::vector<double> times;
      for (std::uint64_t i = 1; i <= kBursts; ++i) {
        Transfer burst(network, one.bytes, TransferOptions{}.numbered(i));
        burst.post();
        const base::TimeNs start = network.now();
        REQUIRE(burst.run());
        times.push_back(static_cast<double>(network.now() - start) / 1e3);
        network.run_for(one.pause_ns);
        rate[lossy ? 1 : 0] += network.endpoint(0).rate_bytes_per_second(1) / 1e6 / kBursts;
      }
      std::sort(times.begin(), times.end());
      time_us[lossy ? 1 : 0] = times[kBursts / 2];
    }
    MESSAGE("bursts of " << one.bytes << " bytes: median " << time_us[0] << " us and mean rate " << rate[0]
                         << " MB/s without losses, " << time_us[1] << " us and " << rate[1]
                         << " MB/s with one in 3,000");
    CHECK(time_us[1] < 1.1 * time_us[0]);
    CHECK(rate[1] > 0.85 * rate[0]);
  }
}

// Answers come over TCP alone, and each transfer has to be asked for again: the six probes that were lost once would be
// lost for every round of every transfer (9.1.6).
TEST_CASE("tcp_fallback__is_used_from_the_first_probe_on_if_the_last_reply_came_over_it") {
  for (const std::uint8_t paths : {std::uint8_t{1}, std::uint8_t{2}}) {
    CAPTURE(int{paths});
    SimulationConfig config;
    config.endpoint.paths = paths;
    config.link.propagation_ns = 5 * kMillisecond;
    config.control_delay_ns = 8 * kMillisecond;  // TCP is no faster than what gets through
    Simulation network(config);
    bool dead = true;
    int data = 0;
    int lost = 0;
    network.drop_if = [&](const Flight& flight) {
      if (flight.by_control_connection || flight.from != 0) return false;
      if (!is_data(flight)) return dead;  // trailing probes too
      return data++ < lost;
    };
    TransferOptions options;
    const auto take = [&](int lost_packets) {
      lost = lost_packets;
      data = 0;
      options.tag = ++options.operation;
      Transfer transfer(network, 1'000, options);
      transfer.post();
      const base::TimeNs start = network.now();
      REQUIRE(transfer.run());
      CHECK(transfer.fault() == "");
      return network.now() - start;
    };
    const DurationNs first_ns = take(1);
    const DurationNs second_ns = take(1);
    const DurationNs third_ns = take(3);
    MESSAGE(int{paths} << " paths: first " << first_ns / 1'000 << " us, second " << second_ns / 1'000 << ", third "
                       << third_ns / 1'000);
    CHECK(first_ns > 100 * kMillisecond);  // six probes in vain
    CHECK(second_ns < 100 * kMillisecond);
    CHECK(third_ns < 400 * kMillisecond);  // silences of 20, 40 and 80 ms among it
    // Once an answer to a probe comes as a datagram, TCP is left alone again.
    dead = false;
    (void)take(0);
    (void)take(1);
    const std::uint64_t messages = network.counter(0, Counter::k_tcp_fallback_packets_sent);
    (void)take(1);
    CHECK(network.counter(0, Counter::k_tcp_fallback_packets_sent) == messages);
  }
}

// Of few packets a lossy path may lose all, again and again; that a path stands still is likelier where many were sent.
TEST_CASE("silence__is_short_where_little_is_missing_and_long_where_much_is") {
  constexpr DurationNs kStall = 4 * kSecond;
  for (const std::uint64_t segments : {1ULL, 8ULL, 16ULL, 100ULL}) {
    CAPTURE(segments);
    SimulationConfig config;
    Simulation network(config);
    std::uint64_t sent = 0;
    base::TimeNs last_ns = 0;
    DurationNs longest_ns = 0;
    network.drop_if = [&](const Flight& flight) {
      if (flight.from != 0 || flight.by_control_connection || flight.dscp == config.endpoint.dscp.control) return false;
      if (is_data(flight)) {
        ++sent;
        if (last_ns > 0) longest_ns = std::max(longest_ns, network.now() - last_ns);
        last_ns = network.now();
      }
      return network.now() < kStall;  // and trailing probes, which are evidence
    };
    Transfer transfer(network, segments * 1'432);
    transfer.post();
    REQUIRE(transfer.run(20 * kSecond));
    CHECK(transfer.fault() == "");
    MESSAGE(segments << " segments: " << sent << " packets, waits of up to " << longest_ns / 1'000 << " us");
    const DurationNs max_ns =
        std::clamp(DurationNs(segments) * 20 * kMillisecond, 160 * kMillisecond, 640 * kMillisecond);
    CHECK(longest_ns > max_ns - kMillisecond);
    CHECK(longest_ns < max_ns + 60 * kMillisecond);
  }
}
