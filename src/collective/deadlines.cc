#include "collective/deadlines.h"

namespace mlt::collective {

void Deadlines::set(std::uint32_t index, base::TimeNs at) {
  clear(index);
  if (at == base::kNever) return;
  if (index >= at_.size()) at_.resize(index + 1, base::kNever);
  at_[index] = at;
  order_.emplace(at, index);
}

void Deadlines::clear(std::uint32_t index) {
  if (!has(index)) return;
  order_.erase({at_[index], index});
  at_[index] = base::kNever;
}

std::optional<std::uint32_t> Deadlines::poll(base::TimeNs now) {
  if (next() > now || order_.empty()) return std::nullopt;
  const std::uint32_t index = order_.begin()->second;
  clear(index);
  return index;
}

}  // namespace mlt::collective
