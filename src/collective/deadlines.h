// Deadlines of many indices, one each: the earliest is known at once.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/time.h"

namespace mlt::collective {

class Deadlines {
 public:
  // In the place of the index's former deadline.
  void set(std::uint32_t index, base::TimeNs at);
  void clear(std::uint32_t index);
  // kNever if it has none.
  base::TimeNs of(std::uint32_t index) const { return index < at_.size() ? at_[index] : base::kNever; }
  bool has(std::uint32_t index) const { return of(index) != base::kNever; }
  // The earliest; kNever if no index has one.
  base::TimeNs next() const { return order_.empty() ? base::kNever : order_.begin()->first; }
  // An index whose deadline has come, the earliest first; it has none any more.
  std::optional<std::uint32_t> poll(base::TimeNs now);

 private:
  std::set<std::pair<base::TimeNs, std::uint32_t>> order_;
  std::vector<base::TimeNs> at_;  // by index
};

}  // namespace mlt::collective
