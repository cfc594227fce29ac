#include "collective/direct_allreduce.h"

#include <algorithm>

#include "collective/reduce.h"

namespace mlt::collective {

namespace {

// The shape and the tensor: the one does not wait for the other.
constexpr std::uint32_t kDirectWindow = 2;

}  // namespace

// PROTOCOL 22.4.1: An all-reduce is small when n - 1 times the tensor's bytes are at most 65,536 and the loss bound
//     times the tensor's bytes is below 1,024, in float64 ...
bool DirectAllReduce::fits(std::uint64_t ranks, std::uint64_t bytes, double loss_bound) {
  return (ranks - 1) * bytes <= kDirectBytes && loss_bound * static_cast<double>(bytes) < kDirectLossBytes;
}

// PROTOCOL 22.4.2: Each member sends its whole tensor to every other, in one piece after the shape, and both at once.
//     All of it MUST be reliable (bound 0), whatever the loss bound. An empty tensor is carried by its shape alone.
DirectAllReduce::DirectAllReduce(const Membership& group, std::span<float> data, bool average)
    : data_(data),
      ranks_(group.size()),
      own_(group.own),
      scale_(average ? 1.0F / static_cast<float>(group.size()) : 1.0F),
      arrivals_(std::make_unique_for_overwrite<float[]>((group.size() - 1) * data.size())) {
  streams.reserve(2 * (ranks_ - 1));
  for (const bool is_send : {false, true}) {  // receives first: what they meet then need not wait
    for (std::uint32_t j = 1; j < ranks_; ++j) {
      const std::uint32_t other = (own_ + (is_send ? j : ranks_ - j)) % ranks_;
      streams.push_back(
          make_stream(group.ranks[other], is_send, data.size_bytes(), data.empty() ? 0 : 1, kDirectWindow));
    }
  }
}

std::span<float> DirectAllReduce::arrival(std::uint32_t index) const {
  const std::size_t place = index < own_ ? index : index - 1;
  return {arrivals_.get() + place * data_.size(), data_.size()};
}

void DirectAllReduce::fill(const Stream&, std::uint32_t, core::SendRequest& request) {
  request.data = std::as_bytes(data_);
  request.element = wire::ElementType::kFloat32;
}

void DirectAllReduce::fill(const Stream& stream, std::uint32_t, core::ReceiveRequest& request) {
  const auto place = static_cast<std::uint32_t>(&stream - streams.data());
  request.data = std::as_writable_bytes(arrival((own_ + ranks_ - 1 - place) % ranks_));
  request.element = wire::ElementType::kFloat32;
}

// The first term takes the others, one by one: in the caller's memory where it is there already.
// PROTOCOL 22.4.3: When all have arrived, every member adds the tensors in the order of the indices, its own at its
//     place, so that every member ends with the same bits.
void DirectAllReduce::finish() {
  if (ranks_ == 1 || data_.empty()) return;
  const std::span<float> sum = own_ == 0 ? data_ : arrival(0);
  for (std::uint32_t index = 1; index < ranks_; ++index) {
    const auto* term = reinterpret_cast<const std::byte*>(index == own_ ? data_.data() : arrival(index).data());
    if (index + 1 == ranks_ && scale_ != 1.0F) {
      // PROTOCOL 22.2.5: A mean is the sum times 1 / n in float32, whatever was lost, multiplied where the last term is
      //     added.
      add_and_scale_float32(sum, term, scale_);
    } else {
      add_float32(sum, term);
    }
  }
  if (own_ != 0) std::ranges::copy(sum, data_.begin());
}

}  // namespace mlt::collective
