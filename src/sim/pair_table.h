// Values of pairs of hosts. Only pairs whose value was written take memory: of a thousand hosts, most never exchange
// anything. One thread.
#pragma once

#include <cstdint>
#include <unordered_map>

namespace mlt::sim {

template <typename T>
class PairTable {
 public:
  // Made on first use; stays where it is.
  T& operator[](std::uint32_t pair) { return values_[pair]; }
  // T{} for a pair that has no value.
  const T& get(std::uint32_t pair) const {
    static const T kNone{};
    const auto found = values_.find(pair);
    return found == values_.end() ? kNone : found->second;
  }

 private:
  std::unordered_map<std::uint32_t, T> values_;  // never walked: its order would not be the same on every host
};

}  // namespace mlt::sim
