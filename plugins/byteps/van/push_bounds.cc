#include "push_bounds.h"

#include <algorithm>
#include <limits>
#include <string>

#include "mlt.h"

namespace mlt::van {

void PushBounds::set_default(double bound) {
  const std::lock_guard lock(mutex_);
  default_ = bound;
}

void PushBounds::set(std::uint64_t key, double bound) {
  if (!(bound >= 0 && bound < 1)) {
    throw Error(ErrorCode::kConfig, "the loss bound of key " + std::to_string(key) + " is " + std::to_string(bound) +
                                        "; give one from 0 up to, but not 1");
  }
  const std::lock_guard lock(mutex_);
  by_key_[key] = bound;
}

double PushBounds::of_push(std::int32_t node, std::span<const std::uint64_t> keys) {
  const std::lock_guard lock(mutex_);
  if (default_ == 0 && by_key_.empty()) return 0;
  double smallest = keys.empty() ? 0 : 1;
  for (const std::uint64_t key : keys) {
    const bool is_first = pushed_.insert({node, key}).second;
    smallest = is_first ? 0 : std::min(smallest, of_key(key));
  }
  return smallest;
}

double PushBounds::of_key(std::uint64_t key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? default_ : found->second;
}

void PushBounds::forget(std::int32_t node) {
  const std::lock_guard lock(mutex_);
  pushed_.erase(pushed_.lower_bound({node, 0}), pushed_.upper_bound({node, std::numeric_limits<std::uint64_t>::max()}));
}

}  // namespace mlt::van
