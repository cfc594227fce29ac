// The ring over a bus without endpoints: sums bit for bit, losses within their bounds, any number of ranks and
// elements.
#include "collective/ring_allreduce.h"

#include <cmath>

#include "fake_bus.h"

using namespace mlt::test;

TEST_CASE("pieces_of__1_MiB_at_most") {
  const auto pieces = [](std::uint64_t chunk_kibibytes) {
    constexpr std::uint32_t kRanks = 4;
    return RingAllReduce::pieces_of(chunk_kibibytes * 256 * kRanks, sizeof(float), kRanks);
  };
  CHECK(pieces(0) == 1);
  CHECK(pieces(1'024) == 1);
  CHECK(pieces(1'025) == 2);
  CHECK(pieces(12'800) == 13);
}

// Both neighbours cut the same chunk, each by the segments of its own link.
TEST_CASE("ring_allreduce__passes_a_segment_on_once_every_byte_of_it_is_here") {
  constexpr std::uint32_t kFromLeft = 24, kToRight = 40;
  std::vector<float> data(60, 1.0F);
  const std::vector<float> arriving(20, 2.0F);
  RingAllReduce ring({{0, 1, 2}, 0}, std::as_writable_bytes(std::span(data)), mlt::wire::ElementType::kFloat32,
                     Reduction::kSum, 0);
  Stream& receives = ring.streams[0];
  Stream& sends = ring.streams[1];
  receives.segment_bytes = kFromLeft;
  sends.segment_bytes = kToRight;
  mlt::core::ReceiveRequest receive;
  ring.fill(receives, 1, receive);
  REQUIRE(ring.is_ready(sends, 2));
  mlt::core::SendRequest send;
  ring.fill(sends, 2, send);
  REQUIRE(send.feed != nullptr);
  REQUIRE(send.feed->fresh.size() == 2);
  const auto arrives = [&](std::uint64_t offset) {
    const auto bytes = std::as_bytes(std::span(arriving));
    receive.place(receive.place_context, offset,
                  bytes.subspan(offset, std::min<std::uint64_t>(kFromLeft, 80 - offset)));
  };
  arrives(24);
  CHECK(send.feed->fresh_count == 0);
  arrives(72);
  CHECK(send.feed->fresh_count == 0);
  arrives(0);
  CHECK(send.feed->fresh_count == 1);
  CHECK(send.feed->fresh.test(0));
  arrives(48);
  CHECK(send.feed->fresh_count == 2);
  CHECK(std::ranges::count(std::span(data).subspan(40, 20), 3.0F) == 20);
}

TEST_CASE("ring_allreduce__is_the_sum_in_ring_order_bit_for_bit") {
  const std::size_t piece = kRingPieceBytes / sizeof(float);
  for (const int count : {2, 3, 4, 7}) {
    const auto ranks = static_cast<std::uint16_t>(count);
    for (const std::size_t elements :
         {std::size_t{16'385}, std::size_t{16'387}, std::size_t{20'006}, 2 * piece + 3, 5 * piece + 1}) {
      for (const bool average : {false, true}) {
        CAPTURE(ranks);
        CAPTURE(elements);
        FakeBus bus({.ranks = ranks, .seed = elements + ranks});
        auto tensors = random_tensors(ranks, elements, elements + 7);
        const auto expected = ring_sum(tensors, average);
        all_reduce(bus, tensors, average, 0, CollectiveAlgorithm::kRing);
        check_complete(bus, tensors, expected);
      }
    }
  }
}

TEST_CASE("ring_allreduce__of_more_ranks_than_elements") {
  constexpr std::uint16_t kRanks = 130;
  FakeBus bus({.ranks = kRanks, .seed = 4});
  auto tensors = random_tensors(kRanks, kRanks - 2, 8);
  const auto expected = ring_sum(tensors, true);
  all_reduce(bus, tensors, true, 0, CollectiveAlgorithm::kRing);
  for (const auto& tensor : tensors) CHECK(tensor == expected);
}

TEST_CASE("ring_allreduce__takes_any_group_in_its_own_order") {
  FakeBus bus({.ranks = 5, .seed = 3});
  auto tensors = random_tensors(5, 9'999, 5);
  const auto before = tensors;
  const std::vector<std::uint16_t> group = {4, 0, 3};
  const auto expected = ring_sum({tensors[4], tensors[0], tensors[3]}, true);
  for (const std::uint16_t rank : group) {
    CollectiveRequest request = all_reduce_request(1, tensors[rank]);
    request.ranks = group;
    bus.start(rank, request);
  }
  bus.run();
  for (const std::uint16_t rank : group) CHECK(tensors[rank] == expected);
  CHECK(tensors[1] == before[1]);
  CHECK(tensors[2] == before[2]);
}

TEST_CASE("ring_allreduce__losses_stay_within_the_bound_of_each_rank_and_ranks_end_with_the_same_bits") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    const auto ranks = static_cast<std::uint16_t>(2 + seed % 4);
    const double bound = 0.05 * static_cast<double>(1 + seed % 5);
    FakeBus bus({.ranks = ranks, .seed = seed, .lossy = true});
    // Ones: an element of the sum is the number of terms that reached it.
    // Chunks of several pieces, and of one, whose segments are passed on one by one.
    const std::size_t elements = (seed % 8 < 4 ? 100'000 : 16'000) + seed;
    std::vector<std::vector<float>> tensors(ranks, std::vector<float>(elements, 1.0F));
    all_reduce(bus, tensors, false, bound, CollectiveAlgorithm::kRing);
    std::uint64_t missing = 0;
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      REQUIRE(bus.done(rank).size() == 1);
      CHECK(bus.done(rank)[0].error == "");
      missing += bus.done(rank)[0].missing_bytes;
      // A rank receives of sums every chunk but its own.
      const std::size_t own = elements / ranks + (rank < elements % ranks ? 1 : 0);
      CHECK(bus.done(rank)[0].missing_bytes <= 4 * mlt::core::allowed_missing(elements - own, bound));
      CHECK(tensors[rank] == tensors[0]);
    }
    CHECK(missing == 4 * bus.lost_elements());
    REQUIRE(missing > 0);
    std::size_t short_of_terms = 0;
    for (const float value : tensors[0]) {
      // The summing rank's own term is always there.
      REQUIRE(value >= 1.0F);
      REQUIRE(value <= static_cast<float>(ranks));
      if (value != static_cast<float>(ranks)) ++short_of_terms;
    }
    CHECK(short_of_terms > 0);
    const double hops = ranks - 1.0;
    CHECK(static_cast<double>(short_of_terms) <= hops * bound * static_cast<double>(tensors[0].size()));
    CHECK(missing <= static_cast<std::uint64_t>(4 * hops * bound * static_cast<double>(tensors[0].size())));
  }
}

// Chunks of four segments: a tenth of one is less than a segment, a tenth of the 28 that a rank receives is two.
TEST_CASE("ring_allreduce__all_receives_of_sums_share_the_bound_and_results_have_none") {
  constexpr std::uint32_t kRanks = 8;
  std::vector<float> data(kRanks * 4 * kFakeSegmentBytes / sizeof(float));
  RingAllReduce ring({{0, 1, 2, 3, 4, 5, 6, 7}, 3}, std::as_writable_bytes(std::span(data)),
                     mlt::wire::ElementType::kFloat32, Reduction::kSum, 0.1);
  std::size_t drawn = 0;
  for (std::uint32_t step = 1; step < kRanks; ++step) {
    mlt::core::ReceiveRequest receive;
    ring.fill(ring.streams[0], step, receive);
    REQUIRE(receive.shared_budget != nullptr);
    CHECK(receive.loss_bound == kMaxPieceLoss);
    if (receive.shared_budget->left_bytes() < kFakeSegmentBytes) continue;
    receive.shared_budget->draw(kFakeSegmentBytes);
    ++drawn;
  }
  CHECK(drawn == 2);
  for (std::uint32_t step = kRanks; step < 2 * kRanks - 1; ++step) {
    mlt::core::ReceiveRequest receive;
    ring.fill(ring.streams[0], step, receive);
    CHECK(receive.shared_budget == nullptr);
    CHECK(receive.loss_bound == 0);
  }
}

// Against a walk along the ring for each element: a rank that misses it starts anew, with its own term in the place of
// all before. Bit for bit, with chunks of one piece, whose segments are passed on one by one, and of several, and with
// neighbours that cut a chunk differently.
TEST_CASE("ring_allreduce__in_a_mean_the_own_term_takes_the_weights_of_the_missing") {
  std::uint64_t lost = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    CAPTURE(seed);
    const auto ranks = static_cast<std::uint16_t>(3 + seed % 6);
    const std::size_t elements = (seed % 4 == 0 ? 150'000 : 20'000) + seed;
    const double bound = seed % 5 == 0 ? 0.8 : 0.05 * static_cast<double>(1 + seed % 6);
    FakeBus bus({.ranks = ranks, .seed = seed, .lossy = true, .segment_bytes = [seed](auto from, auto to) {
                   return seed % 3 == 0 && (from + to) % 3 == 0 ? 8'920U : 1'432U;
                 }});
    auto tensors = random_tensors(ranks, elements, seed);
    const auto terms = tensors;
    std::vector<std::vector<bool>> is_missing(ranks, std::vector<bool>(elements));
    bus.on_segment = [&](const FakeBus::Segment& segment) {
      if (!segment.is_missing) return;
      const auto* const at = reinterpret_cast<const float*>(segment.receive.data.data() + segment.offset);
      const auto first = static_cast<std::size_t>(at - tensors[segment.to].data());
      for (std::size_t i = first; i < first + segment.length / sizeof(float); ++i) is_missing[segment.to][i] = true;
    };
    all_reduce(bus, tensors, true, bound, CollectiveAlgorithm::kRing);
    std::vector<float> expected(elements);
    for (std::size_t chunk = 0; chunk < ranks; ++chunk) {
      const std::size_t first = elements / ranks * chunk + std::min(chunk, elements % ranks);
      const std::size_t length = elements / ranks + (chunk < elements % ranks ? 1 : 0);
      for (std::size_t i = first; i < first + length; ++i) {
        float sum = terms[chunk][i];
        for (std::size_t hop = 1; hop < ranks; ++hop) {
          const std::size_t rank = (chunk + hop) % ranks;
          const float own = terms[rank][i];
          const bool is_last = hop + 1 == ranks;
          if (is_missing[rank][i]) {
            sum = is_last ? own : own * static_cast<float>(hop + 1);
          } else {
            sum = is_last ? (own + sum) * (1.0F / static_cast<float>(ranks)) : own + sum;
          }
        }
        expected[i] = sum;
      }
    }
    for (const auto& tensor : tensors) REQUIRE(tensor == expected);
    lost += bus.lost_elements();
  }
  CHECK(lost > 1'000'000);
}

TEST_CASE("ring_allreduce__a_mean_of_equal_terms_is_no_smaller_for_what_is_lost") {
  for (const int count : {2, 3, 5, 8}) {
    CAPTURE(count);
    const auto ranks = static_cast<std::uint16_t>(count);
    FakeBus bus({.ranks = ranks, .seed = 11, .lossy = true});
    std::vector<std::vector<float>> tensors(ranks, std::vector<float>(60'000, 5.0F));
    all_reduce(bus, tensors, true, 0.3, CollectiveAlgorithm::kRing);
    CHECK(bus.lost_elements() > 10'000);
    for (const float value : tensors[0]) REQUIRE(value == doctest::Approx(5.0).epsilon(1e-6));
  }
}

TEST_CASE("ring_allreduce__a_mean_of_two_is_of_the_terms_that_arrived") {
  FakeBus bus({.ranks = 2, .seed = 9, .lossy = true});
  std::vector<std::vector<float>> tensors = {std::vector<float>(50'000, 2.0F), std::vector<float>(50'000, 6.0F)};
  all_reduce(bus, tensors, true, 0.2, CollectiveAlgorithm::kRing);
  CHECK(tensors[0] == tensors[1]);
  CHECK(bus.lost_elements() > 0);
  std::size_t lost = 0;
  for (const float value : tensors[0]) {
    REQUIRE((value == 4.0F || value == 2.0F || value == 6.0F));
    if (value != 4.0F) ++lost;
  }
  CHECK(lost == bus.lost_elements());
  CHECK(bus.done(0)[0].status == mlt::core::CompletionStatus::kWithinBound);
}

// Against a walk along the ring for each element, of the sums and then of the results: a rank that misses a result has
// what it holds of the sum, divided by its terms in a mean, and the ranks after it have that too. Bit for bit, with
// chunks of one piece and of several, and with neighbours that cut a chunk differently.
TEST_CASE("ring_allreduce__with_lossy_results_a_rank_keeps_what_it_holds_of_a_missing_one_and_passes_it_on") {
  std::uint64_t lost_results = 0;
  std::size_t different = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    CAPTURE(seed);
    const auto ranks = static_cast<std::uint16_t>(2 + seed % 6);
    const bool average = seed % 2 == 0;
    const std::size_t elements = (seed % 4 == 0 ? 150'000 : 20'000) + seed;
    const double bound = seed % 5 == 0 ? 0.8 : 0.05 * static_cast<double>(1 + seed % 6);
    FakeBus bus({.ranks = ranks, .seed = seed, .lossy = true, .segment_bytes = [seed](auto from, auto to) {
                   return seed % 3 == 0 && (from + to) % 3 == 0 ? 8'920U : 1'432U;
                 }});
    auto tensors = random_tensors(ranks, elements, seed);
    const auto terms = tensors;
    const auto chunk_of = [&](std::size_t i) {
      const std::size_t longer = elements % ranks * (elements / ranks + 1);
      return i < longer ? i / (elements / ranks + 1) : elements % ranks + (i - longer) / (elements / ranks);
    };
    std::vector<std::vector<bool>> has_sum(ranks, std::vector<bool>(elements)), lacks_sum = has_sum,
                                                                                lacks_result = has_sum;
    bus.on_segment = [&](const FakeBus::Segment& segment) {
      if (segment.receive.place == nullptr) return;  // a shape
      const auto* const at = reinterpret_cast<const float*>(segment.receive.data.data() + segment.offset);
      const auto first = static_cast<std::size_t>(at - tensors[segment.to].data());
      for (std::size_t i = first; i < first + segment.length / sizeof(float); ++i) {
        // Of its own chunk a rank receives no sum, of all others the sum first.
        const bool is_sum = chunk_of(i) != segment.to && !has_sum[segment.to][i];
        if (is_sum) has_sum[segment.to][i] = true;
        if (segment.is_missing) (is_sum ? lacks_sum : lacks_result)[segment.to][i] = true;
      }
    };
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      CollectiveRequest request = all_reduce_request(1, tensors[rank], average, bound);
      request.algorithm = CollectiveAlgorithm::kRing;
      request.lossy_results = true;
      bus.start(rank, request);
    }
    bus.run();
    std::vector<std::vector<float>> expected = terms;
    std::vector<std::uint64_t> missing(ranks);
    for (std::size_t i = 0; i < elements; ++i) {
      const std::size_t chunk = chunk_of(i);
      for (std::size_t hop = 1; hop < ranks; ++hop) {
        const std::size_t rank = (chunk + hop) % ranks, before = (chunk + hop - 1) % ranks;
        float& sum = expected[rank][i];
        const bool is_last = hop + 1 == ranks;
        if (!lacks_sum[rank][i]) {
          sum += expected[before][i];
          if (is_last && average) sum *= 1.0F / static_cast<float>(ranks);
        } else if (average && !is_last) {
          sum *= static_cast<float>(hop + 1);
        }
        missing[rank] += lacks_sum[rank][i] ? sizeof(float) : 0;
      }
      for (std::size_t hop = 0; hop + 1 < ranks; ++hop) {
        const std::size_t rank = (chunk + hop) % ranks, before = (chunk + hop + ranks - 1) % ranks;
        if (!lacks_result[rank][i]) {
          expected[rank][i] = expected[before][i];
          continue;
        }
        if (average) expected[rank][i] *= 1.0F / static_cast<float>(hop + 1);
        missing[rank] += sizeof(float);
        ++lost_results;
      }
    }
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      REQUIRE(tensors[rank] == expected[rank]);
      REQUIRE(bus.done(rank).size() == 1);
      CHECK(bus.done(rank)[0].error == "");
      CHECK(bus.done(rank)[0].missing_bytes == missing[rank]);
      for (std::size_t i = 0; i < elements; ++i) different += tensors[rank][i] != tensors[0][i] ? 1U : 0U;
    }
  }
  CHECK(lost_results > 1'000'000);
  CHECK(different > 1'000'000);
}

TEST_CASE("ring_allreduce__sums_and_lossy_results_have_a_budget_each") {
  constexpr std::uint32_t kRanks = 8;
  std::vector<float> data(kRanks * 4 * kFakeSegmentBytes / sizeof(float));
  RingAllReduce ring({{0, 1, 2, 3, 4, 5, 6, 7}, 3}, std::as_writable_bytes(std::span(data)),
                     mlt::wire::ElementType::kFloat32, Reduction::kSum, 0.1, {}, true);
  std::size_t drawn[2] = {};
  for (std::uint32_t step = 1; step < 2 * kRanks - 1; ++step) {
    mlt::core::ReceiveRequest receive;
    ring.fill(ring.streams[0], step, receive);
    REQUIRE(receive.shared_budget != nullptr);
    CHECK(receive.loss_bound == kMaxPieceLoss);
    CHECK((receive.place != nullptr));
    CHECK(ring.is_lossy(step));
    if (receive.shared_budget->left_bytes() < kFakeSegmentBytes) continue;
    receive.shared_budget->draw(kFakeSegmentBytes);
    ++drawn[step < kRanks ? 0 : 1];
  }
  CHECK(drawn[0] == 2);
  CHECK(drawn[1] == 2);
}

TEST_CASE("ring_allreduce__lossy_results_without_a_bound_lose_nothing") {
  FakeBus bus({.ranks = 4, .seed = 5, .lossy = true});
  auto tensors = random_tensors(4, 40'000, 5);
  const auto expected = ring_sum(tensors, true);
  for (std::uint16_t rank = 0; rank < 4; ++rank) {
    CollectiveRequest request = all_reduce_request(rank + 1U, tensors[rank]);
    request.algorithm = CollectiveAlgorithm::kRing;
    request.lossy_results = true;
    bus.start(rank, request);
  }
  bus.run();
  check_complete(bus, tensors, expected);
}

TEST_CASE("ring_allreduce__members_that_disagree_on_lossy_results_are_named") {
  FakeBus bus({.ranks = 3, .seed = 6});
  auto tensors = random_tensors(3, 40'000, 5);
  for (std::uint16_t rank = 0; rank < 3; ++rank) {
    CollectiveRequest request = all_reduce_request(1, tensors[rank], true, 0.1);
    request.lossy_results = rank == 1;
    bus.start(rank, request);
  }
  bus.run();
  for (std::uint16_t rank = 0; rank < 3; ++rank) {
    REQUIRE(bus.done(rank).size() == 1);
    const std::string& error = bus.done(rank)[0].error;
    CAPTURE(error);
    const std::size_t named = error.find(
        "rank 1 called all-reduce number 1 of 160000 bytes of float32, loss bound 0.1, "
        "lossy results, mean");
    CHECK(named != std::string::npos);
    CHECK(error.find("loss bound 0.1, mean") != std::string::npos);
  }
}

TEST_CASE("ring_allreduce__posts_a_window_at_a_time") {
  FakeBus bus({.ranks = 2, .seed = 1});
  auto tensors = random_tensors(2, 70 * kRingPieceBytes / sizeof(float), 1);
  const auto expected = ring_sum(tensors, false);
  all_reduce(bus, tensors, false, 0, CollectiveAlgorithm::kRing);
  CHECK(bus.max_posted() == kMaxWindow);
  CHECK(tensors[0] == expected);
  CHECK(tensors[1] == expected);
}

TEST_CASE("ring_allreduce__refuses_what_it_cannot_sum") {
  std::vector<float> data(3);
  CollectiveRequest request = all_reduce_request(1, data);
  request.ranks = {0, 1};
  CHECK(check_request(request, 0) == "");
  CHECK(check_request(request, 2).find("rank 2 is not in its group") != std::string::npos);
  request.loss_bound = 1;
  CHECK(check_request(request, 0).find("below 1") != std::string::npos);
  request.loss_bound = std::nan("");
  CHECK(check_request(request, 0) != "");
  request.loss_bound = 0;
  request.ranks = {0, 1, 0};
  CHECK(check_request(request, 0).find("twice") != std::string::npos);
  request.ranks = {0, 1};
  request.lossy_results = true;
  CHECK(check_request(request, 0) == "");
  request.reduction = Reduction::kMax;
  CHECK(check_request(request, 0).find("the results of a max of float32 must not be lost") != std::string::npos);
  request.reduction = Reduction::kSum;
  request.element = mlt::wire::ElementType::kInt32;
  CHECK(check_request(request, 0).find("the results of a sum of int32 must not be lost") != std::string::npos);
  request = {};
  request.ranks = {0, 1};
  request.kind = CollectiveKind::kBroadcast;
  request.lossy_results = true;
  CHECK(check_request(request, 0) == "only an all-reduce may have lossy results");
}
