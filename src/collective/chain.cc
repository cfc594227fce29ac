#include "collective/chain.h"

#include <algorithm>
#include <cstring>

namespace mlt::collective {

// PROTOCOL 22.6.2: In a chain each member MUST send the tensor to the next member of the group, except the one before
//     the root, in pieces of 1 MiB, the last one shorter, behind the shape, and receive it so from the one before,
//     except the root.
Chain::Chain(const CollectiveRequest& request, const Membership& group)
    : data_(request.output), element_(request.element) {
  const std::uint32_t ranks = group.size(), before = (group.own + ranks - 1) % ranks, next = (group.own + 1) % ranks;
  const auto pieces = static_cast<std::uint32_t>((data_.size() + kChainPieceBytes - 1) / kChainPieceBytes);
  const bool receives = group.ranks[group.own] != request.root, sends = group.ranks[next] != request.root;
  streams.push_back(make_stream(group.ranks[before], false, data_.size(), receives ? pieces : 0, kMaxWindow));
  streams.push_back(make_stream(group.ranks[next], true, data_.size(), sends ? pieces : 0, kMaxWindow));
}

std::span<std::byte> Chain::piece(std::uint32_t step) const {
  const std::size_t at = std::size_t{step - 1} * kChainPieceBytes;
  return data_.subspan(at, std::min<std::size_t>(kChainPieceBytes, data_.size() - at));
}

bool Chain::is_ready(const Stream&, std::uint32_t step) const {
  return is_first() || streams[kReceives].is_done(step) || onward_[step % kMaxWindow].send_step == step;
}

void Chain::fill(const Stream&, std::uint32_t step, core::SendRequest& request) {
  request.data = piece(step);
  request.element = element_;
  Onward& onward = onward_[step % kMaxWindow];
  if (onward.send_step == step) request.feed = &onward.feed;
}

void Chain::fill(const Stream&, std::uint32_t step, core::ReceiveRequest& request) {
  request.data = piece(step);
  request.element = element_;
  Onward* const onward = begin_onward(step, request.data.size());
  if (onward == nullptr) return;
  Target& target = targets_[step % kMaxWindow];
  target = {request.data.data(), onward};
  request.place = &Chain::take_segment;
  request.place_context = &target;
}

// Reserves an Onward to pass on the data of this receive. Null if it is not sent on, or only once complete.
Onward* Chain::begin_onward(std::uint32_t step, std::uint64_t bytes) {
  const Stream& sends = streams[kSends];
  if (step >= sends.steps || sends.segment_bytes == 0) return nullptr;
  Onward& onward = onward_[step % kMaxWindow];
  // The receive was posted before without space, and is posted again.
  if (onward.send_step == step) return &onward;
  // The earlier send with this index may still be in progress.
  if (onward.send_step != 0 && !sends.is_done(onward.send_step)) return nullptr;
  onward.begin(step, bytes, sends.segment_bytes);
  return &onward;
}

// PROTOCOL 22.6.3: A member of a chain MAY send a segment as soon as every byte of it has arrived (6.5.11).
void Chain::take_segment(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload) {
  const Target& target = *static_cast<const Target*>(context);
  // Not std::ranges::copy: GCC 12 makes a loop over single bytes of it.
  if (!payload.empty()) std::memcpy(target.first + offset_bytes, payload.data(), payload.size());
  target.onward->add(offset_bytes, payload.size());
}

}  // namespace mlt::collective
