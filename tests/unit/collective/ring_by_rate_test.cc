// Rings that are cut by rate, over a bus without endpoints: right sums with the same bits everywhere, what each link
// carries, losses within the bound, and calls that fail in between.
#include <map>

#include "fake_bus.h"

namespace base = mlt::base;
namespace core = mlt::core;
using namespace mlt::test;

namespace {

// The links to and from `slow` have half the rate of the others.
FakeBus::Options with_slow_rank(std::uint16_t ranks, std::uint16_t slow, std::uint64_t seed) {
  FakeBus::Options options{.ranks = ranks, .seed = seed};
  options.port_rate = [slow](std::uint16_t from, std::uint16_t to) { return from == slow || to == slow ? 5e8 : 1e9; };
  options.shares_by_rate = true;
  return options;
}

// Whole numbers: their sums are exact in any order.
std::vector<std::vector<float>> whole_numbers(std::size_t ranks, std::size_t elements, std::uint64_t seed) {
  auto tensors = random_tensors(ranks, elements, seed);
  for (auto& tensor : tensors) {
    for (float& value : tensor) value = static_cast<float>(static_cast<int>(value * 100));
  }
  return tensors;
}

std::vector<float> sum_of(const std::vector<std::vector<float>>& tensors) {
  std::vector<float> sum(tensors[0].size());
  for (const auto& tensor : tensors) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += tensor[i];
  }
  return sum;
}

void start_ring(FakeBus& bus, std::vector<std::vector<float>>& tensors, OperationId operation, double loss_bound = 0) {
  for (std::uint16_t rank = 0; rank < tensors.size(); ++rank) {
    CollectiveRequest request = all_reduce_request(operation, tensors[rank], false, loss_bound);
    request.algorithm = CollectiveAlgorithm::kRing;
    bus.start(rank, request);
  }
}

// So many that the rates are known, of any kind.
void learn_rates(FakeBus& bus, std::uint16_t ranks, CollectiveKind kind) {
  for (std::uint32_t call = 0; call < 4U * ranks; ++call) {
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      CollectiveRequest request;
      request.operation = 1'000 + call;
      request.kind = kind;
      bus.start(rank, request);
    }
  }
  bus.run();
}

}  // namespace

TEST_CASE("ring_by_rate__sums_with_the_same_bits_and_spares_the_slow_host") {
  const std::size_t piece = (1U << 20) / sizeof(float);
  for (const std::uint16_t ranks : {std::uint16_t{3}, std::uint16_t{4}, std::uint16_t{7}}) {
    for (const std::size_t elements : {std::size_t{1}, std::size_t{20'003}, 3 * piece + 5}) {
      CAPTURE(ranks);
      CAPTURE(elements);
      const std::uint16_t slow = ranks / 2;
      FakeBus bus(with_slow_rank(ranks, slow, elements));
      learn_rates(bus, ranks, elements % 2 == 0 ? CollectiveKind::kAllReduce : CollectiveKind::kBarrier);
      std::map<std::pair<std::uint16_t, std::uint16_t>, std::size_t> carried;
      bus.on_segment = [&](const FakeBus::Segment& segment) { carried[{segment.from, segment.to}] += segment.length; };
      auto tensors = whole_numbers(ranks, elements, 7);
      const auto expected = sum_of(tensors);
      start_ring(bus, tensors, 1);
      bus.run();
      for (std::uint16_t rank = 0; rank < ranks; ++rank) {
        CHECK(bus.done(rank).back().error == "");
        CHECK(tensors[rank] == expected);
        CHECK(bus.posted(rank) == 0);
        const auto next = static_cast<std::uint16_t>((rank + 1) % ranks);
        const double tensors_carried =
            static_cast<double>(carried[{rank, next}]) / static_cast<double>(elements * sizeof(float));
        if (elements < 1'000) continue;
        if (rank == slow || next == slow) {
          CHECK(tensors_carried < 1.02);
        } else {
          CHECK(tensors_carried > 1.9);
        }
      }
    }
  }
}

TEST_CASE("ring_by_rate__cuts_equal_chunks_unless_all_take_shares_by_rate") {
  FakeBus bus(with_slow_rank(4, 1, 3));
  bus.machine(2).set_shares_by_rate(false);
  learn_rates(bus, 4, CollectiveKind::kBarrier);
  std::map<std::uint16_t, std::size_t> sent;
  bus.on_segment = [&](const FakeBus::Segment& segment) { sent[segment.from] += segment.length; };
  auto tensors = whole_numbers(4, 40'000, 7);
  const auto expected = sum_of(tensors);
  start_ring(bus, tensors, 1);
  bus.run();
  for (std::uint16_t rank = 0; rank < 4; ++rank) {
    CHECK(tensors[rank] == expected);
    CHECK(sent[rank] == 6 * 10'000 * sizeof(float) + kShapeBytes);
  }
}

TEST_CASE("ring_by_rate__losses_stay_within_the_bound_of_what_each_rank_receives_of_sums") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    const auto ranks = static_cast<std::uint16_t>(3 + seed % 3);
    const double bound = 0.05 * static_cast<double>(1 + seed % 5);
    FakeBus::Options options = with_slow_rank(ranks, 1, seed);
    options.lossy = true;
    FakeBus bus(options);
    learn_rates(bus, ranks, CollectiveKind::kBarrier);
    const std::size_t elements = (seed % 8 < 4 ? 100'000 : 16'000) + seed;
    std::vector<std::vector<float>> tensors(ranks, std::vector<float>(elements, 1.0F));
    start_ring(bus, tensors, 1, bound);
    bus.run();
    std::uint64_t missing = 0;
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      const CollectiveDone& done = bus.done(rank).back();
      CHECK(done.error == "");
      CHECK(done.missing_bytes <=
            static_cast<std::uint64_t>(bound * static_cast<double>(elements) + 1) * sizeof(float));
      CHECK(have_same_bits(tensors[rank], tensors[0]));
      missing += done.missing_bytes;
    }
    CHECK(missing > 0);
    for (const float value : tensors[0]) {
      REQUIRE(value >= 1);
      REQUIRE(value <= static_cast<float>(ranks));
    }
  }
}

// Rates that differ from call to call, calls that are cancelled, and many in flight: whatever is cut, every call that
// completes has the right sum at every rank, and none differs from the others' call.
TEST_CASE("ring_by_rate__goes_on_through_failures_and_rates_that_change") {
  std::size_t failed = 0, completed = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    const auto ranks = static_cast<std::uint16_t>(3 + seed % 4);
    base::Prng prng(seed);
    FakeBus::Options options{.ranks = ranks, .seed = seed};
    options.port_rate = [&](auto, auto) { return 1e8 * static_cast<double>(1 + prng.below(9)); };
    options.shares_by_rate = true;
    FakeBus bus(options);
    constexpr std::size_t kCalls = 150;
    std::vector<std::vector<std::vector<float>>> tensors(kCalls);
    std::vector<std::vector<float>> expected(kCalls);
    for (std::size_t i = 0; i < kCalls; ++i) {
      tensors[i] = whole_numbers(ranks, 300 + i, i);
      expected[i] = sum_of(tensors[i]);
      start_ring(bus, tensors[i], i);
      if (prng.chance(0.04)) bus.machine(static_cast<std::uint16_t>(prng.below(ranks))).cancel(bus.now, i);
      bus.run_steps(static_cast<int>(prng.below(200)));
    }
    bus.run();
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      REQUIRE(bus.done(rank).size() == kCalls);
      for (const CollectiveDone& done : bus.done(rank)) {
        CHECK(done.status != core::CompletionStatus::kSizeMismatch);
        done.error.empty() ? ++completed : ++failed;
        if (done.error.empty()) CHECK(tensors[done.operation][rank] == expected[done.operation]);
      }
    }
  }
  CHECK(failed > 100);
  CHECK(completed > 1'000);
}

TEST_CASE("shape__of_another_cut_is_another_call_and_one_with_another_rate_is_the_same") {
  Shape shape;
  shape.algorithm = CollectiveAlgorithm::kRing;
  shape.cut = 0x1234;
  const auto call = encode(shape);
  shape.rate = 150;
  CHECK(is_same_call(call, encode(shape)));
  CHECK(announced_rate(encode(shape)) == 150);
  for (const int cut : {0x1233, 0x1334, 0}) {
    shape.cut = static_cast<std::uint16_t>(cut);
    CHECK_FALSE(is_same_call(call, encode(shape)));
  }
  CHECK(describe_shape(call).find("algorithm ring by rates (cut 4660)") != std::string::npos);
}
