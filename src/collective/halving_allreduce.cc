#include "collective/halving_allreduce.h"

#include <algorithm>
#include <bit>

namespace mlt::collective {

namespace {

// An empty part is carried too: so a rank waits for all others, and learns of calls that differ, whatever the size.
std::uint32_t halving_pieces(std::size_t bytes) {
  return std::max(1U, static_cast<std::uint32_t>((bytes + kHalvingPieceBytes - 1) / kHalvingPieceBytes));
}

}  // namespace

HalvingAllReduce::HalvingAllReduce(const Membership& group, std::span<std::byte> data, wire::ElementType element,
                                   Reduction reduction)
    : data_(data),
      element_(element),
      element_bytes_(wire::element_bytes(element)),
      kernel_(*kernel_of(element, reduction)),
      ranks_(group.size()),
      own_(group.own) {
  make_stages();
  std::size_t bytes = 0;
  for (const Stage& stage : stages_) bytes += stage.into.size();
  received_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::byte* at = received_.get();
  for (Stage& stage : stages_) {
    if (stage.into.empty()) continue;
    stage.receive.bytes = {at, stage.into.size()};
    at += stage.into.size();
  }
  for (const bool is_send : {false, true}) make_streams(group, is_send);  // receives first: no early data then
  advance();
}

void HalvingAllReduce::add_stage(std::uint32_t member, Bytes sent, Bytes received, bool combines) {
  Stage& stage = stages_.emplace_back();
  stage.member = member;
  const auto part_of = [](Bytes bytes) { return bytes ? Part{*bytes, 0, 0, halving_pieces(bytes->size())} : Part{}; };
  stage.send = part_of(sent);
  stage.receive = part_of(received);
  if (!combines) return;
  stage.into = *received;
  last_combined_ = stages_.size() - 1;
}

// PROTOCOL 22.5.1: The core of a group of n members MUST be c of them, where c is the highest power of two that is not
//     above n. Of the first 2 (n - c) members those of odd index are outside; each is paired with the member before it.
//     The core's members have the numbers 0 to c - 1 in the order of their indices.
void HalvingAllReduce::make_stages() {
  const std::uint32_t core = std::bit_floor(ranks_), outside = ranks_ - core;
  const bool is_paired = own_ < 2 * outside;
  // PROTOCOL 22.5.2: A member outside MUST send the whole tensor to the member that it is paired with, which MUST add
  //     it to its own before anything else, and send back the whole result at the end.
  if (is_paired && own_ % 2 == 1) return add_stage(own_ - 1, data_, data_, false);
  if (is_paired) add_stage(own_ + 1, std::nullopt, data_, true);

  // PROTOCOL 22.5.3: In stage j, from 0 while 2^j is below c, each member of the core MUST exchange parts with the one
  //     whose number differs in bit j: of the part that both hold, at first the tensor, the one whose bit is 0 keeps
  //     the first half, the longer one by an element if they differ, the other the second; each sends the half that it
  //     does not keep, and adds what it receives to the half that it keeps, which is its part from then on.
  const std::uint32_t number = is_paired ? own_ / 2 : own_ - outside;
  const auto index_of = [outside](std::uint32_t other) { return other < outside ? 2 * other : other + outside; };
  std::span<std::byte> part = data_;
  const std::size_t first = stages_.size();
  for (std::uint32_t bit = 1; bit < core; bit *= 2) {
    const std::size_t half = (part.size() / element_bytes_ + 1) / 2 * element_bytes_;
    const bool keeps_first = (number & bit) == 0;
    const std::span<std::byte> kept = keeps_first ? part.first(half) : part.subspan(half);
    const std::span<std::byte> given = keeps_first ? part.subspan(half) : part.first(half);
    add_stage(index_of(number ^ bit), given, kept, true);
    part = kept;
  }
  // PROTOCOL 22.5.4: Then the stages MUST follow in the opposite order: each member sends the half that it kept, now of
  //     the result, and replaces the other by what it receives.
  for (std::size_t stage = stages_.size(); stage > first; --stage) {
    const Stage halving = stages_[stage - 1];
    add_stage(halving.member, halving.into, halving.send.bytes, false);
  }
  if (is_paired) add_stage(own_ + 1, data_, std::nullopt, false);
}

std::size_t HalvingAllReduce::stream_with(std::uint16_t rank, bool is_send) {
  const auto found = std::ranges::find_if(
      streams, [&](const Stream& stream) { return stream.peer == rank && stream.is_send == is_send; });
  if (found != streams.end()) return static_cast<std::size_t>(found - streams.begin());
  streams.push_back(make_stream(rank, is_send, data_.size(), 0, kMaxWindow));
  stages_of_.emplace_back();
  return streams.size() - 1;
}

// PROTOCOL 22.5.5: What a member sends another in a stage MUST be carried in pieces of 4 MiB, the last one shorter,
//     behind the shape and in the order of the stages; an empty part in an empty piece. All of it MUST be reliable
//     (bound 0), whatever the loss bound.
void HalvingAllReduce::make_streams(const Membership& group, bool is_send) {
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    Part& part = is_send ? stages_[i].send : stages_[i].receive;
    if (part.pieces == 0) continue;
    part.stream = stream_with(group.ranks[stages_[i].member], is_send);
    part.first_step = streams[part.stream].steps;
    streams[part.stream].steps += part.pieces;
    stages_of_[part.stream].push_back(i);
  }
  // PROTOCOL 22.1.14: A member MUST send its shape to the next member of the group, and receive that of the one before,
  //     also where the collective has nothing else between them. So calls that differ meet, whatever they are.
  stream_with(group.ranks[(own_ + (is_send ? 1 : ranks_ - 1)) % ranks_], is_send);
}

std::size_t HalvingAllReduce::stage_of(const Stream& stream, std::uint32_t step) const {
  const auto& stages = stages_of_[static_cast<std::size_t>(&stream - streams.data())];
  const auto first_step = [&](std::size_t stage) {
    return stream.is_send ? stages_[stage].send.first_step : stages_[stage].receive.first_step;
  };
  return *std::prev(std::ranges::upper_bound(stages, step, {}, first_step));
}

std::span<std::byte> HalvingAllReduce::piece(const Part& part, std::uint32_t step) {
  const std::size_t at = std::size_t{step - part.first_step} * kHalvingPieceBytes;
  return part.bytes.subspan(at, std::min<std::size_t>(kHalvingPieceBytes, part.bytes.size() - at));
}

bool HalvingAllReduce::is_ready(const Stream& stream, std::uint32_t step) const {
  return stage_of(stream, step) <= complete_;
}

bool HalvingAllReduce::may_receive(const Stream& stream, std::uint32_t step) const {
  for (std::size_t i = complete_; i < stage_of(stream, step); ++i) {
    const Part& part = stages_[i].receive;
    if (part.pieces > 0 && streams[part.stream].posted < part.first_step + part.pieces) return false;
  }
  return true;
}

bool HalvingAllReduce::unlocks_all(std::size_t) const { return has_advanced_; }

void HalvingAllReduce::fill(const Stream& stream, std::uint32_t step, core::SendRequest& request) {
  request.data = piece(stages_[stage_of(stream, step)].send, step);
  request.element = element_;
}

void HalvingAllReduce::fill(const Stream& stream, std::uint32_t step, core::ReceiveRequest& request) {
  request.data = piece(stages_[stage_of(stream, step)].receive, step);
  request.element = element_;
}

void HalvingAllReduce::on_received(const Stream& stream, std::uint32_t step, const core::Completion&) {
  ++stages_[stage_of(stream, step)].received;
  advance();
}

// Parts arrive in any order of the stages; the sum does not depend on it.
void HalvingAllReduce::advance() {
  const std::size_t before = complete_;
  for (; complete_ < stages_.size(); ++complete_) {
    const Stage& stage = stages_[complete_];
    if (stage.received < stage.receive.pieces) break;
    if (stage.into.empty()) continue;
    const std::size_t elements = stage.into.size() / element_bytes_;
    // PROTOCOL 22.5.6: A mean MUST be the sum times 1 / n, multiplied where a member adds the last term, before it is
    //     rounded.
    if (complete_ == last_combined_) {
      kernel_.combine_last(stage.into.data(), stage.receive.bytes.data(), elements, ranks_);
    } else {
      kernel_.combine(stage.into.data(), stage.receive.bytes.data(), elements);
    }
  }
  has_advanced_ = complete_ > before;
}

}  // namespace mlt::collective
