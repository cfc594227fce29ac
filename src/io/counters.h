// Named counters: an enum for the code, a span of (name, value) for reports.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace mlt::io {

struct NamedCounter {
  std::string_view name;
  std::uint64_t value = 0;
};

// `Enum` counts from 0 and ends with kCount. Owned by one thread, like the object that it counts for.
template <typename Enum>
class CounterTable {
 public:
  static constexpr std::size_t kSize = static_cast<std::size_t>(Enum::kCount);

  explicit CounterTable(const std::array<std::string_view, kSize>& names) {
    for (std::size_t i = 0; i < kSize; ++i) table_[i].name = names[i];
  }

  void add(Enum which, std::uint64_t amount = 1) { table_[static_cast<std::size_t>(which)].value += amount; }
  std::uint64_t operator[](Enum which) const { return table_[static_cast<std::size_t>(which)].value; }
  std::span<const NamedCounter> all() const { return table_; }

 private:
  std::array<NamedCounter, kSize> table_;
};

// Value of the counter called `name`, 0 if it does not exist: for tests and reports, not for hot paths.
constexpr std::uint64_t counter_value(std::span<const NamedCounter> counters, std::string_view name) {
  for (const NamedCounter& counter : counters) {
    if (counter.name == name) return counter.value;
  }
  return 0;
}

}  // namespace mlt::io
