// All-gather, reduce-scatter, broadcast, reduce, scatter and barrier over a bus without endpoints, streams of a group,
// and calls that differ: whatever two members call, all hear of both.
#include "collective/exchange.h"

#include <functional>
#include <string>

#include "fake_bus.h"

using namespace mlt::test;
using mlt::core::CompletionStatus;
using mlt::wire::ElementType;

namespace {

using Ints = std::vector<std::int32_t>;

CollectiveRequest request_of(CollectiveKind kind, std::span<const std::int32_t> input, std::span<std::int32_t> output,
                             std::uint16_t root = 0, Reduction reduction = Reduction::kSum) {
  CollectiveRequest request;
  request.operation = 1;
  request.kind = kind;
  request.input = std::as_bytes(input);
  request.output = std::as_writable_bytes(output);
  request.element = ElementType::kInt32;
  request.root = root;
  request.reduction = reduction;
  if (kind == CollectiveKind::kAllToAll) {
    request.send_bytes = request.receive_bytes = {};
  }
  return request;
}

std::vector<Ints> random_ints(std::size_t ranks, std::size_t elements, std::uint64_t seed) {
  mlt::base::Prng prng(seed);
  std::vector<Ints> made(ranks, Ints(elements));
  for (Ints& tensor : made) {
    for (std::int32_t& value : tensor) value = static_cast<std::int32_t>(prng.below(1U << 31));
  }
  return made;
}

void check_ok(FakeBus& bus, std::uint16_t ranks) {
  for (std::uint16_t rank = 0; rank < ranks; ++rank) {
    REQUIRE(bus.done(rank).size() == 1);
    CHECK(bus.done(rank)[0].error == "");
    CHECK(bus.posted(rank) == 0);
  }
}

// Runs the test for groups and parts of several sizes: empty, small, of several pieces.
void for_sizes(const std::function<void(std::uint16_t, std::size_t)>& test) {
  for (const int count : {1, 2, 3, 5}) {
    for (const std::size_t elements : {std::size_t{0}, std::size_t{1}, std::size_t{777}, std::size_t{1'100'000}}) {
      CAPTURE(count);
      CAPTURE(elements);
      test(static_cast<std::uint16_t>(count), elements);
    }
  }
}

}  // namespace

TEST_CASE("all_gather__every_rank_has_all_inputs_in_group_order") {
  for_sizes([](std::uint16_t n, std::size_t elements) {
    const auto inputs = random_ints(n, elements, n);
    Ints expected;
    for (const Ints& input : inputs) expected.insert(expected.end(), input.begin(), input.end());
    std::vector<Ints> outputs(n, Ints(n * elements, -1));
    FakeBus bus({.ranks = n, .seed = elements + 1});
    for (std::uint16_t rank = 0; rank < n; ++rank) {
      bus.start(rank, request_of(CollectiveKind::kAllGather, inputs[rank], outputs[rank]));
    }
    bus.run();
    check_ok(bus, n);
    for (const Ints& output : outputs) CHECK(output == expected);
  });
}

TEST_CASE("reduce_scatter__every_rank_has_its_part_of_the_reduction") {
  for_sizes([](std::uint16_t n, std::size_t elements) {
    const auto inputs = random_ints(n, n * elements, n);
    std::vector<Ints> outputs(n, Ints(elements, -1));
    FakeBus bus({.ranks = n, .seed = elements + 2});
    for (std::uint16_t rank = 0; rank < n; ++rank) {
      bus.start(rank, request_of(CollectiveKind::kReduceScatter, inputs[rank], outputs[rank], 0, Reduction::kXor));
    }
    bus.run();
    check_ok(bus, n);
    for (std::uint16_t rank = 0; rank < n; ++rank) {
      bool is_right = true;
      for (std::size_t i = 0; i < elements; ++i) {
        std::int32_t expected = 0;
        for (const Ints& input : inputs) expected ^= input[rank * elements + i];
        is_right = is_right && outputs[rank][i] == expected;
      }
      CHECK(is_right);
    }
  });
}

TEST_CASE("broadcast__every_rank_has_the_tensor_of_the_root") {
  for_sizes([](std::uint16_t n, std::size_t elements) {
    auto tensors = random_ints(n, elements, n);
    const auto root = static_cast<std::uint16_t>(n / 2);
    const Ints expected = tensors[root];
    FakeBus bus({.ranks = n, .seed = elements + 3});
    for (std::uint16_t rank = 0; rank < n; ++rank) {
      bus.start(rank, request_of(CollectiveKind::kBroadcast, {}, tensors[rank], root));
    }
    bus.run();
    check_ok(bus, n);
    for (const Ints& tensor : tensors) CHECK(tensor == expected);
  });
}

TEST_CASE("reduce__the_root_has_the_reduction_and_nobody_else_s_memory_changes") {
  for_sizes([](std::uint16_t n, std::size_t elements) {
    auto tensors = random_ints(n, elements, n);
    const auto before = tensors;
    const auto root = static_cast<std::uint16_t>(n - 1);
    FakeBus bus({.ranks = n, .seed = elements + 4});
    for (std::uint16_t rank = 0; rank < n; ++rank) {
      // In place at the root.
      const std::span<std::int32_t> output = rank == root ? std::span(tensors[rank]) : std::span<std::int32_t>();
      bus.start(rank, request_of(CollectiveKind::kReduce, tensors[rank], output, root, Reduction::kMax));
    }
    bus.run();
    check_ok(bus, n);
    Ints expected = before[0];
    for (const Ints& one : before) {
      for (std::size_t i = 0; i < elements; ++i) expected[i] = std::max(expected[i], one[i]);
    }
    CHECK(tensors[root] == expected);
    for (std::uint16_t rank = 0; rank < root; ++rank) CHECK(tensors[rank] == before[rank]);
  });
}

TEST_CASE("scatter__every_rank_has_its_part_of_the_root_s_input") {
  for_sizes([](std::uint16_t n, std::size_t elements) {
    const auto root = static_cast<std::uint16_t>(n / 2);
    const Ints input = random_ints(1, n * elements, n)[0];
    std::vector<Ints> outputs(n, Ints(elements, -1));
    FakeBus bus({.ranks = n, .seed = elements + 5});
    for (std::uint16_t rank = 0; rank < n; ++rank) {
      const std::span<const std::int32_t> own = rank == root ? std::span(input) : std::span<const std::int32_t>();
      bus.start(rank, request_of(CollectiveKind::kScatter, own, outputs[rank], root));
    }
    bus.run();
    check_ok(bus, n);
    for (std::uint16_t rank = 0; rank < n; ++rank) {
      CHECK(std::ranges::equal(outputs[rank], std::span(input).subspan(rank * elements, elements)));
    }
  });
}

TEST_CASE("barrier__completes_nowhere_before_the_last_has_called") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    const auto n = static_cast<std::uint16_t>(2 + seed % 5);
    const auto last = static_cast<std::uint16_t>(seed % n);
    FakeBus bus({.ranks = n, .seed = seed});
    for (std::uint16_t rank = 0; rank < n; ++rank) {
      if (rank != last) bus.start(rank, request_of(CollectiveKind::kBarrier, {}, {}));
    }
    bus.run();
    for (std::uint16_t rank = 0; rank < n; ++rank) CHECK(bus.done(rank).empty());
    bus.start(last, request_of(CollectiveKind::kBarrier, {}, {}));
    bus.run();
    check_ok(bus, n);
  }
}

// 2048 + 1 + 1 is 2050 in float32, and 2048 if each sum is rounded to float16.
TEST_CASE("reduce_scatter__rounds_once_in_group_order") {
  std::vector<std::vector<std::uint16_t>> inputs = {{0x6800, 0x6800, 0x6800}, {0x3C00, 0, 0x3C00}, {0x3C00, 0, 0}};
  std::vector<std::vector<std::uint16_t>> outputs(3, {0});
  FakeBus bus({.ranks = 3, .seed = 4});
  for (std::uint16_t rank = 0; rank < 3; ++rank) {
    CollectiveRequest request = request_of(CollectiveKind::kReduceScatter, {}, {});
    request.input = std::as_bytes(std::span(inputs[rank]));
    request.output = std::as_writable_bytes(std::span(outputs[rank]));
    request.element = ElementType::kFloat16;
    bus.start(rank, request);
  }
  bus.run();
  check_ok(bus, 3);
  CHECK(outputs[0][0] == 0x6801);  // 2050
  CHECK(outputs[1][0] == 0x6800);
  CHECK(outputs[2][0] == 0x6800);  // 2049, a tie
}

TEST_CASE("reduce_scatter__in_place_and_unchanged_by_a_failure") {
  for (const bool is_failing : {false, true}) {
    auto tensors = random_ints(3, 30, 5);
    const auto before = tensors;
    FakeBus bus({.ranks = 3, .seed = 6});
    for (std::uint16_t rank = 0; rank < 3; ++rank) {
      const std::span<std::int32_t> own = std::span(tensors[rank]).subspan(10 * rank, 10);
      bus.start(rank, request_of(CollectiveKind::kReduceScatter, tensors[rank], own));
    }
    if (is_failing) bus.machine(1).cancel(bus.now, 1);
    bus.run();
    for (std::uint16_t rank = 0; rank < 3; ++rank) {
      Ints expected = before[rank];
      for (std::size_t i = 10 * rank; !is_failing && i < 10 * (rank + 1U); ++i) {
        expected[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(before[0][i]) +
                                                static_cast<std::uint32_t>(before[1][i]) +
                                                static_cast<std::uint32_t>(before[2][i]));
      }
      CHECK(tensors[rank] == expected);
    }
  }
}

TEST_CASE("reduce__of_floats_keeps_its_bound_and_a_missing_term_is_zero") {
  std::vector<std::vector<float>> tensors(4, std::vector<float>(20'000, 1.0F));
  std::vector<float> sum(20'000);
  FakeBus bus({.ranks = 4, .seed = 7, .lossy = true});
  for (std::uint16_t rank = 0; rank < 4; ++rank) {
    CollectiveRequest request = request_of(CollectiveKind::kReduce, {}, {});
    request.input = std::as_bytes(std::span(tensors[rank]));
    if (rank == 0) request.output = std::as_writable_bytes(std::span(sum));
    request.element = ElementType::kFloat32;
    request.loss_bound = 0.1;
    request.algorithm = CollectiveAlgorithm::kDirect;
    bus.start(rank, request);
  }
  bus.run();
  check_ok(bus, 4);
  CHECK(bus.lost_elements() > 0);
  CHECK(bus.lost_elements() <= 3 * 2'000);
  float terms = 0;
  for (const float value : sum) terms += value;
  CHECK(terms == static_cast<float>(4 * 20'000 - bus.lost_elements()));
}

// Against the terms that arrived, element by element; parts of more than one piece.
TEST_CASE("reductions__a_mean_is_of_the_terms_that_arrived") {
  using Floats = std::vector<float>;
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    CAPTURE(seed);
    const auto n = static_cast<std::uint16_t>(2 + seed % 4);
    const std::size_t part = (seed % 6 == 0 ? 1'100'000 : 5'000) + seed;
    const bool is_scatter = seed % 2 == 0;
    const std::vector<Floats> inputs = random_tensors(n, is_scatter ? n * part : part, seed);
    std::vector<Floats> outputs(n, Floats(is_scatter ? part : 0));
    const auto root = static_cast<std::uint16_t>(seed % n);
    if (!is_scatter) outputs[root].resize(part);
    FakeBus bus({.ranks = n, .seed = seed, .lossy = true});
    // Of each element of a rank's input: whether the rank that combines it lacks it.
    std::vector<std::vector<bool>> missing(n, std::vector<bool>(inputs[0].size()));
    bus.on_segment = [&](const FakeBus::Segment& segment) {
      if (!segment.is_missing) return;
      const std::byte* const at = segment.send.data.data() + segment.offset;
      const auto first = static_cast<std::size_t>(at - std::as_bytes(std::span(inputs[segment.from])).data()) / 4;
      for (std::size_t i = first; i < first + segment.length / 4; ++i) missing[segment.from][i] = true;
    };
    for (std::uint16_t rank = 0; rank < n; ++rank) {
      CollectiveRequest request;
      request.operation = 1;
      request.kind = is_scatter ? CollectiveKind::kReduceScatter : CollectiveKind::kReduce;
      request.input = std::as_bytes(std::span(inputs[rank]));
      request.output = std::as_writable_bytes(std::span(outputs[rank]));
      request.root = is_scatter ? std::uint16_t{0} : root;
      request.loss_bound = seed % 5 == 0 ? 0.9 : 0.15;
      bus.start(rank, request);
    }
    bus.run();
    check_ok(bus, n);
    std::size_t lacking = 0;
    for (std::uint16_t rank = 0; rank < n; ++rank) {
      const std::size_t first = is_scatter ? rank * part : 0;
      for (std::size_t i = 0; i < outputs[rank].size(); ++i) {
        float sum = 0, terms = 0;
        for (std::uint16_t from = 0; from < n; ++from) {
          if (missing[from][first + i]) continue;
          sum += inputs[from][first + i];
          ++terms;
        }
        lacking += terms < static_cast<float>(n) ? 1 : 0;
        REQUIRE(outputs[rank][i] == sum * (1.0F / terms));
      }
    }
    CHECK(lacking > 0);
  }
}

// Two streams of the same ranks, used in opposite orders: neither waits for the other.
TEST_CASE("streams__of_the_same_ranks_are_matched_apart") {
  FakeBus bus({.ranks = 2, .seed = 8});
  Ints first[2] = {{1, 2}, {3, 4}}, second[2] = {{10, 20, 30}, {40, 50, 60}};
  const auto start = [&](std::uint16_t rank, std::uint32_t stream) {
    CollectiveRequest request =
        request_of(CollectiveKind::kAllReduce, {}, stream == 0 ? std::span(first[rank]) : std::span(second[rank]));
    request.stream = stream;
    request.operation = stream + 1;
    bus.start(rank, request);
  };
  start(0, 0);
  start(0, 7);
  start(1, 7);
  bus.run();
  CHECK(second[0] == Ints{50, 70, 90});
  CHECK(first[0] == Ints{1, 2});
  start(1, 0);
  bus.run();
  CHECK(first[1] == Ints{4, 6});
  for (std::uint16_t rank = 0; rank < 2; ++rank) {
    REQUIRE(bus.done(rank).size() == 2);
    for (const CollectiveDone& done : bus.done(rank)) CHECK(done.error == "");
  }
}

// One member calls another operation, root, type, reduction or size. All hear of both calls; none waits for its
// timeout.
TEST_CASE("calls_that_differ__fail_at_every_member_naming_both_whatever_they_are") {
  using Kind = CollectiveKind;
  constexpr Kind kKinds[] = {Kind::kAllReduce, Kind::kAllToAll, Kind::kGather,  Kind::kAllGather, Kind::kReduceScatter,
                             Kind::kBroadcast, Kind::kReduce,   Kind::kScatter, Kind::kBarrier};
  std::size_t differing = 0;
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    CAPTURE(seed);
    mlt::base::Prng prng(seed);
    const auto n = static_cast<std::uint16_t>(2 + prng.below(4));
    const auto other = static_cast<std::uint16_t>(prng.below(n));
    FakeBus bus({.ranks = n, .seed = seed});
    struct Call {
      Kind kind;
      std::size_t elements;
      std::uint16_t root;
      Reduction reduction;
      ElementType element;
    };
    const auto draw = [&] {
      return Call{kKinds[prng.below(9)], prng.chance(0.2) ? 20'000U : prng.below(3),
                  static_cast<std::uint16_t>(prng.below(n)), prng.chance(0.5) ? Reduction::kSum : Reduction::kMin,
                  prng.chance(0.5) ? ElementType::kInt32 : ElementType::kFloat32};
    };
    const Call usual = draw();
    Call unusual = draw();
    if (prng.chance(0.5)) {
      // Only the root, only the type, and so on.
      const Call drawn = unusual;
      unusual = usual;
      switch (prng.below(4)) {
        case 0:
          unusual.root = drawn.root;
          break;
        case 1:
          unusual.elements = drawn.elements;
          break;
        case 2:
          unusual.element = drawn.element;
          break;
        default:
          unusual.reduction = drawn.reduction;
      }
    }
    std::vector<Ints> inputs(n), outputs(n);
    const auto text_of = [&](const Call& call) {
      Shape shape;
      shape.kind = call.kind;
      if (has_reduction(call.kind)) shape.reduction = call.reduction;
      if (has_root(call.kind)) shape.root = call.root;
      shape.bytes = call.kind == Kind::kBarrier ? 0 : 4 * call.elements;
      shape.element = call.kind == Kind::kBarrier ? ElementType::kUint8 : call.element;
      if (call.kind == Kind::kAllReduce) shape.algorithm = chosen_algorithm({n}, shape.bytes);
      if (call.kind == Kind::kBroadcast || call.kind == Kind::kReduce) {
        shape.algorithm = rooted_algorithm_of(CollectiveAlgorithm::kAutomatic, {n}, shape.bytes);
      }
      if (call.kind == Kind::kAllGather || call.kind == Kind::kReduceScatter) {
        shape.algorithm = parted_algorithm_of(CollectiveAlgorithm::kAutomatic, {n}, shape.bytes);
      }
      return describe_shape(encode(shape));
    };
    for (std::uint16_t rank = 0; rank < n; ++rank) {
      const Call& call = rank == other ? unusual : usual;
      const bool is_root = rank == call.root, has_parts_in = call.kind == Kind::kAllToAll ||
                                                             call.kind == Kind::kReduceScatter ||
                                                             (call.kind == Kind::kScatter && is_root);
      const bool has_parts_out =
          call.kind == Kind::kAllToAll || call.kind == Kind::kAllGather || (call.kind == Kind::kGather && is_root);
      const bool has_input = call.kind == Kind::kGather || call.kind == Kind::kAllGather || call.kind == Kind::kReduce;
      const bool has_output = call.kind == Kind::kAllReduce || call.kind == Kind::kReduceScatter ||
                              call.kind == Kind::kBroadcast || call.kind == Kind::kScatter ||
                              (call.kind == Kind::kReduce && is_root);
      inputs[rank].resize(has_parts_in ? n * call.elements : has_input ? call.elements : 0);
      outputs[rank].resize(has_parts_out ? n * call.elements : has_output ? call.elements : 0);
      CollectiveRequest request = request_of(call.kind, inputs[rank], outputs[rank], call.root, call.reduction);
      request.element = call.kind == Kind::kBarrier ? ElementType::kUint8 : call.element;
      if (call.kind == Kind::kAllToAll) {
        request.send_bytes = request.receive_bytes = std::vector<std::uint64_t>(n, 4 * call.elements);
      }
      bus.start(rank, request);
    }
    const mlt::base::TimeNs start = bus.now;
    bus.run();
    CHECK(bus.now == start);
    const std::string first = text_of(usual), second = text_of(unusual);
    if (first != second) ++differing;
    for (std::uint16_t rank = 0; rank < n; ++rank) {
      REQUIRE(bus.done(rank).size() == 1);
      const CollectiveDone& done = bus.done(rank)[0];
      CAPTURE(first);
      CAPTURE(second);
      CAPTURE(done.error);
      if (first == second) {
        CHECK(done.error == "");
        continue;
      }
      // A member of a collective with a root may have done its part before the others met.
      if (done.error.empty()) {
        CHECK((has_root(usual.kind) || has_root(unusual.kind)));
        continue;
      }
      CHECK(done.status == CompletionStatus::kSizeMismatch);
      CHECK(done.error.find(first) != std::string::npos);
      CHECK(done.error.find(second) != std::string::npos);
      CHECK(done.error.find("rank " + std::to_string(other) + " called " + second) != std::string::npos);
    }
  }
  CHECK(differing > 300);
}

TEST_CASE("check_request__refuses_what_does_not_fit_each_collective") {
  std::vector<float> one(6), many(18);
  const auto problem = [&](CollectiveKind kind, std::span<const float> input, std::span<float> output,
                           std::uint16_t root = 0, double loss_bound = 0, std::uint16_t rank = 0) {
    CollectiveRequest request = request_of(kind, {}, {}, root);
    request.input = std::as_bytes(input);
    request.output = std::as_writable_bytes(output);
    request.element = ElementType::kFloat32;
    request.loss_bound = loss_bound;
    request.ranks = {0, 1, 2};
    return check_request(request, rank);
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  using Kind = CollectiveKind;
  CHECK(problem(Kind::kAllGather, one, many) == "");
  CHECK(has(problem(Kind::kAllGather, one, one), "the inputs of 3 ranks have 72"));
  CHECK(problem(Kind::kAllGather, std::span(many).subspan(0, 6), many) == "");
  CHECK(has(problem(Kind::kAllGather, std::span(many).subspan(1, 6), many), "overlaps"));
  CHECK(problem(Kind::kReduceScatter, many, one) == "");
  CHECK(has(problem(Kind::kReduceScatter, one, one), "the outputs of 3 ranks have 72"));
  CHECK(problem(Kind::kReduceScatter, many, std::span(many).subspan(6, 6), 0, 0, 1) == "");
  CHECK(has(problem(Kind::kReduceScatter, many, std::span(many).subspan(6, 6), 0, 0, 2), "overlaps"));
  CHECK(problem(Kind::kBroadcast, {}, one, 2) == "");
  CHECK(has(problem(Kind::kBroadcast, {}, one, 3), "rank 3, is not in the group"));
  CHECK(has(problem(Kind::kBroadcast, {}, one, 0, 0.1), "a broadcast must not lose"));
  CHECK(has(problem(Kind::kBroadcast, many, one), "one tensor"));
  CHECK(problem(Kind::kReduce, one, one) == "");
  CHECK(has(problem(Kind::kReduce, one, many), "the output has 72 bytes; the inputs have 24"));
  CHECK(has(problem(Kind::kReduce, one, one, 1), "only the root, rank 1, has an output"));
  CHECK(problem(Kind::kReduce, one, {}, 1) == "");
  CHECK(problem(Kind::kScatter, many, one) == "");
  CHECK(has(problem(Kind::kScatter, many, one, 1), "only the root, rank 1, has an input"));
  CHECK(has(problem(Kind::kScatter, one, one), "the outputs of 3 ranks have 72"));
  CHECK(problem(Kind::kBarrier, {}, {}) == "");
  CHECK(has(problem(Kind::kBarrier, {}, {}, 0, 0.1), "must not lose"));
  CHECK(has(problem(Kind::kBarrier, one, {}), "no tensor"));
  CollectiveRequest mean = request_of(Kind::kReduceScatter, Ints(3), {}, 0, Reduction::kMean);
  mean.ranks = {0};
  CHECK(has(check_request(mean, 0), "mean of int32"));
}
