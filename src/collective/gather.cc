#include "collective/gather.h"

#include <algorithm>
#include <cstring>

#include "collective/all_to_all.h"

namespace mlt::collective {

namespace {

std::uint64_t piece_bytes(const Stream& stream, std::uint32_t step) {
  return std::min(kPartPieceBytes, stream.bytes - (step - 1) * kPartPieceBytes);
}

}  // namespace

Gather::Gather(const CollectiveRequest& request, const Membership& group)
    : input_(request.input), output_(request.output), element_(request.element), loss_bound_(request.loss_bound) {
  const std::uint64_t bytes = input_.size();
  const auto pieces = static_cast<std::uint32_t>((bytes + kPartPieceBytes - 1) / kPartPieceBytes);
  if (group.ranks[group.own] != request.root) {
    streams.push_back(make_stream(request.root, true, bytes, pieces, kMaxWindow));
    return;
  }
  own_output_ = output_.subspan(group.own * bytes, bytes);
  for (std::uint32_t i = 0; i < group.size(); ++i) {
    if (i == group.own) continue;
    streams.push_back(make_stream(group.ranks[i], false, bytes, pieces, window_of(group.size() - 1)));
    offsets_.push_back(i * bytes);
  }
}

// The root's input may be its own part of the output.
void Gather::begin() {
  if (own_output_.empty() || own_output_.data() == input_.data()) return;
  std::memmove(own_output_.data(), input_.data(), own_output_.size());
}

bool Gather::is_lossy(std::uint32_t) const { return loss_bound_ > 0; }

void Gather::fill(const Stream& stream, std::uint32_t step, core::SendRequest& request) {
  request.data = input_.subspan((step - 1) * kPartPieceBytes, piece_bytes(stream, step));
  request.element = element_;
}

void Gather::fill(const Stream& stream, std::uint32_t step, core::ReceiveRequest& request) {
  const std::uint64_t part = offsets_[static_cast<std::size_t>(&stream - streams.data())];
  request.data = output_.subspan(part + (step - 1) * kPartPieceBytes, piece_bytes(stream, step));
  request.element = element_;
  request.loss_bound = loss_bound_;
}

}  // namespace mlt::collective
