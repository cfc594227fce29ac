#include "collective/ring_allreduce.h"

#include <algorithm>
#include <cstring>

#include "collective/cut.h"
#include "collective/shares.h"

namespace mlt::collective {

// PROTOCOL 22.2.2: In a ring each member MUST cut the tensor into as many chunks as the group has ranks, each chunk
//     into as many pieces as its longest needs to be of at most 1 MiB.
std::uint32_t RingAllReduce::pieces_of(std::uint64_t elements, std::uint64_t element_bytes, std::uint32_t ranks) {
  const std::uint64_t longest = (elements + ranks - 1) / ranks * element_bytes;
  return static_cast<std::uint32_t>(std::max(std::uint64_t{1}, (longest + kRingPieceBytes - 1) / kRingPieceBytes));
}

RingAllReduce::RingAllReduce(const Membership& group, std::span<std::byte> data, wire::ElementType element,
                             Reduction reduction, double loss_bound, std::span<const std::uint16_t> shares,
                             bool lossy_results)
    : data_(data),
      element_(element),
      element_bytes_(wire::element_bytes(element)),
      kernel_(*kernel_of(element, reduction)),
      ranks_(group.size()),
      own_(group.own),
      loss_bound_(loss_bound),
      lossy_results_(lossy_results) {
  const std::size_t elements = data.size() / element_bytes_;
  cut_chunks(elements, shares);
  // It receives every chunk but its own in the turns that sum.
  budget_ = core::SharedLossBudget(elements - chunks_[own_].length, element_bytes_, loss_bound);
  // The result of the chunk that it sums last is its own.
  const std::size_t summed = chunks_[(own_ + 1) % ranks_].length;
  results_budget_ = core::SharedLossBudget(elements - summed, element_bytes_, loss_bound);
  std::uint32_t steps = 0;
  for (std::uint32_t turn = 0; turn + 2 < 2 * ranks_; ++turn) {
    steps += chunks_[(own_ + 2 * ranks_ - turn - 1) % ranks_].pieces;
    received_.push_back(steps);
  }
  const std::uint32_t last_turn = received_[2 * ranks_ - 3] - received_[2 * ranks_ - 4];
  const std::uint16_t left = group.ranks[(own_ + ranks_ - 1) % ranks_];
  const std::uint16_t right = group.ranks[(own_ + 1) % ranks_];
  streams.push_back(make_stream(left, false, data.size(), steps, kMaxWindow));
  streams.push_back(make_stream(right, true, data.size(), send_step_of(steps) - last_turn, kMaxWindow));
}

// PROTOCOL 22.8.5: It MUST be cut into as many pieces as an equal chunk (22.2.2), times its length over that of the
//     longest equal chunk, rounded up, but at least one.
void RingAllReduce::cut_chunks(std::size_t elements, std::span<const std::uint16_t> shares) {
  const std::uint64_t pieces = pieces_of(elements, element_bytes_, ranks_);
  const std::size_t longest = std::max<std::size_t>(1, (elements + ranks_ - 1) / ranks_);
  std::size_t units = 0;
  for (std::uint32_t i = 0; i < ranks_; ++i) {
    Chunk chunk;
    if (shares.empty()) {
      chunk = {cut(elements, i, ranks_), cut(elements, i + std::size_t{1}, ranks_), 0};
    } else {
      chunk.first = part_begin(elements, units);
      units += shares[i];
      chunk.length = part_begin(elements, units);
    }
    chunk.length -= chunk.first;
    chunk.pieces =
        shares.empty()
            ? static_cast<std::uint32_t>(pieces)
            : static_cast<std::uint32_t>(std::max<std::uint64_t>(1, (chunk.length * pieces + longest - 1) / longest));
    chunks_.push_back(chunk);
  }
}

// PROTOCOL 22.2.3: In step t, from 0 to 2n - 3, the member of index i MUST send chunk (i - t) mod n to the next member
//     and receive chunk (i - t - 1) mod n from the one before, piece by piece.
RingAllReduce::Place RingAllReduce::place_of(std::uint32_t step, bool is_send) const {
  const std::uint32_t own_pieces = chunks_[own_].pieces;
  Place place{0, own_, step - 1, true, ranks_ == 2};
  if (is_send && step <= own_pieces) return place;
  const std::uint32_t receive_step = is_send ? step - own_pieces : step;
  const auto turn = static_cast<std::uint32_t>(std::ranges::lower_bound(received_, receive_step) - received_.begin());
  place.turn = is_send ? turn + 1 : turn;
  place.chunk = (own_ + 2 * ranks_ - turn - 1) % ranks_;
  place.piece = receive_step - 1 - (turn == 0 ? 0 : received_[turn - 1]);
  place.is_sum = place.turn + 1 < ranks_;
  place.is_last_sum = place.turn + 2 == ranks_;
  return place;
}

std::span<std::byte> RingAllReduce::data_of(const Place& place) const {
  const Chunk& chunk = chunks_[place.chunk];
  const std::size_t begin = cut(chunk.length, place.piece, chunk.pieces);
  const std::size_t end = cut(chunk.length, place.piece + std::size_t{1}, chunk.pieces);
  return data_.subspan((chunk.first + begin) * element_bytes_, (end - begin) * element_bytes_);
}

// A step sends data that arrived and was added in the previous turn, or passes on data as it arrives.
bool RingAllReduce::is_ready(const Stream&, std::uint32_t step) const {
  const std::uint32_t own_pieces = chunks_[own_].pieces;
  if (step <= own_pieces || streams[kReceives].is_done(step - own_pieces)) return true;
  return onward_[step % kMaxWindow].send_step == step;
}

void RingAllReduce::fill(const Stream&, std::uint32_t step, core::SendRequest& request) {
  const Place place = place_of(step, true);
  request.data = data_of(place);
  request.element = element_;
  if (place.is_sum) request.may_have_parity = false;  // the receiver adds
  Onward& onward = onward_[step % kMaxWindow];
  if (step > chunks_[own_].pieces && onward.send_step == step) request.feed = &onward.feed;
}

void RingAllReduce::fill(const Stream&, std::uint32_t step, core::ReceiveRequest& request) {
  const Place place = place_of(step, false);
  const std::span<std::byte> into = data_of(place);
  request.data = into;
  request.element = element_;
  Onward* const onward = begin_onward(step, into);
  if (!place.is_sum && onward == nullptr && !may_lose(place)) return;
  // PROTOCOL 22.2.4: Only the first n - 1 steps may lose: of all that a member receives in them, up to the bound; of
  //     each piece, half or the bound, whichever is more, or one segment if that is more still (7.5.12).
  // PROTOCOL 22.2.9: If the results may be lost, the steps from n - 1 on MAY lose too: of all that a member receives in
  //     them, up to the bound, and of each piece as in 22.2.4.
  if (may_lose(place)) {
    request.loss_bound = std::max(loss_bound_, kMaxPieceLoss);
    request.shared_budget = place.is_sum ? &budget_ : &results_budget_;
  }
  Target& target = targets_[step % kMaxWindow];
  target = {into.data(), place.is_sum ? &kernel_ : nullptr, element_bytes_, place.is_last_sum ? ranks_ : 0, onward};
  request.place = &RingAllReduce::take_segment;
  request.place_context = &target;
  request.places_in_data = !place.is_sum;
}

// Reserves an Onward to pass on the data of this receive. Null if the data is not sent on, or only once complete.
Onward* RingAllReduce::begin_onward(std::uint32_t receive_step, std::span<const std::byte> piece) {
  const std::uint32_t step = send_step_of(receive_step);
  const Stream& sends = streams[kSends];
  if (step >= sends.steps || sends.segment_bytes == 0 || piece.empty()) return nullptr;
  Onward& onward = onward_[step % kMaxWindow];
  // The receive was posted before without space, and is posted again.
  if (onward.send_step == step) return &onward;
  // The earlier send with this index may still be in progress.
  if (onward.send_step != 0 && !sends.is_done(onward.send_step)) return nullptr;
  onward.begin(step, piece, sends.segment_bytes, sends.checksums != nullptr);
  return &onward;
}

void RingAllReduce::take_segment(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload) {
  const Target& target = *static_cast<const Target*>(context);
  std::byte* const into = target.first + offset_bytes;
  const std::size_t elements = payload.size() / target.element_bytes;
  if (target.kernel == nullptr) {
    // Not std::ranges::copy: GCC 12 makes a loop over single bytes of it.
    if (!payload.empty()) std::memcpy(into, payload.data(), payload.size());
  } else if (target.ranks == 0) {
    target.kernel->combine(into, payload.data(), elements);
  } else {
    // PROTOCOL 22.2.5: A mean MUST be the sum times 1 / n, multiplied where the last term is added, before it is
    //     rounded. ...
    target.kernel->combine_last(into, payload.data(), elements, target.ranks);
  }
  // PROTOCOL 22.2.7: A member MAY send a segment of a step as soon as every byte of it has arrived, and was added, in
  // the
  //     turn before (6.5.11), or is missing there for good.
  if (target.onward != nullptr) target.onward->add(offset_bytes, payload.size());
}

// A segment missing of a mean had collected the terms of the turns so far: the own term takes their weights, because no
// later rank can tell that they are missing. What is missing is passed on now: nothing is added to it any more.
void RingAllReduce::on_received(const Stream&, std::uint32_t step, const core::Completion& completion) {
  if (completion.received_bitmap.empty()) return;
  const Place place = place_of(step, false);
  const std::span<std::byte> sum = data_of(place);
  // PROTOCOL 22.2.5: ... A member that misses an element in step t MUST multiply its own term by t + 2, in the place of
  //     the t + 1 that are missing, and in step n - 2 by n / n: the weights of the terms in a mean have the sum 1.
  const bool stands_in = kernel_.scale != nullptr && !place.is_last_sum;
  // PROTOCOL 22.2.9: ... A member that misses an element of a result in step t MUST take what it holds of it instead,
  //     the sum of t + 2 - n terms, in a mean divided by their number, and pass that on.
  const std::uint32_t factor = place.is_sum ? place.turn + 2 : 1, terms = place.is_sum ? 1 : place.turn + 2 - ranks_;
  Onward& onward = onward_[send_step_of(step) % kMaxWindow];
  const bool passes_on = onward.send_step == send_step_of(step);
  for (std::uint32_t i = 0; i < completion.segment_count; ++i) {
    if (((completion.received_bitmap[i / 64] >> (i % 64)) & 1U) != 0) continue;
    const std::size_t at = std::min<std::size_t>(std::size_t{i} * completion.segment_bytes, sum.size());
    const std::size_t bytes = std::min<std::size_t>(completion.segment_bytes, sum.size() - at);
    if (stands_in) kernel_.scale(sum.data() + at, bytes / element_bytes_, factor, terms);
    if (passes_on) onward.add(at, bytes);
  }
}

}  // namespace mlt::collective
