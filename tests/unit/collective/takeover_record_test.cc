#include "collective/takeover_record.h"

#include <doctest/doctest.h>

#include <vector>

namespace {

using mlt::collective::Move;
using mlt::collective::Register;
using mlt::collective::TakeoverRecord;

constexpr std::uint32_t kCellBytes = 8;  // two elements

void arrive(TakeoverRecord& record, std::size_t element, const std::vector<float>& values) {
  TakeoverRecord::place(&record, element * sizeof(float), std::as_bytes(std::span(values)));
}

std::vector<std::byte> bits(unsigned value) { return {static_cast<std::byte>(value)}; }

}  // namespace

TEST_CASE("takeover_record__reports_the_segments_that_are_here_and_pushes_them_for_the_input") {
  TakeoverRecord record(kCellBytes, true);
  const std::vector<float> input{1, 2, 3, 4, 5};
  std::vector<float> output(5, -1.0F);
  record.begin_round(input, output);
  CHECK(record.report(Register{}, true).cells.empty());
  CHECK(record.again().empty());
  arrive(record, 2, {30, 40});
  arrive(record, 4, {50});
  const Move move = record.report(Register{}, true);
  CHECK(move.rounds == 0);
  CHECK(move.cells == bits(0b110));
  CHECK(record.again() == std::vector<float>{1, 2, 30, 40, 50});
  CHECK(record.report(Register{}, false).cells.empty());
}

TEST_CASE("takeover_record__keeps_the_newest_result_whatever_the_caller_does_with_its_memory") {
  TakeoverRecord record(kCellBytes, true);
  std::vector<float> tensor{1, 2, 3};
  record.begin_round(tensor, tensor);
  arrive(record, 0, {7, 8});
  arrive(record, 2, {9});
  record.on_result();
  tensor.assign(3, 0.0F);
  CHECK(record.rounds() == 1);
  CHECK(record.last() == std::vector<float>{7, 8, 9});
  record.begin_round(tensor, tensor);
  CHECK(record.report(Register{}, true).cells.empty());
  CHECK(record.again().empty());
}

TEST_CASE("takeover_record__a_segment_of_several_cells_and_an_empty_tensor") {
  TakeoverRecord record(kCellBytes, true);
  std::vector<float> tensor(6, 0.0F);
  record.begin_round(tensor, tensor);
  arrive(record, 2, {1, 2, 3, 4});
  CHECK(record.report(Register{}, true).cells == bits(0b110));
  std::vector<float> none;
  record.begin_round(none, none);
  arrive(record, 0, {});
  CHECK(record.report(Register{}, true).cells == bits(0b1));
}

TEST_CASE("takeover_record__only_counts_where_nothing_is_kept") {
  TakeoverRecord record(kCellBytes, false);
  std::vector<float> tensor{1, 2};
  record.begin_round(tensor, tensor);
  record.on_result();
  CHECK(record.rounds() == 1);
  CHECK(record.last().empty());
}
