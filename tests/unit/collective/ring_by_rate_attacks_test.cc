// Rings that are cut by rate, under attack: whatever kinds of calls a group makes, and whatever fails, members cut
// alike; and what a member announces against the rules costs at most a call that fails as a size mismatch.
#include <cmath>
#include <limits>
#include <map>

#include "base/bytes.h"
#include "fake_bus.h"

namespace base = mlt::base;
namespace core = mlt::core;
using namespace mlt::test;

namespace {

// Groups of some of the ranks. Each rank starts the calls of a group in its order, but when it likes.
class MixedCalls {
 public:
  struct Call {
    CollectiveKind kind = CollectiveKind::kBarrier;
    std::vector<std::vector<float>> tensors, inputs;  // of each member
    std::vector<float> expected;
    CollectiveAlgorithm algorithm = CollectiveAlgorithm::kAutomatic;
    double loss_bound = 0;
    std::uint16_t root = 0;
  };
  struct Team {
    std::vector<std::uint16_t> ranks;
    std::uint32_t stream = 0;
    std::vector<Call> calls;
    std::map<std::uint16_t, std::size_t> next;  // call of each member
  };

  MixedCalls(FakeBus& bus, base::Prng& prng) : bus_(bus), prng_(prng) {}
  std::vector<Team> teams;

  void add_team(std::vector<std::uint16_t> ranks, std::uint32_t stream, std::size_t calls, bool rings_only) {
    Team team{std::move(ranks), stream, {}, {}};
    for (std::size_t i = 0; i < calls; ++i) team.calls.push_back(draw(team, rings_only));
    teams.push_back(std::move(team));
  }

  bool is_dead(std::uint16_t rank) const { return rank == dead; }
  int dead = -1;

  // Starts a call of some rank that has not made all; false if there is none.
  bool start_one() {
    std::vector<std::pair<std::size_t, std::uint16_t>> may;
    for (std::size_t t = 0; t < teams.size(); ++t) {
      for (const std::uint16_t rank : teams[t].ranks) {
        if (!is_dead(rank) && teams[t].next[rank] < teams[t].calls.size()) may.emplace_back(t, rank);
      }
    }
    if (may.empty()) return false;
    const auto [t, rank] = may[prng_.below(may.size())];
    start(t, rank);
    return true;
  }

  void start(std::size_t t, std::uint16_t rank, const std::string& fault = "") {
    Team& team = teams[t];
    const std::size_t index = team.next[rank]++;
    Call& call = team.calls[index];
    const auto own = static_cast<std::size_t>(std::ranges::find(team.ranks, rank) - team.ranks.begin());
    CollectiveRequest request;
    request.operation = id(t, index);
    request.kind = call.kind;
    request.ranks = team.ranks;
    request.stream = team.stream;
    request.reduction = Reduction::kSum;
    request.algorithm = call.algorithm;
    request.loss_bound = call.loss_bound;
    request.root = call.root;
    request.fault = fault;
    if (call.kind != CollectiveKind::kBarrier) request.output = std::as_writable_bytes(std::span(call.tensors[own]));
    if (!call.inputs.empty()) request.input = std::as_bytes(std::span(call.inputs[own]));
    if (call.kind == CollectiveKind::kGather && rank != call.root) request.output = {};
    bus_.start(rank, request);
  }
  static OperationId id(std::size_t team, std::size_t call) { return team * 100'000 + call + 1; }

 private:
  Call draw(const Team& team, bool rings_only) {
    const std::size_t n = team.ranks.size();
    Call call;
    static constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kBarrier,
                                                CollectiveKind::kBroadcast, CollectiveKind::kAllGather,
                                                CollectiveKind::kGather,    CollectiveKind::kReduceScatter};
    call.kind = rings_only || prng_.chance(0.5) ? CollectiveKind::kAllReduce : kKinds[prng_.below(6)];
    const std::size_t sizes[] = {0, 1, 2, n, 100, 300 + prng_.below(700)};
    const std::size_t elements = sizes[prng_.below(6)];
    call.root = team.ranks[prng_.below(n)];
    const auto whole = [&](std::size_t count) {
      std::vector<std::vector<float>> made(n, std::vector<float>(count));
      for (auto& one : made) {
        for (float& value : one) value = static_cast<float>(prng_.below(1'000));
      }
      return made;
    };
    if (call.kind == CollectiveKind::kAllReduce) {
      static constexpr CollectiveAlgorithm kAlgorithms[] = {CollectiveAlgorithm::kAutomatic,
                                                            CollectiveAlgorithm::kDirect, CollectiveAlgorithm::kCentral,
                                                            CollectiveAlgorithm::kHalving};
      call.algorithm = rings_only || prng_.chance(0.6) ? CollectiveAlgorithm::kRing : kAlgorithms[prng_.below(4)];
      call.tensors = whole(elements);
      call.expected.assign(elements, 0);
      for (const auto& one : call.tensors) {
        for (std::size_t i = 0; i < elements; ++i) call.expected[i] += one[i];
      }
    } else if (call.kind == CollectiveKind::kBroadcast) {
      call.algorithm = prng_.chance(0.5) ? CollectiveAlgorithm::kChain : CollectiveAlgorithm::kDirect;
      call.tensors = whole(elements);
      const auto own = std::ranges::find(team.ranks, call.root) - team.ranks.begin();
      call.expected = call.tensors[static_cast<std::size_t>(own)];
    } else if (call.kind == CollectiveKind::kAllGather || call.kind == CollectiveKind::kGather) {
      call.inputs = whole(elements);
      call.tensors.assign(n, std::vector<float>(elements * n));
    } else if (call.kind == CollectiveKind::kReduceScatter) {
      call.inputs = whole(elements * n);
      call.tensors.assign(n, std::vector<float>(elements));
    } else {
      call.tensors.resize(n);
    }
    return call;
  }

  FakeBus& bus_;
  base::Prng& prng_;
};

bool is_shape(const FakeBus::Segment& segment) {
  return segment.offset == 0 && (local_of(segment.send.operation) & ((1U << 22) - 1)) == 0 &&
         segment.length >= kShapeBytes;
}

double any_rate(base::Prng& prng) {
  const double rates[] = {0, -1, std::nan(""), std::numeric_limits<double>::infinity(), 1e-9, 1e30, 256, 1e6};
  return prng.chance(0.2) ? rates[prng.below(8)] : 1e8 * static_cast<double>(1 + prng.below(9));
}

void learn(FakeBus& bus, std::uint16_t ranks) {
  for (std::uint32_t call = 0; call < 4U * ranks; ++call) {
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      CollectiveRequest request;
      request.operation = 1'000'000 + call;
      request.kind = CollectiveKind::kBarrier;
      bus.start(rank, request);
    }
    bus.run();
  }
}

FakeBus::Options of_drawn_rates(std::uint16_t ranks, std::uint64_t seed, std::map<std::uint16_t, double>& rates) {
  base::Prng prng(seed);
  for (std::uint16_t i = 0; i < ranks; ++i)
    rates[i] = std::exp2(20 + static_cast<double>(prng.below(40)) / 8) * (prng.chance(0.1) ? 0 : 1);
  FakeBus::Options options{.ranks = ranks, .seed = seed};
  options.shares_by_rate = true;
  options.port_rate = [&rates](std::uint16_t from, std::uint16_t) { return rates[from]; };
  return options;
}

}  // namespace

TEST_CASE("ring_by_rate__members_cut_alike_whatever_they_call_and_whatever_fails") {
  std::size_t completed = 0, failed = 0, cut = 0, resumed = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    base::Prng prng(seed);
    const auto ranks = static_cast<std::uint16_t>(3 + prng.below(6));
    FakeBus::Options options{.ranks = ranks, .seed = seed};
    options.shares_by_rate = true;
    const bool has_teams = prng.chance(0.6);
    if (!has_teams && prng.chance(0.5)) {
      options.max_posted = 4U + ranks;
      options.shared_transfers = 2;
    }
    const bool is_steady = prng.chance(0.3);
    std::map<std::pair<int, int>, double> steady;
    options.port_rate = [&](std::uint16_t from, std::uint16_t to) {
      if (!is_steady) return any_rate(prng);
      auto [at, is_new] = steady.try_emplace({from, to}, 0);
      if (is_new) at->second = any_rate(prng);
      return at->second;
    };
    FakeBus bus(options);
    if (prng.chance(0.15)) bus.machine(static_cast<std::uint16_t>(prng.below(ranks))).set_shares_by_rate(false);
    MixedCalls job(bus, prng);
    std::vector<std::uint16_t> all(ranks);
    for (std::uint16_t i = 0; i < ranks; ++i) all[i] = i;
    const bool rings_only = prng.chance(0.3);
    job.add_team(all, 0, 30 + prng.below(100), rings_only);
    if (has_teams) {
      for (std::size_t i = ranks; i > 1; --i) std::swap(all[i - 1], all[prng.below(i)]);
      job.add_team(all, 3, 60, rings_only);
      job.add_team({all[0], all[1], all[2]}, 0, 60, rings_only);
      job.add_team({all[1], all[0]}, 0, 20, rings_only);
      if (job.teams[0].ranks == job.teams[1].ranks) continue;
    }
    std::map<std::tuple<std::uint64_t, std::uint32_t>, std::uint16_t> cuts;
    bus.on_segment = [&](const FakeBus::Segment& segment) {
      if (!is_shape(segment)) return;
      const std::byte* const bytes = segment.send.data.data();
      const auto sequence = base::load_le32(bytes + 4);
      const auto found = cuts.try_emplace({segment.send.tag, sequence}, base::load_le16(bytes + 30)).first;
      REQUIRE(found->second == base::load_le16(bytes + 30));
      // PROTOCOL 22.1.5: ... cut (16; of a ring, as in 22.8; else 0).
      const bool is_ring = bytes[25] == static_cast<std::byte>(CollectiveAlgorithm::kRing);
      CHECK((is_ring || found->second == 0));
      if (found->second != 0) ++cut;
      if ((segment.send.tag & 0xFFFF) > 3) ++resumed;
    };
    const double faults = prng.chance(0.7) ? 0.01 : 0.0;
    while (job.start_one()) {
      if (prng.chance(faults)) {
        const auto rank = static_cast<std::uint16_t>(prng.below(ranks));
        switch (prng.below(4)) {
          case 0:
          case 1: {
            const std::size_t team = prng.below(job.teams.size());
            const auto member = job.teams[team].ranks[prng.below(job.teams[team].ranks.size())];
            const std::size_t next = job.teams[team].next[member];
            if (!job.is_dead(member) && next > 0) {
              bus.machine(member).cancel(bus.now,
                                         MixedCalls::id(team, next - 1 - prng.below(std::min<std::size_t>(next, 6))));
            }
            break;
          }
          case 2: {
            const std::size_t team = prng.below(job.teams.size());
            const auto member = job.teams[team].ranks[prng.below(job.teams[team].ranks.size())];
            if (!job.is_dead(member) && job.teams[team].next[member] < job.teams[team].calls.size()) {
              job.start(team, member, "a fault");
            }
            break;
          }
          default:
            if (!job.is_dead(rank)) bus.expire(rank);
        }
      }
      if (faults > 0 && job.dead < 0 && prng.chance(0.0002)) {
        job.dead = static_cast<int>(prng.below(ranks));
        bus.kill(static_cast<std::uint16_t>(job.dead));
      }
      bus.run_steps(static_cast<int>(prng.below(20)));
    }
    bus.run();
    const auto open = [&] {
      for (std::uint16_t rank = 0; rank < ranks; ++rank) {
        if (!job.is_dead(rank) && bus.machine(rank).open() > 0) return true;
      }
      return false;
    };
    if (faults == 0) REQUIRE_FALSE(open());
    for (int i = 0; open(); ++i) {
      REQUIRE(i < 1'000);
      if (!bus.run_to_next_timeout()) break;
      bus.run();
    }
    CHECK_FALSE(open());
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      if (job.is_dead(rank)) continue;
      for (const CollectiveDone& done : bus.done(rank)) {
        CHECK_MESSAGE(done.status != core::CompletionStatus::kSizeMismatch, done.error);
        if (faults == 0) CHECK(done.error == "");
        if (!done.error.empty()) {
          ++failed;
          continue;
        }
        ++completed;
        const MixedCalls::Team& team = job.teams[done.operation / 100'000];
        const MixedCalls::Call& call = team.calls[(done.operation - 1) % 100'000];
        const auto own = static_cast<std::size_t>(std::ranges::find(team.ranks, rank) - team.ranks.begin());
        if (call.kind == CollectiveKind::kAllReduce || call.kind == CollectiveKind::kBroadcast) {
          CHECK(call.tensors[own] == call.expected);
        }
      }
    }
  }
  CHECK(completed > 1'000);
  CHECK(failed > 1'000);
  CHECK(cut > 1'000);
  CHECK(resumed > 1'000);
}

// One member announces any byte in any turn. Members then may cut differently; a sum that is wrong somewhere fails
// elsewhere.
TEST_CASE("ring_by_rate__announcements_against_the_rules_cost_a_size_mismatch_at_most") {
  std::size_t completed = 0, mismatches = 0, cut = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    base::Prng prng(seed);
    const auto ranks = static_cast<std::uint16_t>(3 + prng.below(5));
    FakeBus::Options options{.ranks = ranks, .seed = seed};
    options.shares_by_rate = true;
    options.port_rate = [&](std::uint16_t, std::uint16_t) { return any_rate(prng); };
    FakeBus bus(options);
    MixedCalls job(bus, prng);
    std::vector<std::uint16_t> all(ranks);
    for (std::uint16_t i = 0; i < ranks; ++i) all[i] = i;
    job.add_team(all, 0, 40U + 12U * ranks, prng.chance(0.5));
    bus.on_segment = [&](const FakeBus::Segment& segment) {
      if (!is_shape(segment) || segment.from != 1) return;
      auto* const bytes = const_cast<std::byte*>(segment.send.data.data());
      if (prng.chance(0.5)) bytes[28] = static_cast<std::byte>(prng.below(256));
      if (base::load_le16(bytes + 30) != 0) ++cut;
    };
    while (job.start_one()) bus.run_steps(static_cast<int>(prng.below(30)));
    bus.run();
    const auto open = [&] {
      return std::ranges::any_of(all, [&](std::uint16_t rank) { return bus.machine(rank).open() > 0; });
    };
    for (int i = 0; open(); ++i) {
      REQUIRE(i < 1'000);
      REQUIRE(bus.run_to_next_timeout());
      bus.run();
    }
    std::map<OperationId, bool> has_failed;
    for (const std::uint16_t rank : all) {
      for (const CollectiveDone& done : bus.done(rank)) {
        if (!done.error.empty()) has_failed[done.operation] = true;
      }
    }
    for (const std::uint16_t rank : all) {
      REQUIRE(bus.done(rank).size() == job.teams[0].calls.size());
      for (const CollectiveDone& done : bus.done(rank)) {
        if (!done.error.empty()) {
          CHECK(done.status == core::CompletionStatus::kSizeMismatch);
          ++mismatches;
          continue;
        }
        ++completed;
        const MixedCalls::Call& call = job.teams[0].calls[done.operation - 1];
        if (call.kind != CollectiveKind::kAllReduce && call.kind != CollectiveKind::kBroadcast) continue;
        CHECK((call.tensors[rank] == call.expected || has_failed[done.operation]));
      }
    }
  }
  CHECK(completed > 1'000);
  CHECK(cut > 100);
  CHECK(mismatches > 100);
}

// Weights of a mean of ones have the sum 1, whatever is missing; what is missing stays within the bound of the tensor.
TEST_CASE("ring_by_rate__weights_of_a_mean_have_the_sum_1_and_losses_stay_within_the_bound") {
  std::size_t cuts = 0;
  std::uint64_t missing = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    const auto ranks = static_cast<std::uint16_t>(3 + seed % 6);
    std::map<std::uint16_t, double> rates;
    auto options = of_drawn_rates(ranks, seed, rates);
    options.lossy = true;
    const std::uint32_t segment = seed % 2 == 0 ? 64 : 1'432;
    options.segment_bytes = [segment](std::uint16_t from, std::uint16_t to) {
      return segment + 8U * (std::min(from, to) % 3);
    };
    FakeBus bus(options);
    learn(bus, ranks);
    base::Prng prng(seed);
    const std::size_t sizes[] = {1, 20, 1'000, 16'000, 100'000, 300'001};
    const std::size_t elements = sizes[prng.below(6)];
    const double bound = prng.chance(0.2) ? 0.9 : 0.01 * static_cast<double>(1 + prng.below(30));
    std::vector<std::vector<float>> tensors(ranks, std::vector<float>(elements, 1.0F));
    for (std::uint16_t r = 0; r < ranks; ++r) {
      CollectiveRequest request = all_reduce_request(1, tensors[r], true, bound);
      request.algorithm = CollectiveAlgorithm::kRing;
      bus.start(r, request);
    }
    bus.run();
    for (std::uint16_t r = 0; r < ranks; ++r) {
      const CollectiveDone& done = bus.done(r).back();
      REQUIRE(done.operation == 1);
      CHECK(done.error == "");
      CHECK(bus.posted(r) == 0);
      CHECK(have_same_bits(tensors[r], tensors[0]));
      CHECK(done.missing_bytes <=
            static_cast<std::uint64_t>(bound * static_cast<double>(elements) + 1e-9) * sizeof(float));
      missing += done.missing_bytes;
    }
    for (const float value : tensors[0]) REQUIRE(value == doctest::Approx(1.0).epsilon(1e-5));
    cuts += bus.machine(0).rings_cut_by_rate();
  }
  CHECK(cuts > 30);
  CHECK(missing > 0);
}
