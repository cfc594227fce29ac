#include "collective/direct_allreduce.h"

#include <algorithm>

#include "collective/reduce.h"

namespace mlt::collective {

// PROTOCOL 22.4.1: A member MUST treat an all-reduce as small when n - 1 times the tensor's bytes are at most 65,536
//     and the loss bound times the tensor's bytes is below 1,024, in float64: every member finds the same of the same
//     shape.
bool DirectAllReduce::fits(std::uint64_t ranks, std::uint64_t bytes, double loss_bound) {
  return (ranks - 1) * bytes <= kDirectBytes && loss_bound * static_cast<double>(bytes) < kDirectLossBytes;
}

// PROTOCOL 22.4.2: Each member MUST send one transfer to every other: the shape with its whole tensor behind it, as
//     uint8. It MUST be reliable (bound 0), whatever the loss bound.
DirectAllReduce::DirectAllReduce(const Membership& group, std::span<float> data, bool average)
    : data_(data),
      ranks_(group.size()),
      own_(group.own),
      scale_(average ? 1.0F / static_cast<float>(group.size()) : 1.0F) {
  if (ranks_ == 1) return;  // of any size
  records_ = std::make_unique_for_overwrite<float[]>(ranks_ * (kShapeBytes / sizeof(float) + data.size()));
  streams.reserve(2 * (ranks_ - 1));
  for (const bool is_send : {false, true}) {  // receives first: arriving data then need not be buffered
    for (std::uint32_t j = 1; j < ranks_; ++j) {
      const std::uint32_t other = (own_ + (is_send ? j : ranks_ - j)) % ranks_;
      streams.push_back(make_stream(group.ranks[other], is_send, data.size_bytes(), 0, 1));
    }
  }
}

std::span<std::byte> DirectAllReduce::record(std::uint32_t index) const {
  const std::size_t elements = kShapeBytes / sizeof(float) + data_.size();
  return std::as_writable_bytes(std::span(records_.get() + index * elements, elements));
}

std::span<float> DirectAllReduce::tensor(std::uint32_t index) const {
  const std::span<std::byte> bytes = record(index).subspan(kShapeBytes);
  return {reinterpret_cast<float*>(bytes.data()), data_.size()};
}

std::span<std::byte> DirectAllReduce::opening(Stream& stream) {
  const auto place = static_cast<std::uint32_t>(&stream - streams.data());
  return record(stream.is_send ? own_ : (own_ + ranks_ - 1 - place) % ranks_);
}

void DirectAllReduce::begin() {
  if (ranks_ > 1) std::ranges::copy(data_, tensor(own_).begin());
}

// PROTOCOL 22.4.3: When all have arrived, every member MUST add the tensors in the order of the indices, its own at its
//     place, so that every member ends with the same bits.
void DirectAllReduce::finish() {
  if (ranks_ == 1 || data_.empty()) return;
  std::ranges::copy(tensor(0), data_.begin());
  for (std::uint32_t index = 1; index < ranks_; ++index) {
    const auto* term = reinterpret_cast<const std::byte*>(tensor(index).data());
    if (index + 1 == ranks_ && scale_ != 1.0F) {
      // PROTOCOL 22.2.5: A mean MUST be the sum times 1 / n in float32, whatever was lost, multiplied where the last
      //     term is added.
      add_and_scale_float32(data_, term, scale_);
    } else {
      add_float32(data_, term);
    }
  }
}

}  // namespace mlt::collective
