#include "base/packed_rows.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <utility>

using mlt::base::PackedArray;
using mlt::base::PackedRows;

namespace {
struct RowValue {
  std::uint32_t number = 7;
};
}  // namespace

TEST_CASE("packed_rows__a_row_is_made_when_it_is_first_used_and_stays_where_it_is") {
  PackedRows<RowValue> rows(1'000, 3);
  CHECK(rows.used() == 0);
  RowValue* const first = rows.row(900).data();
  first[2].number = 1;
  CHECK(rows.is_used(900));
  CHECK(rows.place(900) == 1);
  CHECK(rows.row(900).size() == 3);
  CHECK(rows.row(900)[0].number == 7);
  rows.row(3)[0].number = 2;
  CHECK(rows.place(3) == 2);
  CHECK(rows.row_at(1) == 900);
  CHECK(rows.row_at(2) == 3);
  CHECK(rows.used() == 2);
  CHECK(rows.row(900).data() == first);
  CHECK(first[2].number == 1);
}

TEST_CASE("packed_rows__to_read_a_row_makes_none") {
  PackedRows<RowValue> rows(10, 2);
  const auto& view = std::as_const(rows);
  CHECK(view.row(4)[1].number == 7);
  CHECK_FALSE(rows.is_used(4));
  CHECK(rows.used() == 0);
  rows.row(4)[1].number = 5;
  CHECK(view.row(4)[1].number == 5);
  CHECK(view.row(5)[1].number == 7);
}

TEST_CASE("packed_array__every_item_may_be_used") {
  PackedArray<RowValue> items(0xFFFF);
  for (std::size_t i = items.size(); i > 0; --i) items[i - 1].number = static_cast<std::uint32_t>(i);
  CHECK(items.used() == items.size());
  bool is_kept = true;
  for (std::size_t i = 0; i < items.size(); ++i) is_kept = is_kept && items[i].number == i + 1;
  CHECK(is_kept);
  CHECK(items.item_at(items.place(17)) == 17);
}
