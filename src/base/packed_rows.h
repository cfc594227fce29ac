// Rows of a table of which few are ever used: a row takes memory from its first use on, next to the others that are in
// use. Of a rank's thousand peers it exchanges something with ten. Rows that are not used read as T{}.
//
// The memory is reserved at construction, and nothing allocates later. Rows stay where they are. Owned by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "base/lazy_array.h"

namespace mlt::base {

template <typename T>
class PackedRows {
 public:
  // Rows of `width` values each.
  PackedRows(std::size_t rows, std::size_t width)
      : places_(rows), rows_(rows + 1), values_((rows + 1) * width), width_(width) {
    MLT_CHECK(rows <= 0xFFFF);
    grow();  // place 0: of the rows that are not used
  }

  std::span<T> row(std::size_t row) { return {&values_[place(row) * width_], width_}; }
  std::span<const T> row(std::size_t row) const { return {&values_[std::size_t{places_[row]} * width_], width_}; }

  bool is_used(std::size_t row) const { return places_[row] != 0; }
  // Rows in use are numbered from 1 on, in the order of their first use.
  std::size_t place(std::size_t row) {
    const std::size_t place = places_[row];
    return place != 0 ? place : add(row);
  }
  std::size_t row_at(std::size_t place) const { return rows_[place]; }
  std::size_t used() const { return values_.size() / width_ - 1; }

 private:
  [[gnu::noinline]] std::size_t add(std::size_t row) {
    const std::size_t place = values_.size() / width_;
    places_[row] = static_cast<std::uint16_t>(place);
    rows_[place] = static_cast<std::uint16_t>(row);
    grow();
    return place;
  }
  void grow() {
    for (std::size_t i = 0; i < width_; ++i) values_.grow();
  }

  ZeroedArray<std::uint16_t> places_;  // by row; 0: not used
  ZeroedArray<std::uint16_t> rows_;    // by place
  LazyArray<T> values_;                // by place
  std::size_t width_;
};

// Rows of one value.
template <typename T>
class PackedArray {
 public:
  explicit PackedArray(std::size_t size) : rows_(size, 1), size_(size) {}

  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return rows_.row(i)[0]; }
  const T& operator[](std::size_t i) const { return rows_.row(i)[0]; }
  bool is_used(std::size_t i) const { return rows_.is_used(i); }
  std::size_t place(std::size_t i) { return rows_.place(i); }
  std::size_t item_at(std::size_t place) const { return rows_.row_at(place); }
  // Those in use have the places 1 .. used().
  std::size_t used() const { return rows_.used(); }

 private:
  PackedRows<T> rows_;
  std::size_t size_;
};

}  // namespace mlt::base
