#include "collective/direct_allreduce.h"

namespace mlt::collective {

// PROTOCOL 22.4.2: In a direct all-reduce each member MUST send one transfer to every other: the shape with its whole
//     tensor behind it, as uint8. It MUST be reliable (bound 0), whatever the loss bound.
DirectAllReduce::DirectAllReduce(const Membership& group, std::span<std::byte> data, wire::ElementType element,
                                 Reduction reduction)
    : data_(data),
      ranks_(group.size()),
      own_(group.own),
      records_(data, element, reduction, ranks_ == 1 ? 0 : ranks_) {  // a group of one has data of any size
  streams.reserve(2 * (ranks_ - 1));
  for (const bool is_send : {false, true}) {  // receives first: arriving data then need not be buffered
    for (std::uint32_t j = 1; j < ranks_; ++j) {
      const std::uint32_t other = (own_ + (is_send ? j : ranks_ - j)) % ranks_;
      streams.push_back(make_stream(group.ranks[other], is_send, data.size(), 0, 1));
    }
  }
}

std::span<std::byte> DirectAllReduce::opening(Stream& stream) {
  const auto place = static_cast<std::uint32_t>(&stream - streams.data());
  return records_.record(stream.is_send ? own_ : (own_ + ranks_ - 1 - place) % ranks_);
}

void DirectAllReduce::begin() {
  if (ranks_ > 1) records_.put(own_);
}

// PROTOCOL 22.4.3: When all have arrived, every member MUST combine the tensors in the order of the indices, its own at
//     its place, and round the result once, so that every member ends with the same bits.
void DirectAllReduce::finish() {
  if (ranks_ > 1 && !data_.empty()) records_.combine(data_);
}

}  // namespace mlt::collective
