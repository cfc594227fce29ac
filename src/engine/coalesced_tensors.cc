#include "engine/coalesced_tensors.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

namespace mlt::engine {

std::string CoalescedTensors::check(const Tensors& tensors, std::size_t element_bytes) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].size() % element_bytes != 0) {
      return "tensor " + std::to_string(i) + " of the list has " + std::to_string(tensors[i].size()) +
             " bytes, no multiple of the element's " + std::to_string(element_bytes);
    }
  }
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::erase_if(order, [&](std::size_t i) { return tensors[i].empty(); });
  std::ranges::sort(order, std::less<>(), [&](std::size_t i) { return tensors[i].data(); });
  const auto overlap = std::ranges::adjacent_find(order, [&](std::size_t a, std::size_t b) {
    return std::less<>()(tensors[b].data(), tensors[a].data() + tensors[a].size());
  });
  if (overlap == order.end()) return "";
  const auto [first, second] = std::minmax(overlap[0], overlap[1]);
  return "tensors " + std::to_string(first) + " and " + std::to_string(second) +
         " of the list overlap; pass separate memory";
}

CoalescedTensors::CoalescedTensors(Tensors tensors, bool is_result)
    : tensors_(std::move(tensors)),
      is_result_(is_result),
      bytes_(std::accumulate(tensors_.begin(), tensors_.end(), std::size_t{0},
                             [](std::size_t sum, std::span<std::byte> tensor) { return sum + tensor.size(); })),
      packed_(std::make_unique_for_overwrite<std::byte[]>(bytes_)) {}

void CoalescedTensors::pack() {
  std::byte* to = packed_.get();
  for (const std::span<std::byte> tensor : tensors_) {
    if (!tensor.empty()) std::memcpy(to, tensor.data(), tensor.size());
    to += tensor.size();
  }
}

void CoalescedTensors::unpack() const {
  if (!is_result_) return;
  const std::byte* from = packed_.get();
  for (const std::span<std::byte> tensor : tensors_) {
    if (!tensor.empty()) std::memcpy(tensor.data(), from, tensor.size());
    from += tensor.size();
  }
}

std::string CoalescedTensors::place_of(std::size_t element, std::size_t element_bytes) const {
  std::size_t index = 0;
  while (element >= tensors_[index].size() / element_bytes) element -= tensors_[index++].size() / element_bytes;
  return "element " + std::to_string(element) + " of tensor " + std::to_string(index);
}

}  // namespace mlt::engine
