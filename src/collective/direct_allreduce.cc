#include "collective/direct_allreduce.h"

#include <cstring>
#include <vector>

namespace mlt::collective {

// PROTOCOL 22.4.1: A member MUST treat an all-reduce as small when n - 1 times the tensor's bytes are at most 65,536
//     and the loss bound times the tensor's bytes is below 1,024, in float64: every member finds the same of the same
//     shape.
bool DirectAllReduce::fits(std::uint64_t ranks, std::uint64_t bytes, double loss_bound) {
  return (ranks - 1) * bytes <= kDirectBytes && loss_bound * static_cast<double>(bytes) < kDirectLossBytes;
}

// PROTOCOL 22.4.2: In a group of at most 16 ranks each member MUST send one transfer to every other: the shape with its
//     whole tensor behind it, as uint8. It MUST be reliable (bound 0), whatever the loss bound.
DirectAllReduce::DirectAllReduce(const Membership& group, std::span<std::byte> data, wire::ElementType element,
                                 Reduction reduction)
    : data_(data), element_(element), kernel_(*kernel_of(element, reduction)), ranks_(group.size()), own_(group.own) {
  if (ranks_ == 1) return;  // of any size
  records_ = std::make_unique_for_overwrite<std::byte[]>(ranks_ * (kShapeBytes + data.size()));
  streams.reserve(2 * (ranks_ - 1));
  for (const bool is_send : {false, true}) {  // receives first: arriving data then need not be buffered
    for (std::uint32_t j = 1; j < ranks_; ++j) {
      const std::uint32_t other = (own_ + (is_send ? j : ranks_ - j)) % ranks_;
      streams.push_back(make_stream(group.ranks[other], is_send, data.size(), 0, 1));
    }
  }
}

std::span<std::byte> DirectAllReduce::record(std::uint32_t index) const {
  const std::size_t bytes = kShapeBytes + data_.size();
  return {records_.get() + index * bytes, bytes};
}

std::span<std::byte> DirectAllReduce::opening(Stream& stream) {
  const auto place = static_cast<std::uint32_t>(&stream - streams.data());
  return record(stream.is_send ? own_ : (own_ + ranks_ - 1 - place) % ranks_);
}

void DirectAllReduce::begin() {
  if (ranks_ > 1 && !data_.empty()) std::memcpy(tensor(own_).data(), data_.data(), data_.size());
}

// PROTOCOL 22.4.3: When all have arrived, every member MUST combine the tensors in the order of the indices, its own at
//     its place, and round the result once, so that every member ends with the same bits.
void DirectAllReduce::finish() {
  if (ranks_ == 1 || data_.empty()) return;
  std::vector<const std::byte*> terms(ranks_);
  for (std::uint32_t index = 0; index < ranks_; ++index) terms[index] = tensor(index).data();
  kernel_.combine_all(data_.data(), terms, data_.size() / wire::element_bytes(element_), ranks_);
}

}  // namespace mlt::collective
