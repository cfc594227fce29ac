#include "collective/partition_sums.h"

#include <doctest/doctest.h>

#include <vector>

namespace {

using namespace mlt::collective;

// Three cells of two elements.
Register six_elements() {
  Register shape;
  shape.elements = 6;
  shape.segment_bytes = 8;
  return shape;
}

void push(PartitionSums& sums, std::uint16_t worker, std::size_t element, const std::vector<float>& values) {
  mlt::core::ReceiveRequest request;
  sums.receive(request, worker);
  request.place(request.place_context, element * sizeof(float), std::as_bytes(std::span(values)));
}

std::size_t fed(PartitionSums& sums, std::uint16_t worker) { return sums.sum().results[worker].feed.fresh_count; }

}  // namespace

TEST_CASE("partition_sums__a_cell_is_fed_with_the_last_push_of_it_and_divided_by_those_that_arrived") {
  std::vector<std::uint32_t> begun;
  PartitionSums sums(six_elements(), 5, 2, begun);
  sums.expect(2);
  sums.add_receiver(0, 1);
  sums.add_receiver(1, 2);  // shares memory: segments of two cells
  push(sums, 0, 0, {1, 2, 3, 4});
  CHECK(begun.empty());
  push(sums, 1, 0, {3, 4});
  CHECK(begun == std::vector<std::uint32_t>{5});
  CHECK(fed(sums, 0) == 1);
  CHECK(fed(sums, 1) == 0);
  CHECK(sums.missing_elements(2) == 2 + 4);
  sums.end_round();
  CHECK(fed(sums, 0) == 3);
  CHECK(fed(sums, 1) == 2);
  CHECK(sums.sum().values == std::vector<float>{2, 3, 3, 4, 0, 0});
  CHECK(begun.size() == 1);
}

TEST_CASE("partition_sums__a_round_begins_anew_in_the_other_buffer") {
  std::vector<std::uint32_t> begun;
  PartitionSums sums(six_elements(), 0, 1, begun);
  sums.expect(1);
  sums.add_receiver(0, 1);
  push(sums, 0, 0, {1, 2, 3, 4, 5, 6});
  sums.begin_round(1);
  CHECK(sums.before().values == std::vector<float>{1, 2, 3, 4, 5, 6});
  push(sums, 0, 4, {9, 9});
  CHECK(sums.missing_elements(1) == 4);
}

TEST_CASE("partition_sums__a_repeated_round_copies_results_and_feeds_only_those_that_lack_it") {
  std::vector<std::uint32_t> begun;
  PartitionSums sums(six_elements(), 0, 2, begun);
  sums.expect(2);
  sums.add_receiver(0, 1);
  sums.add_receiver(1, 1);
  sums.repeat({{0, 0, 0}, {true, false}});
  CHECK(sums.is_repeated());
  CHECK(!sums.is_receiver(0));
  push(sums, 1, 0, {1, 1, 1, 1, 1, 1});  // no cell is taken from it
  CHECK(fed(sums, 1) == 0);
  push(sums, 0, 0, {7, 7, 8, 8, 9, 9});
  CHECK(fed(sums, 0) == 0);
  CHECK(fed(sums, 1) == 3);
  CHECK(sums.sum().values == std::vector<float>{7, 7, 8, 8, 9, 9});
  sums.begin_round(2);
  CHECK(!sums.is_repeated());
  CHECK(sums.is_receiver(0));
}
