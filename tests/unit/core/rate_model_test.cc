// TIMELY and the pacer alone, N of them at one port: a model of a first-in-first-out queue whose packets are runs cut
// up and whose ACKs come every ten. No endpoint, no windows, no loss: what converges here does so by the controller.
#include <doctest/doctest.h>

#include <algorithm>
#include <queue>
#include <vector>

#include "base/prng.h"
#include "core/pacer.h"
#include "core/timely.h"

using namespace mlt;
using base::DurationNs;
using base::kMicrosecond;
using base::kMillisecond;
using base::TimeNs;

namespace {

constexpr std::uint32_t kPacketBytes = 1'500;

struct Model {
  std::uint32_t flows = 2;
  double port_rate = 1.25e9;
  DurationNs base_rtt_ns = 20 * kMicrosecond;
  DurationNs stagger_ns = 0;
  DurationNs duration_ns = 400 * kMillisecond;  // the second half is measured
  std::uint32_t hyper_active_after = 0;
  std::uint64_t seed = 1;
};

struct Result {
  double min_share = 1e9;
  double max_share = 0;
  double utilisation = 0;
  DurationNs queue_p99_ns = 0;
};

class Port {
 public:
  explicit Port(const Model& model) : model_(model), prng_(model.seed) {
    core::TimelyConfig config;
    config.line_rate_bytes_per_second = model.port_rate;
    config.hyper_active_after = model.hyper_active_after;
    flows_.assign(model.flows, Flow{core::Timely(config), {}, 0, 0, 0});
    for (std::uint32_t i = 0; i < model.flows; ++i) {
      push(i * model.stagger_ns + static_cast<DurationNs>(prng_.below(20'000)), Kind::kSend, i, 0);
    }
  }

  Result run() {
    while (events_.top().at < model_.duration_ns) {
      const Event event = events_.top();
      events_.pop();
      Flow& flow = flows_[event.flow];
      switch (event.kind) {
        case Kind::kSend:
          send(event.at, event.flow);
          break;
        case Kind::kQueue:
          if (event.at > model_.duration_ns / 2) delays_.push_back(std::max<DurationNs>(0, busy_until_ - event.at));
          busy_until_ = std::max(busy_until_, event.at) + base::serialisation_ns(kPacketBytes, model_.port_rate);
          push(busy_until_ + model_.base_rtt_ns / 2, Kind::kArrive, event.flow, event.sent_ns);
          break;
        case Kind::kArrive:
          if (event.at > model_.duration_ns / 2) flow.measured_bytes += kPacketBytes;
          if (++flow.unacknowledged % 10 != 0) break;
          push(event.at + model_.base_rtt_ns / 2 + static_cast<DurationNs>(prng_.below(3'000)), Kind::kAck, event.flow,
               event.sent_ns);
          break;
        case Kind::kAck:
          flow.timely.on_delivered(event.at, 10 * kPacketBytes);
          flow.timely.on_rtt_sample(event.at, event.at - event.sent_ns);
          // The control class overtakes the queue.
          if (flow.timely.base_sample_due(event.at)) flow.timely.on_base_sample(event.at, model_.base_rtt_ns);
          break;
      }
    }
    return evaluate();
  }

 private:
  enum class Kind : std::uint8_t { kSend, kQueue, kArrive, kAck };
  struct Event {
    TimeNs at;
    std::uint64_t number;
    Kind kind;
    std::uint32_t flow;
    TimeNs sent_ns;
    bool operator<(const Event& other) const { return at != other.at ? at > other.at : number > other.number; }
  };
  struct Flow {
    core::Timely timely;
    core::Pacer pacer;
    TimeNs card_busy_until;
    std::uint64_t unacknowledged;
    double measured_bytes;
  };

  void push(TimeNs at, Kind kind, std::uint32_t flow, TimeNs sent_ns) {
    events_.push({at, events_pushed_++, kind, flow, sent_ns});
  }

  // One run: its packets leave the card one after the other at line rate.
  void send(TimeNs now, std::uint32_t index) {
    Flow& flow = flows_[index];
    const double rate = flow.timely.rate_bytes_per_second();
    const std::uint64_t longest =
        std::min<std::uint64_t>(core::Pacer::run_bytes(rate, kPacketBytes, true), base::kMaxRunBytes);
    const std::uint64_t packets = std::max<std::uint64_t>(1, longest / kPacketBytes);
    for (std::uint64_t i = 0; i < packets; ++i) {
      flow.card_busy_until =
          std::max(flow.card_busy_until, now) + base::serialisation_ns(kPacketBytes, model_.port_rate);
      push(flow.card_busy_until, Kind::kQueue, index, now);
    }
    flow.pacer.on_sent(now, packets * kPacketBytes, rate);
    push(std::max(now + 1, flow.pacer.next_ns()) + static_cast<DurationNs>(prng_.below(2'000)), Kind::kSend, index, 0);
  }

  Result evaluate() {
    Result result;
    const double fair = model_.port_rate / model_.flows * static_cast<double>(model_.duration_ns) * 1e-9 / 2;
    for (const Flow& flow : flows_) {
      result.min_share = std::min(result.min_share, flow.measured_bytes / fair);
      result.max_share = std::max(result.max_share, flow.measured_bytes / fair);
      result.utilisation += flow.measured_bytes / fair / model_.flows;
    }
    std::sort(delays_.begin(), delays_.end());
    result.queue_p99_ns = delays_[delays_.size() * 99 / 100];
    return result;
  }

  Model model_;
  base::Prng prng_;
  std::vector<Flow> flows_;
  std::priority_queue<Event> events_;
  std::uint64_t events_pushed_ = 0;
  TimeNs busy_until_ = 0;
  std::vector<DurationNs> delays_;
};

DurationNs high_offset_ns(const Model& model) {
  core::TimelyConfig config;
  config.line_rate_bytes_per_second = model.port_rate / model.flows;
  const core::Timely at_fair_share(config);
  return at_fair_share.high_threshold_ns() - at_fair_share.base_rtt_ns();
}

void check_converges(const Model& model) {
  const Result result = Port(model).run();
  INFO(model.flows << " flows, " << model.port_rate * 8e-9 << " Gbit/s, base " << model.base_rtt_ns << " ns, seed "
                   << model.seed << ": shares " << result.min_share << " to " << result.max_share << ", used "
                   << result.utilisation << ", queue p99 " << result.queue_p99_ns << " ns");
  CHECK(result.utilisation > 0.9);
  CHECK(result.min_share > 0.9 * result.utilisation);
  CHECK(result.max_share < 1.1 * result.utilisation);
  CHECK(result.queue_p99_ns < high_offset_ns(model));
}

}  // namespace

TEST_CASE("rate_model__one_flow_keeps_the_whole_port") {
  for (const double rate : {1.25e8, 1.25e9, 1.25e10}) {
    Model model;
    model.flows = 1;
    model.port_rate = rate;
    model.duration_ns = 100 * kMillisecond;
    const Result result = Port(model).run();
    CAPTURE(rate);
    CHECK(result.utilisation > 0.99);
    CHECK(result.queue_p99_ns < 20 * kMicrosecond);
  }
}

TEST_CASE("rate_model__flows_converge_to_equal_shares_from_any_start" * doctest::test_suite("long")) {
  for (const double rate : {1.25e8, 1.25e9}) {
    for (const std::uint32_t flows : {2U, 4U, 8U}) {
      for (const std::uint64_t seed : {1U, 2U}) {
        Model model;
        model.flows = flows;
        model.port_rate = rate;
        model.seed = seed;
        model.stagger_ns = seed == 1 ? 0 : 100 * kMillisecond / flows;
        if (rate < 1e9) model.duration_ns = 1'000 * kMillisecond;
        check_converges(model);
      }
    }
  }
}

TEST_CASE("rate_model__flows_converge_over_a_round_trip_of_a_millisecond") {
  Model model;
  model.flows = 4;
  model.port_rate = 1.25e8;
  model.base_rtt_ns = kMillisecond;
  model.stagger_ns = 50 * kMillisecond;
  model.duration_ns = 2'000 * kMillisecond;
  check_converges(model);
}

TEST_CASE("rate_model__hyper_active_increase_stays_fair") {
  Model model;
  model.flows = 4;
  model.hyper_active_after = 5;
  model.stagger_ns = 10 * kMillisecond;
  check_converges(model);
}
