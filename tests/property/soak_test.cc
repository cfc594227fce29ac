// Random networks, random transfers, random accidents: whatever happens, every operation ends, keeps its promise and
// leaves the memory of ended operations alone. MLT_SOAK_SEEDS=<n> runs n seeds instead of the short default;
// MLT_SOAK_FIRST=<seed> starts elsewhere (the seed that a failure prints, to see it again).
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "support/transfer.h"

using namespace mlt;
using namespace mlt::test;
using base::Prng;

namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

template <typename T>
T pick(Prng& prng, std::initializer_list<T> values) {
  return values.begin()[prng.below(values.size())];
}

// Log-uniform in [1, most].
std::uint64_t spread(Prng& prng, double most) {
  return static_cast<std::uint64_t>(std::exp(prng.uniform() * std::log(most)));
}

// What may happen beyond loss, repetition, delay, pauses and cancellation.
struct Trouble {
  bool corruption = false;     // bits flip unseen: contents are anything, but memory stays whole and everything ends
  bool reconnections = false;  // connections are cut and made again
};

// One path of several loses some or all of its data, of its control datagrams, or both, both ways.
// From numbers of its own, so that the rest of a seed stays what it was.
void make_paths_gray(std::uint64_t seed, Simulation& network) {
  const std::uint8_t paths = network.endpoint(0).config().paths;
  const std::uint16_t hosts = network.endpoint(0).config().peers;
  Prng prng(seed * 104'729 + 7);
  if (paths == 1 || prng.chance(0.4)) return;
  const auto path = static_cast<std::uint8_t>(prng.below(paths));
  const double loss = prng.chance(0.4) ? 1.0 : 0.5 * prng.uniform();
  const std::uint64_t kind = 1 + prng.below(3);
  for (std::uint16_t from = 0; from < hosts; ++from) {
    for (std::uint16_t to = 0; to < hosts; ++to) {
      if (to == from) continue;
      if ((kind & 1U) != 0) network.link(from, to, path).data.drop = loss;
      if ((kind & 2U) != 0) network.link(from, to, path).control.drop = loss;
    }
  }
}

SimulationConfig random_config(std::uint64_t seed, Prng& prng, Trouble trouble) {
  SimulationConfig config;
  config.seed = seed;
  config.hosts = static_cast<std::uint16_t>(2 + prng.below(3));
  config.endpoint.paths = pick<std::uint8_t>(prng, {1, 1, 1, 2, 5, 16});
  config.endpoint.max_sends = config.endpoint.max_receives = 256;
  config.endpoint.bitmap_words = 1U << 16;
  config.endpoint.early_segments = static_cast<std::uint32_t>(spread(prng, 512));
  config.endpoint.early_transfers = static_cast<std::uint32_t>(spread(prng, 64));
  config.endpoint.finished_log = pick<std::uint32_t>(prng, {64, 4'096});
  config.endpoint.reply_queue = pick<std::uint32_t>(prng, {4, 64, 4'096});
  config.endpoint.operation_timeout_ns = 30 * kSecond;
  config.endpoint.timely.line_rate_bytes_per_second = pick(prng, {1.25e8, 1.25e9, 1.25e10});
  config.segment_bytes = pick<std::uint32_t>(prng, {64, 256, 1'432, 1'432, 8'960});
  config.window_bytes = std::max(static_cast<std::uint32_t>(16'384 << prng.below(8)), 4 * config.segment_bytes);
  config.capabilities.max_run_segments = pick<std::uint32_t>(prng, {1, 7, 64});
  config.capabilities.max_run_bytes = pick<std::uint32_t>(prng, {1'500, 16'000, 65'507});
  config.socket_buffer_bytes =
      pick<std::uint64_t>(prng, {10 * (config.segment_bytes + MLT_DATA_HEADER_BYTES), 4U << 20, 4ULL << 30});
  config.wake_up_ns = pick<DurationNs>(prng, {0, 0, 5 * kMicrosecond, 100 * kMicrosecond});
  Link& link = config.link;
  link.propagation_ns = static_cast<DurationNs>(spread(prng, 2e6));
  link.rate_bytes_per_second = pick(prng, {2.5e7, 1.25e9, 1.25e10});
  if (prng.chance(0.3)) config.queue_bytes = 65'536;
  if (prng.chance(0.3)) config.mark_above_bytes = 8'192;
  for (DurationNs& delay : config.path_delay_ns) delay = static_cast<DurationNs>(spread(prng, 3e5));
  const auto faults = [&] {
    sim::Impairments f;
    if (prng.chance(0.7)) f.drop = 0.3 * prng.uniform() * prng.uniform();
    if (prng.chance(0.3)) f.duplicate = 0.2 * prng.uniform();
    if (prng.chance(0.4)) f.reorder = 0.3 * prng.uniform();
    return f;
  };
  link.data = faults();
  link.control = faults();
  if (trouble.corruption) {
    link.data.corrupt = link.control.corrupt = 0.1 * prng.uniform();
    link.udp_checksum = false;
  }
  return config;
}

struct Planned {
  std::unique_ptr<Transfer> transfer;
  bool disturbed = false;  // cancelled or of a connection that was cut: may end in any way
  bool send_refused = false;
  bool receive_refused = false;
  bool checked = false;
  std::vector<std::byte> other_use;  // what the application does with the memory once it has it back
};

class Soak {
 public:
  explicit Soak(std::uint64_t seed, Trouble trouble = {})
      : trouble_(trouble), prng_(seed * 7'919 + 1), network_(random_config(seed, prng_, trouble)) {
    make_paths_gray(seed, network_);
  }

  void run() {
    plan_transfers();
    plan_accidents();
    const bool ended = network_.run_until([this] { return take_completions(); }, 120 * kSecond);
    CHECK_MESSAGE(ended, unfinished());
    network_.run_for(kSecond);  // stragglers and stale repeats
    check_states();
    for (const Planned& planned : plans_) {
      CHECK(planned.transfer->buffer().intact());
      if (!planned.checked) continue;
      const auto bytes = planned.transfer->buffer().bytes();
      CHECK_MESSAGE(std::equal(bytes.begin(), bytes.end(), planned.other_use.begin(), planned.other_use.end()),
                    "memory of an ended receive was written");
    }
  }

 private:
  void plan_transfers() {
    const auto hosts = network_.endpoint(0).config().peers;
    const std::uint64_t count = 4 + prng_.below(40);
    for (std::uint64_t i = 0; i < count; ++i) {
      TransferOptions options;
      options.operation = i + 1;
      options.from = static_cast<std::uint16_t>(prng_.below(hosts));
      options.to = static_cast<std::uint16_t>((options.from + 1 + prng_.below(hosts - 1U)) % hosts);
      // The operation's number keeps pairs apart; a few tags are used again and again, in order.
      reuse_ = prng_.chance(0.3);
      options.tag = reuse_ ? 1'000 + std::uint64_t{options.from} * 10 + options.to : i;
      options.loss_bound = prng_.chance(0.4) ? 0.0 : prng_.uniform() * 0.9;
      options.stop = pick(prng_, {core::StopPolicy::kPatient, core::StopPolicy::kEager});
      options.fill = pick(prng_, {core::Fill::kZero, core::Fill::kKeep});
      options.order = static_cast<std::uint32_t>(prng_.below(4));
      if (prng_.chance(0.1)) options.deadline_ns = static_cast<DurationNs>(spread(prng_, 2e7));
      const std::size_t bytes = prng_.chance(0.05) ? 0 : 4 * spread(prng_, 60'000);
      const std::uint32_t segments = network_.endpoint(options.from).segment_count(options.to, bytes);
      if (prng_.chance(0.5)) {
        const double critical = prng_.chance(0.5) ? 0.0 : 0.1;
        for (std::uint32_t s = 0; s < segments; ++s) {
          core::SegmentPriority tag{static_cast<std::uint8_t>(prng_.below(8))};
          if (prng_.chance(0.5)) tag.bits |= core::SegmentPriority::kImportant;
          if (prng_.chance(critical)) tag.bits |= core::SegmentPriority::kCritical;
          options.priorities.push_back(tag);
        }
      }
      Planned planned;
      planned.transfer = std::make_unique<Transfer>(network_, bytes, options);
      plans_.push_back(std::move(planned));
      post_at_some_time(plans_.size() - 1);
    }
  }

  void post_at_some_time(std::size_t index) {
    // Of one tag the order of posts is the order of meeting: those stay in the order of the plan.
    const DurationNs slot = 200 * kMicrosecond * static_cast<DurationNs>(index);
    const auto jitter = [&]() -> DurationNs { return reuse_ ? 0 : static_cast<DurationNs>(prng_.below(5'000'000)); };
    const base::TimeNs start = network_.now() + slot;
    const DurationNs early = reuse_ ? 0 : jitter();
    const DurationNs late = reuse_ ? 0 : jitter();
    network_.at(start + early, [this, index] {
      Planned& planned = plans_[index];
      planned.receive_refused = refused(planned, planned.transfer->post_receive());
    });
    network_.at(start + late, [this, index] {
      Planned& planned = plans_[index];
      planned.send_refused = refused(planned, planned.transfer->post_send());
    });
  }

  // Only a cut connection may refuse.
  bool refused(Planned& planned, core::PostStatus status) const {
    if (status == core::PostStatus::kPosted) return false;
    REQUIRE(trouble_.reconnections);
    REQUIRE(status == core::PostStatus::kPeerNotConnected);
    planned.disturbed = true;
    return true;
  }

  void plan_accidents() {
    const auto hosts = network_.endpoint(0).config().peers;
    const auto when = [&] { return network_.now() + static_cast<DurationNs>(prng_.below(20'000'000)); };
    if (prng_.chance(0.3)) {
      const auto host = static_cast<std::uint16_t>(prng_.below(hosts));
      const auto length = static_cast<DurationNs>(spread(prng_, 1e8));
      network_.at(when(), [this, host, length] { network_.pause(host, network_.now() + length); });
    }
    if (prng_.chance(0.3)) {  // a black hole, of data, of control datagrams or of both
      const std::uint64_t kind = 1 + prng_.below(3);
      const base::TimeNs start = when();
      const base::TimeNs end = start + static_cast<DurationNs>(spread(prng_, 3e8));
      network_.drop_if = [this, kind, start, end](const Flight& f) {
        if (f.by_control_connection || network_.now() < start || network_.now() >= end) return false;
        return (f.type == wire::PacketType::kData ? kind & 1U : kind & 2U) != 0;
      };
    }
    if (trouble_.reconnections) plan_reconnections();
    for (Planned& planned : plans_) {
      if (!prng_.chance(0.03)) continue;
      planned.disturbed = true;
      Transfer* transfer = planned.transfer.get();
      const bool sender = prng_.chance(0.5);
      network_.at(when() + 10 * kMillisecond, [this, transfer, sender] {
        // An aborting sender notifies no caller: the test cancels both sides, as the engine does.
        network_.cancel(sender ? transfer->options().from : transfer->options().to, transfer->options().operation,
                        sender ? CompletionKind::kSend : CompletionKind::kReceive);
        if (sender) network_.cancel(transfer->options().to, transfer->options().operation, CompletionKind::kReceive);
      });
    }
  }

  void plan_reconnections() {
    const auto hosts = network_.endpoint(0).config().peers;
    base::TimeNs when = network_.now();
    for (std::uint64_t cuts = 1 + prng_.below(3); cuts > 0; --cuts) {
      const auto a = static_cast<std::uint16_t>(prng_.below(hosts));
      const auto b = static_cast<std::uint16_t>((a + 1 + prng_.below(hosts - 1U)) % hosts);
      when += static_cast<DurationNs>(prng_.below(8'000'000));
      network_.at(when, [this, a, b] { network_.disconnect(a, b); });
      when += prng_.chance(0.3) ? 0 : static_cast<DurationNs>(prng_.below(2'000'000));
      network_.at(when, [this, a, b] { network_.connect(a, b); });
      when += 1;
    }
    for (Planned& planned : plans_) planned.disturbed = true;
  }

  // Checks each receive once it has ended, and puts its memory to another use; true when everything has ended.
  bool take_completions() {
    bool all = true;
    for (Planned& planned : plans_) {
      all = all && (planned.send_refused || planned.transfer->sent() != nullptr) &&
            (planned.receive_refused || planned.transfer->received() != nullptr);
      const Completed* done = planned.transfer->received();
      if (planned.checked || done == nullptr) continue;
      planned.checked = true;
      if (trouble_.corruption) {
        CHECK(planned.transfer->buffer().intact());
      } else {
        CHECK(planned.transfer->fault() == "");
        check_status(planned, *done);
        check_critical(planned, *done);
      }
      planned.other_use = pattern(done->total_bytes, done->operation + 12'345);
      std::copy(planned.other_use.begin(), planned.other_use.end(), planned.transfer->buffer().bytes().begin());
    }
    if (all && !trouble_.corruption) check_senders();
    return all;
  }

  static void check_status(const Planned& planned, const Completed& done) {
    if (planned.disturbed) return;
    CHECK_FALSE(core::is_failure(done.status));
    if (done.status == CompletionStatus::kDeadline) CHECK(planned.transfer->options().deadline_ns > 0);
  }

  static void check_critical(const Planned& planned, const Completed& done) {
    if (done.status != CompletionStatus::kWithinBound) return;
    const auto& priorities = planned.transfer->options().priorities;
    for (std::uint32_t s = 0; s < priorities.size(); ++s) {
      if (priorities[s].is_critical()) CHECK_MESSAGE(done.arrived(s), "a critical segment is missing");
    }
  }

  // Honest peers and a correct endpoint meet no event that the state tables exclude, a late cancel apart.
  void check_states() {
    for (std::uint16_t host = 0; host < network_.endpoint(0).config().peers; ++host) {
      const auto& values = network_.endpoint(host).counters().values();
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::string name = core::kCounterNames[i];
        if (!name.starts_with("wrong_state_") || name.ends_with("_cancel")) continue;
        CHECK_MESSAGE(values[i] == 0, name);
      }
    }
  }

  void check_senders() {
    for (const Planned& planned : plans_) {
      if (planned.disturbed) continue;
      REQUIRE(planned.transfer->ended());
      const Completed& sent = *planned.transfer->sent();
      const Completed& received = *planned.transfer->received();
      // "Finished before, outcome forgotten" reads as complete.
      if (sent.status == CompletionStatus::kComplete) continue;
      CHECK(sent.status == received.status);
      CHECK(sent.missing_bytes == received.missing_bytes);
    }
  }

  std::string unfinished() const {
    std::string text = "never ended:";
    for (const Planned& planned : plans_) {
      const TransferOptions& o = planned.transfer->options();
      if (!planned.transfer->sent()) text += " send " + std::to_string(o.operation);
      if (!planned.transfer->received()) text += " receive " + std::to_string(o.operation);
    }
    return text;
  }

  Trouble trouble_;
  Prng prng_;
  Simulation network_;
  std::vector<Planned> plans_;
  bool reuse_ = false;
};

void soak(Trouble trouble, std::uint64_t seeds) {
  const std::uint64_t first = from_environment("MLT_SOAK_FIRST", 1);
  seeds = from_environment("MLT_SOAK_SEEDS", seeds);
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    CAPTURE(seed);
    Soak(seed, trouble).run();
  }
}

}  // namespace

TEST_CASE("endpoint__every_operation_ends_and_keeps_its_promise_on_random_networks") { soak({}, 60); }

TEST_CASE("endpoint__survives_cut_connections") { soak({.corruption = false, .reconnections = true}, 40); }

TEST_CASE("endpoint__survives_corrupted_datagrams") { soak({.corruption = true, .reconnections = false}, 40); }
