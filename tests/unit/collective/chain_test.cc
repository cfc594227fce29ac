// Broadcasts and reduces along a chain over a bus without endpoints: any root, group, size and order of arrival; what
// is passed on early; how much is held; calls that differ; failures.
#include "collective/chain.h"

#include <set>

#include "fake_bus.h"

using namespace mlt::test;
using mlt::core::CompletionStatus;

namespace {

CollectiveRequest broadcast_request(std::vector<float>& data, std::uint16_t root,
                                    CollectiveAlgorithm algorithm = CollectiveAlgorithm::kChain) {
  CollectiveRequest request;
  request.operation = 1;
  request.kind = CollectiveKind::kBroadcast;
  request.output = std::as_writable_bytes(std::span(data));
  request.root = root;
  request.algorithm = algorithm;
  return request;
}

// `output`: at the root.
CollectiveRequest reduce_request(const std::vector<float>& input, std::vector<float>* output, std::uint16_t root,
                                 Reduction reduction = Reduction::kMean,
                                 CollectiveAlgorithm algorithm = CollectiveAlgorithm::kChain) {
  CollectiveRequest request;
  request.operation = 1;
  request.kind = CollectiveKind::kReduce;
  request.input = std::as_bytes(std::span(input));
  if (output != nullptr) request.output = std::as_writable_bytes(std::span(*output));
  request.root = root;
  request.reduction = reduction;
  request.algorithm = algorithm;
  return request;
}

}  // namespace

TEST_CASE("chain__a_broadcast_brings_the_root_s_tensor_to_every_rank_in_any_order_of_arrival") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    mlt::base::Prng prng(seed);
    const auto ranks = static_cast<std::uint16_t>(2 + prng.below(8));
    const auto root = static_cast<std::uint16_t>(prng.below(ranks));
    const std::size_t elements = prng.chance(0.1) ? 0 : 1 + prng.below(3'000);
    // Segments of different lengths between the ranks, and few slots at times.
    FakeBus bus({.ranks = ranks,
                 .seed = seed,
                 .max_posted = prng.chance(0.5) ? 3U : 0U,
                 .shared_transfers = prng.chance(0.5) ? 2U : kSharedTransfers,
                 .segment_bytes = [](auto from, auto to) { return 64U + 4U * ((from * 7U + to) % 5U); }});
    auto tensors = random_tensors(ranks, elements, seed);
    const auto expected = tensors[root];
    for (std::uint16_t rank = 0; rank < ranks; ++rank) bus.start(rank, broadcast_request(tensors[rank], root));
    bus.run();
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      CAPTURE(rank);
      REQUIRE(bus.done(rank).size() == 1);
      CHECK(bus.done(rank)[0].error == "");
      CHECK(bus.done(rank)[0].total_bytes == elements * sizeof(float));
      CHECK(have_same_bits(tensors[rank], expected));
      CHECK(bus.posted(rank) == 0);
    }
  }
}

TEST_CASE("chain__takes_any_group_in_its_own_order_and_many_pieces") {
  const std::vector<std::uint16_t> group = {4, 1, 6, 0, 3};
  FakeBus bus({.ranks = 7, .seed = 4, .segment_bytes = [](auto, auto) { return 8'920U; }});
  const std::size_t elements = (kMaxWindow + 5) * kChainPieceBytes / sizeof(float) + 3;  // more pieces than a window
  auto tensors = random_tensors(7, elements, 9);
  const auto expected = tensors[6];
  for (const std::uint16_t rank : group) {
    CollectiveRequest request = broadcast_request(tensors[rank], 6, CollectiveAlgorithm::kAutomatic);
    request.ranks = group;
    bus.start(rank, request);
  }
  bus.run();
  check_group_complete(bus, group, tensors, expected);
}

TEST_CASE("chain__each_rank_has_a_stream_each_way_and_only_the_shape_from_the_last_to_the_root") {
  std::vector<float> data(3 * kChainPieceBytes / sizeof(float));
  const auto steps = [&](std::uint16_t root, std::uint32_t own) {
    CollectiveRequest request = broadcast_request(data, root);
    const Chain chain(request, {{5, 6, 7, 8}, own});
    REQUIRE(chain.streams.size() == 2);
    CHECK(!chain.streams[0].is_send);
    CHECK(chain.streams[1].is_send);
    return std::pair(chain.streams[0].steps, chain.streams[1].steps);
  };
  CHECK(steps(6, 1) == std::pair(1U, 4U));
  CHECK(steps(6, 2) == std::pair(4U, 4U));
  CHECK(steps(6, 0) == std::pair(4U, 1U));
}

// A chain passes on what it is still receiving: the send is posted, and holds back what has not arrived.
TEST_CASE("chain__a_send_is_posted_before_its_receive_is_complete_and_takes_each_segment_as_it_arrives") {
  std::vector<float> data(100);
  CollectiveRequest request = broadcast_request(data, 0);
  Chain chain(request, {{0, 1, 2}, 1});
  for (Stream& stream : chain.streams) stream.segment_bytes = 128;
  CHECK(!chain.is_ready(chain.streams[1], 1));
  mlt::core::ReceiveRequest receive;
  chain.fill(chain.streams[0], 1, receive);
  REQUIRE((receive.place != nullptr));
  CHECK(chain.is_ready(chain.streams[1], 1));
  mlt::core::SendRequest send;
  chain.fill(chain.streams[1], 1, send);
  REQUIRE((send.feed != nullptr));
  CHECK(send.feed->fresh_count == 0);
  const std::vector<float> arriving(25, 3.0F);
  receive.place(receive.place_context, 0, std::as_bytes(std::span(arriving)));
  CHECK(send.feed->fresh_count == 0);
  receive.place(receive.place_context, 100, std::as_bytes(std::span(arriving)));
  CHECK(send.feed->fresh_count == 1);
  CHECK(data[49] == 3.0F);
  CHECK(data[50] == 0.0F);
}

TEST_CASE("chain__a_member_that_names_another_algorithm_or_root_is_named_at_every_rank_and_the_next_call_works") {
  std::size_t failures = 0;
  for (std::uint16_t ranks = 2; ranks < 7; ++ranks) {
    for (std::uint16_t odd = 0; odd < ranks; ++odd) {
      for (const bool other_root : {false, true}) {
        CAPTURE(ranks);
        CAPTURE(odd);
        CAPTURE(other_root);
        FakeBus bus({.ranks = ranks, .seed = odd + 1U});
        auto tensors = random_tensors(ranks, 200, 3), next = random_tensors(ranks, 60, 4);
        const auto root = static_cast<std::uint16_t>(ranks / 2), another = static_cast<std::uint16_t>(ranks / 2 - 1);
        for (std::uint16_t rank = 0; rank < ranks; ++rank) {
          CollectiveRequest request = broadcast_request(tensors[rank], root);
          if (rank == odd) {
            request = other_root ? broadcast_request(tensors[rank], another)
                                 : broadcast_request(tensors[rank], root, CollectiveAlgorithm::kDirect);
          }
          bus.start(rank, request);
        }
        run_to_the_end(bus, ranks);
        for (std::uint16_t rank = 0; rank < ranks; ++rank) {
          REQUIRE(bus.done(rank).size() == 1);
          const CollectiveDone& done = bus.done(rank)[0];
          CAPTURE(done.error);
          if (done.error.empty()) continue;  // a root, or a member before the odd one, may have done its part
          ++failures;
          CHECK(done.status == CompletionStatus::kSizeMismatch);
          CHECK(done.error.find("rank " + std::to_string(odd) + " called broadcast") != std::string::npos);
          if (!other_root) {
            CHECK(done.error.find("algorithm direct") != std::string::npos);
            CHECK(done.error.find("algorithm chain") != std::string::npos);
          }
        }
        const auto expected = next[root];
        for (std::uint16_t rank = 0; rank < ranks; ++rank) bus.start(rank, broadcast_request(next[rank], root));
        bus.run();
        for (std::uint16_t rank = 0; rank < ranks; ++rank) {
          REQUIRE(bus.done(rank).size() == 2);
          if (bus.done(rank)[1].error.empty()) CHECK(next[rank] == expected);
        }
      }
    }
  }
  CHECK(failures > 100);
}

TEST_CASE("chain__a_rank_that_dies_is_named_by_each_that_does_not_have_the_tensor") {
  std::size_t failures = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    CAPTURE(seed);
    const auto ranks = static_cast<std::uint16_t>(3 + seed % 6), root = static_cast<std::uint16_t>(seed % 5 % ranks);
    FakeBus bus({.ranks = ranks, .seed = seed});
    auto tensors = random_tensors(ranks, 300, seed);
    const auto expected = tensors[root];
    for (std::uint16_t rank = 0; rank < ranks; ++rank) bus.start(rank, broadcast_request(tensors[rank], root));
    bus.run_steps(static_cast<int>(seed % 12));
    const auto dead = static_cast<std::uint16_t>(seed / 3 % ranks);
    bus.kill(dead);
    bus.run();
    failures += check_death_is_named(bus, dead, tensors, expected);
  }
  CHECK(failures > 100);
}

TEST_CASE("chain__a_reduce_is_the_sum_in_the_order_of_the_chain_bit_for_bit_and_changes_no_input") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    mlt::base::Prng prng(seed);
    const auto ranks = static_cast<std::uint16_t>(2 + prng.below(8));
    const auto root = static_cast<std::uint16_t>(prng.below(ranks));
    const std::size_t elements = prng.chance(0.1) ? 0 : 1 + prng.below(3'000);
    const bool average = prng.chance(0.5), is_in_place = prng.chance(0.5);
    FakeBus bus({.ranks = ranks,
                 .seed = seed,
                 .max_posted = prng.chance(0.5) ? 3U : 0U,
                 .shared_transfers = prng.chance(0.5) ? 2U : kSharedTransfers,
                 .segment_bytes = [](auto from, auto to) { return 64U + 4U * ((from * 7U + to) % 5U); }});
    auto tensors = random_tensors(ranks, elements, seed);
    const auto before = tensors;
    std::vector<float> separate(elements);
    std::vector<float>& output = is_in_place ? tensors[root] : separate;
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      bus.start(rank, reduce_request(tensors[rank], rank == root ? &output : nullptr, root,
                                     average ? Reduction::kMean : Reduction::kSum));
    }
    bus.run();
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      CAPTURE(rank);
      REQUIRE(bus.done(rank).size() == 1);
      CHECK(bus.done(rank)[0].error == "");
      CHECK(bus.done(rank)[0].total_bytes == elements * sizeof(float));
      CHECK(bus.posted(rank) == 0);
      if (rank != root || !is_in_place) CHECK(have_same_bits(tensors[rank], before[rank]));
    }
    CHECK(have_same_bits(output, chain_sum(before, root, average)));
  }
}

TEST_CASE("chain__a_long_reduce_without_a_named_algorithm_takes_any_group_and_holds_no_more_than_its_slots") {
  const std::vector<std::uint16_t> group = {4, 1, 6, 0, 3};
  FakeBus bus({.ranks = 7, .seed = 4, .segment_bytes = [](auto, auto) { return 8'920U; }});
  const std::size_t elements = (2 * kChainSlots + 5) * kChainPieceBytes / sizeof(float) + 3;
  auto tensors = random_tensors(7, elements, 9);
  std::vector<std::vector<float>> in_order;
  in_order.reserve(group.size());
  for (const std::uint16_t rank : group) in_order.push_back(tensors[rank]);
  // Of what rank 3, in the middle of the chain, receives.
  std::set<const std::byte*> slots;
  bus.on_segment = [&](const FakeBus::Segment& segment) {
    if (segment.to == 3 && segment.receive.place != nullptr) slots.insert(segment.receive.data.data());
  };
  for (const std::uint16_t rank : group) {
    CollectiveRequest request = reduce_request(tensors[rank], rank == 6 ? &tensors[6] : nullptr, 6, Reduction::kSum,
                                               CollectiveAlgorithm::kAutomatic);
    request.ranks = group;
    bus.start(rank, request);
  }
  bus.run();
  for (const std::uint16_t rank : group) {
    REQUIRE(bus.done(rank).size() == 1);
    CHECK(bus.done(rank)[0].error == "");
  }
  CHECK(have_same_bits(tensors[6], chain_sum(in_order, 2, false)));
  CHECK(slots.size() == kChainSlots);
}

TEST_CASE("chain__a_reduce_begins_after_the_root_and_ends_at_it") {
  std::vector<float> data(3 * kChainPieceBytes / sizeof(float));
  const auto steps = [&](std::uint16_t root, std::uint32_t own) {
    const Chain chain(reduce_request(data, own == root - 5U ? &data : nullptr, root), {{5, 6, 7, 8}, own});
    REQUIRE(chain.streams.size() == 2);
    return std::pair(chain.streams[0].steps, chain.streams[1].steps);
  };
  CHECK(steps(6, 2) == std::pair(1U, 4U));
  CHECK(steps(6, 3) == std::pair(4U, 4U));
  CHECK(steps(6, 0) == std::pair(4U, 4U));
  CHECK(steps(6, 1) == std::pair(4U, 1U));
}

// Its slots are in use until their sends have ended.
TEST_CASE("chain__a_receive_of_a_reduce_waits_for_the_send_of_its_slot") {
  std::vector<float> data((kChainSlots + 2) * kChainPieceBytes / sizeof(float));
  Chain middle(reduce_request(data, nullptr, 0), {{0, 1, 2}, 2});
  CHECK(middle.may_receive(middle.streams[0], kChainSlots));
  CHECK(!middle.may_receive(middle.streams[0], kChainSlots + 1));
  for (const std::uint32_t step : {0U, 1U}) middle.streams[1].mark_done(step);
  CHECK(middle.may_receive(middle.streams[0], kChainSlots + 1));
  CHECK(!middle.may_receive(middle.streams[0], kChainSlots + 2));
  const Chain root(reduce_request(data, &data, 0), {{0, 1, 2}, 0});
  CHECK(root.may_receive(root.streams[0], kChainSlots + 2));
}

TEST_CASE("chain__a_member_of_a_reduce_sends_on_each_segment_combined_before_its_receive_is_complete") {
  const std::vector<float> own(100, 2.0F);
  Chain chain(reduce_request(own, nullptr, 0, Reduction::kSum), {{0, 1, 2}, 2});
  for (Stream& stream : chain.streams) stream.segment_bytes = 128;
  mlt::core::ReceiveRequest receive;
  chain.fill(chain.streams[0], 1, receive);
  REQUIRE((receive.place != nullptr));
  CHECK(chain.is_ready(chain.streams[1], 1));
  mlt::core::SendRequest send;
  chain.fill(chain.streams[1], 1, send);
  REQUIRE((send.feed != nullptr));
  const std::vector<float> arriving(50, 3.0F);
  receive.place(receive.place_context, 0, std::as_bytes(std::span(arriving)));
  CHECK(send.feed->fresh_count == 1);
  float sum = 0;
  std::memcpy(&sum, send.data.data() + 31 * sizeof sum, sizeof sum);
  CHECK(sum == 5.0F);
}

TEST_CASE("chain__a_member_that_names_another_algorithm_or_root_of_a_reduce_is_named_and_the_next_call_works") {
  std::size_t failures = 0;
  for (std::uint16_t ranks = 2; ranks < 7; ++ranks) {
    for (std::uint16_t odd = 0; odd < ranks; ++odd) {
      for (const bool other_root : {false, true}) {
        CAPTURE(ranks);
        CAPTURE(odd);
        CAPTURE(other_root);
        FakeBus bus({.ranks = ranks, .seed = odd + 1U});
        const auto tensors = random_tensors(ranks, 200, 3), next = random_tensors(ranks, 60, 4);
        std::vector<float> outputs[2] = {std::vector<float>(200), std::vector<float>(200)}, result(60);
        const auto root = static_cast<std::uint16_t>(ranks / 2), another = static_cast<std::uint16_t>(ranks / 2 - 1);
        for (std::uint16_t rank = 0; rank < ranks; ++rank) {
          const bool differs = rank == odd;
          const std::uint16_t named = differs && other_root ? another : root;
          bus.start(
              rank,
              reduce_request(tensors[rank], rank == named ? &outputs[differs ? 1 : 0] : nullptr, named, Reduction::kSum,
                             differs && !other_root ? CollectiveAlgorithm::kDirect : CollectiveAlgorithm::kChain));
        }
        run_to_the_end(bus, ranks);
        for (std::uint16_t rank = 0; rank < ranks; ++rank) {
          REQUIRE(bus.done(rank).size() == 1);
          const CollectiveDone& done = bus.done(rank)[0];
          CAPTURE(done.error);
          if (done.error.empty()) {
            CHECK(rank != root);  // a member before the odd one may have done its part
            continue;
          }
          ++failures;
          CHECK(done.status == CompletionStatus::kSizeMismatch);
          CHECK(done.error.find("rank " + std::to_string(odd) + " called reduce") != std::string::npos);
          if (!other_root) {
            CHECK(done.error.find("algorithm direct") != std::string::npos);
            CHECK(done.error.find("algorithm chain") != std::string::npos);
          }
        }
        for (std::uint16_t rank = 0; rank < ranks; ++rank) {
          bus.start(rank, reduce_request(next[rank], rank == root ? &result : nullptr, root));
        }
        bus.run();
        for (std::uint16_t rank = 0; rank < ranks; ++rank) REQUIRE(bus.done(rank).size() == 2);
        if (bus.done(root)[1].error.empty()) CHECK(have_same_bits(result, chain_sum(next, root, true)));
      }
    }
  }
  CHECK(failures > 100);
}

TEST_CASE("chain__a_rank_of_a_reduce_that_dies_is_named_by_each_that_has_not_done_its_part") {
  std::size_t failures = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    CAPTURE(seed);
    const auto ranks = static_cast<std::uint16_t>(3 + seed % 6), root = static_cast<std::uint16_t>(seed % 5 % ranks);
    FakeBus bus({.ranks = ranks, .seed = seed});
    const auto inputs = random_tensors(ranks, 300, seed);
    // The tensors that check_death_is_named() reads: right where the call is complete, whatever the others have.
    std::vector<std::vector<float>> outputs(ranks, chain_sum(inputs, root, false));
    const auto expected = outputs[root];
    outputs[root].assign(300, 0);
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      bus.start(rank, reduce_request(inputs[rank], rank == root ? &outputs[root] : nullptr, root, Reduction::kSum));
    }
    bus.run_steps(static_cast<int>(seed % 12));
    const auto dead = static_cast<std::uint16_t>(seed / 3 % ranks);
    bus.kill(dead);
    bus.run();
    failures += check_death_is_named(bus, dead, outputs, expected);
  }
  CHECK(failures > 100);
}
