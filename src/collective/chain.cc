#include "collective/chain.h"

#include <algorithm>
#include <cstring>

namespace mlt::collective {

// PROTOCOL 22.6.2: In a chain each member MUST send the tensor to the next member of the group, in pieces of 1 MiB, the
//     last one shorter, behind the shape, and receive it so from the one before. There MUST be nothing but the shape
//     from the member before the root to the root of a broadcast, and from the root to the member after it of a reduce.
//     All of it MUST be reliable (bound 0), whatever the loss bound.
Chain::Chain(const CollectiveRequest& request, const Membership& group, const std::vector<std::uint32_t>& order)
    : element_(request.element), ranks_(group.size()) {
  const bool is_reduce = request.kind == CollectiveKind::kReduce;
  own_ = is_reduce ? request.input : std::span<const std::byte>(request.output);
  memory_ = request.output;
  const auto pieces = static_cast<std::uint32_t>((own_.size() + kChainPieceBytes - 1) / kChainPieceBytes);
  slots_ = pieces;
  const std::uint32_t group_before = (group.own + ranks_ - 1) % ranks_, group_next = (group.own + 1) % ranks_;
  std::uint32_t before = group_before, next = group_next;
  if (!order.empty()) {
    const auto place = static_cast<std::uint32_t>(std::ranges::find(order, group.own) - order.begin());
    before = order[(place + ranks_ - 1) % ranks_];
    next = order[(place + 1) % ranks_];
  }
  const bool is_root = group.ranks[group.own] == request.root;
  const bool is_before_root = group.ranks[next] == request.root, is_after_root = group.ranks[before] == request.root;
  const bool receives = is_reduce ? !is_after_root : !is_root, sends = is_reduce ? !is_root : !is_before_root;
  if (is_reduce) {
    kernel_ = kernel_of(element_, request.reduction);
    if (receives && sends) {
      slots_ = std::min(pieces, kChainSlots);
      const std::size_t bytes = std::min<std::size_t>(own_.size(), kChainSlots * kChainPieceBytes);
      sums_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      memory_ = {sums_.get(), bytes};
    }
  }
  streams.push_back(make_stream(group.ranks[before], false, own_.size(), receives ? pieces : 0, kMaxWindow));
  streams.push_back(make_stream(group.ranks[next], true, own_.size(), sends ? pieces : 0, kMaxWindow));
  // PROTOCOL 22.1.14: A member MUST send its shape to the next member of the group, and receive that of the one before,
  //     also where the collective has nothing else between them. So calls that differ meet, whatever they are.
  if (before != group_before) streams.push_back(make_stream(group.ranks[group_before], false, own_.size(), 0, 1));
  if (next != group_next) streams.push_back(make_stream(group.ranks[group_next], true, own_.size(), 0, 1));
}

template <typename Bytes>
Bytes Chain::piece_of(Bytes tensor, std::uint32_t step) const {
  const std::size_t at = std::size_t{step - 1} * kChainPieceBytes;
  return tensor.subspan(at, std::min<std::size_t>(kChainPieceBytes, tensor.size() - at));
}

// Memory of a piece that arrives here, and is sent on from there.
std::span<std::byte> Chain::arriving(std::uint32_t step) const {
  return memory_.subspan(std::size_t{(step - 1) % slots_} * kChainPieceBytes, piece_of(own_, step).size());
}

bool Chain::is_ready(const Stream&, std::uint32_t step) const {
  return is_first() || streams[kReceives].is_done(step) || onward_[step % kMaxWindow].send_step == step;
}

// A slot is free once what it held is sent on.
bool Chain::may_receive(const Stream&, std::uint32_t step) const {
  return step <= slots_ || streams[kSends].is_done(step - slots_);
}

void Chain::fill(const Stream&, std::uint32_t step, core::SendRequest& request) {
  request.element = element_;
  if (kernel_ != nullptr) request.may_have_parity = false;  // the receiver adds
  if (is_first()) {
    request.data = piece_of(own_, step);
    return;
  }
  request.data = arriving(step);
  Onward& onward = onward_[step % kMaxWindow];
  if (onward.send_step == step) request.feed = &onward.feed;
}

void Chain::fill(const Stream&, std::uint32_t step, core::ReceiveRequest& request) {
  request.data = arriving(step);
  request.element = element_;
  Onward* const onward = begin_onward(step, request.data);
  if (onward == nullptr && kernel_ == nullptr) return;
  Target& target = targets_[step % kMaxWindow];
  target = {.first = request.data.data(),
            .own = kernel_ == nullptr ? nullptr : piece_of(own_, step).data(),
            .kernel = kernel_,
            .element_bytes = wire::element_bytes(element_),
            .ranks = is_last() ? ranks_ : 0,
            .onward = onward};
  request.place = &Chain::take_segment;
  request.place_context = &target;
  request.places_in_data = kernel_ == nullptr;
}

// Reserves an Onward to pass on the data of this receive. Null if it is not sent on, or only once complete.
Onward* Chain::begin_onward(std::uint32_t step, std::span<const std::byte> piece) {
  const Stream& sends = streams[kSends];
  if (step >= sends.steps || sends.segment_bytes == 0) return nullptr;
  Onward& onward = onward_[step % kMaxWindow];
  // The receive was posted before without space, and is posted again.
  if (onward.send_step == step) return &onward;
  // The earlier send with this index may still be in progress.
  if (onward.send_step != 0 && !sends.is_done(onward.send_step)) return nullptr;
  onward.begin(step, piece, sends.segment_bytes, sends.checksums != nullptr);
  return &onward;
}

// PROTOCOL 22.6.3: A member of a chain MAY send a segment as soon as every byte of it has arrived, and in a reduce was
//     combined (6.5.11).
// PROTOCOL 22.6.4: In a reduce each member but the first of the chain MUST combine its own term with what arrives,
//     before it sends it. A mean MUST be the sum times 1 / n, multiplied where the root adds its term, before it is
//     rounded.
void Chain::take_segment(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload) {
  const Target& target = *static_cast<const Target*>(context);
  std::byte* const into = target.first + offset_bytes;
  // Not std::ranges::copy: GCC 12 makes a loop over single bytes of it.
  if (target.kernel == nullptr) {
    if (!payload.empty()) std::memcpy(into, payload.data(), payload.size());
  } else {
    const std::byte* const own = target.own + offset_bytes;
    if (own != into && !payload.empty()) std::memcpy(into, own, payload.size());
    const std::size_t elements = payload.size() / target.element_bytes;
    if (target.ranks == 0) {
      target.kernel->combine(into, payload.data(), elements);
    } else {
      target.kernel->combine_last(into, payload.data(), elements, target.ranks);
    }
  }
  if (target.onward != nullptr) target.onward->add(offset_bytes, payload.size());
}

}  // namespace mlt::collective
