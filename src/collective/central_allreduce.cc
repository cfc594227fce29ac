#include "collective/central_allreduce.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace mlt::collective {

// PROTOCOL 22.4.4: In a central all-reduce each member but the first MUST send that transfer to the first alone, and to
//     and from no other anything but shapes (22.1.14).
CentralAllReduce::CentralAllReduce(const Membership& group, std::span<std::byte> data, wire::ElementType element,
                                   Reduction reduction)
    : data_(data),
      element_(element),
      own_(group.own),
      center_(group.ranks[0]),
      records_(data, element, reduction, is_center() ? group.size() : 1) {
  const std::uint32_t ranks = group.size();
  result_ = std::make_unique_for_overwrite<std::byte[]>(data.size());
  const std::uint32_t results = data.empty() ? 0 : 1;
  for (const bool is_send : {false, true}) {  // receives first: arriving data then need not be buffered
    const std::uint32_t neighbour = (own_ + (is_send ? 1 : ranks - 1)) % ranks;
    for (std::uint32_t other = 0; other < ranks; ++other) {
      if (other == own_ || !(is_center() || other == 0 || other == neighbour)) continue;
      const bool has_result = is_center() ? is_send : !is_send && other == 0;
      streams.push_back(make_stream(group.ranks[other], is_send, data.size(), has_result ? results : 0, 2));
    }
  }
}

// Of a tensor, with the shape before it; elsewhere the shape alone.
std::span<std::byte> CentralAllReduce::opening(Stream& stream) {
  const auto place = static_cast<std::uint32_t>(&stream - streams.data());
  if (is_center() && !stream.is_send) return records_.record(place + 1);  // its receives are in the order of the group
  if (!is_center() && stream.is_send && stream.peer == center_) return records_.record(0);
  return stream.shape;
}

void CentralAllReduce::begin() { records_.put(0); }

bool CentralAllReduce::has_all() const {
  return std::ranges::all_of(streams,
                             [](const Stream& stream) { return stream.is_send || stream.settled >= stream.steps; });
}

bool CentralAllReduce::is_ready(const Stream&, std::uint32_t) const { return has_all(); }

bool CentralAllReduce::unlocks_all(std::size_t stream) const {
  return is_center() && !streams[stream].is_send && has_all();
}

// PROTOCOL 22.4.5: The first MUST combine the tensors as in 22.4.3, and send every other member the result, of the
//     element type, behind the shape. All that MUST be reliable, too.
void CentralAllReduce::combine() {
  if (!std::exchange(combined_, true)) records_.combine({result_.get(), data_.size()});
}

void CentralAllReduce::fill(const Stream&, std::uint32_t, core::SendRequest& request) {
  combine();
  request.data = {result_.get(), data_.size()};
  request.element = element_;
}

void CentralAllReduce::fill(const Stream&, std::uint32_t, core::ReceiveRequest& request) {
  request.data = {result_.get(), data_.size()};
  request.element = element_;
}

void CentralAllReduce::finish() {
  if (!data_.empty()) std::memcpy(data_.data(), result_.get(), data_.size());
}

}  // namespace mlt::collective
