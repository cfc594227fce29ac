// All-gather, reduce-scatter, broadcast and reduce by two levels over a bus without endpoints: results in any order of
// arrival, for groups of any hosts, with scarce slots; what crosses between hosts; calls that differ; failures.
#include "collective/two_level.h"

#include "fake_bus.h"

using namespace mlt::test;

namespace {

struct TwoLevelHosts {
  std::uint16_t hosts, each;
  std::uint16_t ranks() const { return static_cast<std::uint16_t>(hosts * each); }
};
constexpr TwoLevelHosts kTwoLevelHosts[] = {{2, 2}, {2, 3}, {3, 2}, {4, 2}, {2, 8}, {5, 3}, {8, 2}};

// Whole numbers: their sums are exact in any order.
std::vector<std::vector<float>> whole_numbers(std::uint16_t ranks, std::size_t elements, std::uint64_t seed) {
  mlt::base::Prng prng(seed);
  std::vector<std::vector<float>> tensors(ranks, std::vector<float>(elements));
  for (auto& tensor : tensors) {
    for (float& value : tensor) value = static_cast<float>(prng.below(1'000));
  }
  return tensors;
}

// One call by two levels, or another algorithm, of each rank; inputs have a part for each rank, or are one.
struct TwoLevelCall {
  TwoLevelCall(CollectiveKind of, const TwoLevelHosts& on, std::size_t part, std::uint64_t seed)
      : kind(of), hosts(on), elements(part), root(static_cast<std::uint16_t>(seed % on.ranks())) {
    const bool has_parts = of == CollectiveKind::kReduceScatter;
    inputs = whole_numbers(on.ranks(), has_parts ? on.ranks() * part : part, seed);
    const std::size_t out = of == CollectiveKind::kAllGather ? on.ranks() * part : part;
    outputs.assign(on.ranks(), std::vector<float>(out, -7.0F));
    if (of == CollectiveKind::kBroadcast) outputs[root] = inputs[root];
  }

  CollectiveRequest request(std::uint16_t rank) {
    CollectiveRequest made;
    made.operation = 1;
    made.kind = kind;
    made.algorithm = algorithm;
    made.ranks_per_host = hosts.each;
    made.reduction = reduction;
    made.loss_bound = loss_bound;
    if (kind != CollectiveKind::kBroadcast) made.input = std::as_bytes(std::span(inputs[rank]));
    if (kind != CollectiveKind::kReduce || rank == root) made.output = std::as_writable_bytes(std::span(outputs[rank]));
    if (has_root(kind)) made.root = root;
    const std::size_t bytes = elements * sizeof(float);
    if (!is_list) return made;
    if (kind == CollectiveKind::kAllGather) {
      for (std::size_t i = 0; i < hosts.ranks(); ++i)
        made.output_parts.push_back(made.output.subspan(i * bytes, bytes));
      made.output = {};
    } else {
      for (std::size_t i = 0; i < hosts.ranks(); ++i) made.input_parts.push_back(made.input.subspan(i * bytes, bytes));
      made.input = {};
    }
    return made;
  }

  std::vector<float> expected(std::uint16_t rank) const {
    std::vector<float> found;
    const auto add = [&](std::size_t first) {
      found.assign(elements, 0.0F);
      for (const auto& input : inputs) {
        for (std::size_t i = 0; i < elements; ++i) found[i] += input[first + i];
      }
      if (reduction != Reduction::kMean) return;
      for (float& value : found) value *= 1.0F / static_cast<float>(hosts.ranks());
    };
    switch (kind) {
      case CollectiveKind::kAllGather:
        for (const auto& input : inputs) found.insert(found.end(), input.begin(), input.end());
        break;
      case CollectiveKind::kReduceScatter:
        add(rank * elements);
        break;
      case CollectiveKind::kReduce:
        add(0);
        break;
      default:
        found = inputs[root];
    }
    return found;
  }
  bool has_output(std::uint16_t rank) const { return kind != CollectiveKind::kReduce || rank == root; }

  CollectiveKind kind;
  TwoLevelHosts hosts;
  std::size_t elements;
  std::uint16_t root;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kTwoLevel;
  Reduction reduction = Reduction::kSum;
  double loss_bound = 0;
  bool is_list = false;
  std::vector<std::vector<float>> inputs, outputs;
};

constexpr CollectiveKind kTwoLevelKinds[] = {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                             CollectiveKind::kBroadcast, CollectiveKind::kReduce};

void start_all(FakeBus& bus, TwoLevelCall& call) {
  for (std::uint16_t rank = 0; rank < call.hosts.ranks(); ++rank) bus.start(rank, call.request(rank));
}

void check_done(FakeBus& bus, const TwoLevelCall& call) {
  for (std::uint16_t rank = 0; rank < call.hosts.ranks(); ++rank) {
    CAPTURE(rank);
    REQUIRE(bus.done(rank).size() == 1);
    CHECK(bus.done(rank)[0].error == "");
    CHECK(bus.posted(rank) == 0);
    if (call.has_output(rank)) CHECK(have_same_bits(call.outputs[rank], call.expected(rank)));
  }
}

// Payload, shapes aside, that crosses between hosts.
struct Crossing {
  std::uint64_t total = 0;
  std::vector<std::uint64_t> into, out_of;  // of each host
};
Crossing crossing_of(CollectiveKind kind, const TwoLevelHosts& on, std::size_t elements, CollectiveAlgorithm algorithm,
                     std::uint64_t seed) {
  TwoLevelCall call(kind, on, elements, seed);
  call.algorithm = algorithm;
  FakeBus bus({.ranks = on.ranks(), .seed = seed});
  Crossing found{0, std::vector<std::uint64_t>(on.hosts), std::vector<std::uint64_t>(on.hosts)};
  bus.on_segment = [&](const FakeBus::Segment& segment) {
    const std::size_t from = segment.from / on.each, to = segment.to / on.each;
    if (from == to || segment.send.data.size() == kShapeBytes) return;
    found.total += segment.length;
    found.out_of[from] += segment.length;
    found.into[to] += segment.length;
  };
  start_all(bus, call);
  bus.run();
  check_done(bus, call);
  return found;
}

}  // namespace

TEST_CASE("two_level__collectives_have_the_right_result_in_any_order_of_arrival") {
  for (const CollectiveKind kind : kTwoLevelKinds) {
    for (const TwoLevelHosts& on : kTwoLevelHosts) {
      for (const std::size_t elements : {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{1'003}}) {
        for (const std::uint64_t seed : {1U, 2U, 3U, 4U}) {
          CAPTURE(std::string(collective_name(kind)));
          CAPTURE(on.hosts);
          CAPTURE(on.each);
          CAPTURE(elements);
          CAPTURE(seed);
          FakeBus bus({.ranks = on.ranks(), .seed = seed + elements, .checksums = seed == 4});
          TwoLevelCall call(kind, on, elements, seed);
          if (seed % 2 == 0) call.reduction = Reduction::kMean;
          call.is_list = seed > 2 && !has_root(kind) && elements > 0;
          start_all(bus, call);
          bus.run();
          check_done(bus, call);
        }
      }
    }
  }
}

TEST_CASE("two_level__long_parts_are_cut_into_slices_that_overlap") {
  for (const CollectiveKind kind : kTwoLevelKinds) {
    CAPTURE(std::string(collective_name(kind)));
    const TwoLevelHosts on{2, 2};
    FakeBus bus({.ranks = 4, .seed = 9, .segment_bytes = [](auto, auto) { return 8'920U; }});
    TwoLevelCall call(kind, on, (9U << 20) / sizeof(float) + 3, 9);
    start_all(bus, call);
    bus.run();
    check_done(bus, call);
  }
}

TEST_CASE("two_level__waits_for_space_where_there_is_none_and_loses_nothing_whatever_the_bound") {
  for (const CollectiveKind kind : kTwoLevelKinds) {
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      CAPTURE(std::string(collective_name(kind)));
      CAPTURE(seed);
      const TwoLevelHosts& on = kTwoLevelHosts[seed % std::size(kTwoLevelHosts)];
      FakeBus bus({.ranks = on.ranks(), .seed = seed, .lossy = true, .max_posted = 3, .shared_transfers = 2});
      TwoLevelCall call(kind, on, 700, seed);
      if (kind != CollectiveKind::kBroadcast) call.loss_bound = 0.3;
      start_all(bus, call);
      bus.run();
      check_done(bus, call);
      CHECK(bus.lost_elements() == 0);
    }
  }
}

TEST_CASE("two_level__a_part_crosses_to_each_other_host_once") {
  constexpr std::size_t kElements = 1'000, kBytes = kElements * sizeof(float);
  for (const TwoLevelHosts& on : kTwoLevelHosts) {
    CAPTURE(on.hosts);
    CAPTURE(on.each);
    for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
      const Crossing two = crossing_of(kind, on, kElements, CollectiveAlgorithm::kTwoLevel, 1);
      const Crossing direct = crossing_of(kind, on, kElements, CollectiveAlgorithm::kDirect, 1);
      CHECK(two.total == std::uint64_t{on.ranks()} * (on.hosts - 1U) * kBytes);
      CHECK(direct.total == two.total * on.each);
      for (const std::uint64_t out : two.out_of) CHECK(out == std::uint64_t{on.each} * (on.hosts - 1U) * kBytes);
      CHECK(two.into == two.out_of);
    }
    // Whatever the root: a chain in the group's order returns to the root's host, unless the root is its first.
    for (std::uint64_t root = 0; root < on.ranks(); ++root) {
      for (const CollectiveKind kind : {CollectiveKind::kBroadcast, CollectiveKind::kReduce}) {
        const Crossing two = crossing_of(kind, on, kElements, CollectiveAlgorithm::kTwoLevel, root);
        CHECK(two.total == (on.hosts - 1U) * kBytes);
        for (std::size_t host = 0; host < on.hosts; ++host) {
          CHECK(two.into[host] <= kBytes);
          CHECK(two.out_of[host] <= kBytes);
        }
        const Crossing direct = crossing_of(kind, on, kElements, CollectiveAlgorithm::kDirect, root);
        CHECK(direct.total == two.total * on.each);
      }
    }
  }
}

TEST_CASE("two_level_chain__enters_and_leaves_each_host_once") {
  using Order = std::vector<std::uint32_t>;
  CHECK(two_level_chain(4, 2, 0, false) == Order{0, 1, 2, 3});
  CHECK(two_level_chain(4, 2, 1, false) == Order{1, 0, 2, 3});
  CHECK(two_level_chain(6, 2, 3, false) == Order{3, 2, 4, 5, 0, 1});
  CHECK(two_level_chain(4, 2, 1, true) == Order{1, 2, 3, 0});
  CHECK(two_level_chain(6, 3, 4, true) == Order{4, 0, 1, 2, 5, 3});
}

TEST_CASE("two_level__a_member_that_dies_is_named_by_all_that_need_it") {
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    for (int steps = 0; steps < 60; steps += 3) {
      CAPTURE(std::string(collective_name(kind)));
      CAPTURE(steps);
      const TwoLevelHosts on{3, 2};
      FakeBus bus({.ranks = 6, .seed = 5});
      TwoLevelCall call(kind, on, 300, 2);
      start_all(bus, call);
      bus.run_steps(steps);
      bus.kill(4);
      bus.run();
      for (std::uint16_t rank = 0; rank < 6; ++rank) {
        if (rank == 4) continue;
        REQUIRE(bus.done(rank).size() == 1);
        const CollectiveDone& done = bus.done(rank)[0];
        if (done.error.empty()) {
          CHECK(have_same_bits(call.outputs[rank], call.expected(rank)));
        } else {
          CHECK(done.status == mlt::core::CompletionStatus::kPeerFailed);
          CHECK(done.failed_peer == 4);
          if (kind == CollectiveKind::kReduceScatter) CHECK(call.outputs[rank] == std::vector<float>(300, -7.0F));
        }
      }
    }
  }
}

TEST_CASE("two_level__members_that_take_another_algorithm_are_named_with_what_each_called") {
  for (const CollectiveKind kind : kTwoLevelKinds) {
    CAPTURE(std::string(collective_name(kind)));
    const TwoLevelHosts on{2, 3};
    FakeBus bus({.ranks = 6, .seed = 3});
    TwoLevelCall call(kind, on, 20'000, 4);
    for (std::uint16_t rank = 0; rank < 6; ++rank) {
      call.algorithm = rank == 2 ? CollectiveAlgorithm::kDirect : CollectiveAlgorithm::kTwoLevel;
      bus.start(rank, call.request(rank));
    }
    bus.run();
    std::size_t named = 0;
    for (std::uint16_t rank = 0; rank < 6; ++rank) {
      REQUIRE(bus.done(rank).size() == 1);
      const std::string& error = bus.done(rank)[0].error;
      CAPTURE(error);
      if (error.empty()) continue;
      CHECK(error.find("algorithm direct") != std::string::npos);
      CHECK(error.find("algorithm two-level of 3 ranks per host") != std::string::npos);
      ++named;
    }
    CHECK(named >= (has_root(kind) ? 4U : 6U));
  }
}

TEST_CASE("two_level__is_refused_in_groups_without_hosts") {
  std::vector<float> in(4), out(16);
  CollectiveRequest request;
  request.kind = CollectiveKind::kAllGather;
  request.ranks = {0, 1, 2, 3};
  request.input = std::as_bytes(std::span(in));
  request.output = std::as_writable_bytes(std::span(out));
  request.algorithm = CollectiveAlgorithm::kTwoLevel;
  for (const std::uint16_t each : {std::uint16_t{0}, std::uint16_t{1}, std::uint16_t{4}}) {
    request.ranks_per_host = each;
    CHECK(check_request(request, 0).find("two or more hosts with equally many ranks") != std::string::npos);
  }
  request.ranks_per_host = 2;
  CHECK(check_request(request, 0) == "");
  request.algorithm = CollectiveAlgorithm::kChain;
  CHECK(check_request(request, 0) == "an all-gather has no chain algorithm: use direct or two-level");
}
