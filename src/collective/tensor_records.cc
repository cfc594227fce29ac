#include "collective/tensor_records.h"

#include <cstring>
#include <vector>

namespace mlt::collective {

TensorRecords::TensorRecords(std::span<const std::byte> data, wire::ElementType element, Reduction reduction,
                             std::uint32_t count)
    : data_(data),
      elements_(data.size() / wire::element_bytes(element)),
      kernel_(*kernel_of(element, reduction)),
      count_(count),
      bytes_(std::make_unique_for_overwrite<std::byte[]>(count * (kShapeBytes + data.size()))) {}

std::span<std::byte> TensorRecords::record(std::uint32_t index) const {
  const std::size_t bytes = kShapeBytes + data_.size();
  return {bytes_.get() + index * bytes, bytes};
}

void TensorRecords::put(std::uint32_t index) {
  if (!data_.empty()) std::memcpy(tensor(index).data(), data_.data(), data_.size());
}

void TensorRecords::combine(std::span<std::byte> into) const {
  std::vector<const std::byte*> terms(count_);
  for (std::uint32_t index = 0; index < count_; ++index) terms[index] = tensor(index).data();
  kernel_.combine_all(into.data(), terms, elements_, count_);
}

}  // namespace mlt::collective
