// How much of the values of a push may be lost: by key, or the bound of all keys. A key's first push to a server gives
// the key its values there, and so is exact. Any thread may call.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <utility>

namespace mlt::van {

class PushBounds {
 public:
  // Of keys without a bound of their own; in [0, 1).
  void set_default(double bound);
  // Throws mlt::Error for a bound outside [0, 1).
  void set(std::uint64_t key, double bound);
  // The bound of a push that is about to be sent to `node`: the least of its keys'.
  double of_push(std::int32_t node, std::span<const std::uint64_t> keys);
  // Another process has this id, which has no values yet.
  void forget(std::int32_t node);

 private:
  double of_key(std::uint64_t key) const;

  std::mutex mutex_;
  double default_ = 0;
  std::map<std::uint64_t, double> by_key_;
  std::set<std::pair<std::int32_t, std::uint64_t>> pushed_;
};

}  // namespace mlt::van
