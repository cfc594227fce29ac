// All-to-all over a bus without endpoints.
#include <algorithm>
#include <numeric>

#include "collective/exchange.h"
#include "fake_bus.h"

using namespace mlt::test;

namespace {

struct Rank {
  std::vector<std::int32_t> input, output;
  std::vector<std::uint64_t> send, receive;  // elements
};

// Rank i sends parts(i, j) elements to rank j; an element says who sent it to whom, and which it is.
template <typename Parts>
std::vector<Rank> make_ranks(std::uint16_t n, Parts&& parts) {
  std::vector<Rank> ranks(n);
  for (std::uint16_t i = 0; i < n; ++i) {
    for (std::uint16_t j = 0; j < n; ++j) {
      ranks[i].send.push_back(parts(i, j));
      ranks[i].receive.push_back(parts(j, i));
      for (std::uint64_t k = 0; k < parts(i, j); ++k) {
        ranks[i].input.push_back(static_cast<std::int32_t>(i * 100'000'000 + j * 10'000'000 + static_cast<int>(k)));
      }
    }
    ranks[i].output.assign(std::accumulate(ranks[i].receive.begin(), ranks[i].receive.end(), std::uint64_t{0}), -1);
  }
  return ranks;
}

CollectiveRequest request_of(Rank& rank) {
  CollectiveRequest request;
  request.operation = 1;
  request.kind = CollectiveKind::kAllToAll;
  request.input = std::as_bytes(std::span(rank.input));
  request.output = std::as_writable_bytes(std::span(rank.output));
  request.element = mlt::wire::ElementType::kInt32;
  for (const std::uint64_t part : rank.send) request.send_bytes.push_back(4 * part);
  for (const std::uint64_t part : rank.receive) request.receive_bytes.push_back(4 * part);
  return request;
}

}  // namespace

TEST_CASE("all_to_all__every_part_arrives_where_it_belongs") {
  const std::uint64_t piece = kPartPieceBytes / 4;
  for (const int count : {1, 2, 3, 5}) {
    const auto n = static_cast<std::uint16_t>(count);
    CAPTURE(n);
    // Empty parts, short ones, one of two pieces and a bit.
    auto ranks = make_ranks(n, [&](std::uint16_t i, std::uint16_t j) -> std::uint64_t {
      if (i == 0 && j == n - 1) return 2 * piece + 5;
      return (i * 7 + j * 3) % 4 == 0 ? 0 : 11U * i + j;
    });
    FakeBus bus({.ranks = n, .seed = n});
    for (std::uint16_t rank = 0; rank < n; ++rank) bus.start(rank, request_of(ranks[rank]));
    bus.run();
    for (std::uint16_t i = 0; i < n; ++i) {
      REQUIRE(bus.done(i).size() == 1);
      CHECK(bus.done(i)[0].error == "");
      std::vector<std::int32_t> expected;
      for (std::uint16_t from = 0; from < n; ++from) {
        for (std::uint64_t k = 0; k < ranks[from].send[i]; ++k) {
          expected.push_back(static_cast<std::int32_t>(from * 100'000'000 + i * 10'000'000 + static_cast<int>(k)));
        }
      }
      CHECK(ranks[i].output == expected);
    }
  }
}

TEST_CASE("all_to_all__parts_with_memory_of_their_own_match_those_in_one_piece") {
  auto ranks = make_ranks(3, [](std::uint16_t i, std::uint16_t j) -> std::uint64_t { return i + 2U * j; });
  FakeBus bus({.ranks = 3, .seed = 6});
  for (std::uint16_t rank = 0; rank < 3; ++rank) {
    CollectiveRequest request = request_of(ranks[rank]);
    if (rank != 1) {
      std::size_t at = 0;
      for (const std::uint64_t bytes : request.send_bytes) {
        request.input_parts.push_back(request.input.subspan(at, bytes));
        at += bytes;
      }
      at = 0;
      for (const std::uint64_t bytes : request.receive_bytes) {
        request.output_parts.push_back(request.output.subspan(at, bytes));
        at += bytes;
      }
      request.input = {};
      request.output = {};
    }
    bus.start(rank, std::move(request));
  }
  bus.run();
  for (std::uint16_t i = 0; i < 3; ++i) {
    REQUIRE(bus.done(i).size() == 1);
    CHECK(bus.done(i)[0].error == "");
    CHECK(bus.done(i)[0].total_bytes == 4 * std::max(ranks[i].input.size(), ranks[i].output.size()));
    CHECK(std::ranges::find(ranks[i].output, -1) == ranks[i].output.end());
  }
}

TEST_CASE("all_to_all__parts_of_another_length_fail_it_everywhere") {
  auto ranks = make_ranks(3, [](std::uint16_t, std::uint16_t) { return std::uint64_t{10}; });
  FakeBus bus({.ranks = 3, .seed = 4});
  // Rank 2 expects two elements more of rank 0.
  ranks[2].receive[0] = 12;
  ranks[2].output.resize(32);
  for (std::uint16_t rank = 0; rank < 3; ++rank) bus.start(rank, request_of(ranks[rank]));
  bus.run();
  for (std::uint16_t rank = 0; rank < 3; ++rank) {
    REQUIRE(bus.done(rank).size() == 1);
    CHECK(bus.done(rank)[0].status == mlt::core::CompletionStatus::kSizeMismatch);
  }
}

TEST_CASE("all_to_all__refuses_parts_that_do_not_fit") {
  auto ranks = make_ranks(2, [](std::uint16_t, std::uint16_t) { return std::uint64_t{4}; });
  CollectiveRequest request = request_of(ranks[0]);
  request.ranks = {0, 1};
  CHECK(check_request(request, 0) == "");
  request.send_bytes = {16, 12};
  CHECK(check_request(request, 0).find("input have 28 bytes in all, it has 32") != std::string::npos);
  request.send_bytes = {18, 14};
  CHECK(check_request(request, 0).find("whole number of elements") != std::string::npos);
  request.send_bytes = {32};
  CHECK(check_request(request, 0).find("one per rank") != std::string::npos);
  request = request_of(ranks[0]);
  request.ranks = {0, 1};
  request.loss_bound = 0.1;
  CHECK(check_request(request, 0).find("floating-point") != std::string::npos);
  request.loss_bound = 0;
  request.output = std::as_writable_bytes(std::span(ranks[0].input));
  CHECK(check_request(request, 0).find("overlaps") != std::string::npos);
}
