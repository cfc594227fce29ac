#include "collective/staged.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace mlt::collective {

namespace {

// An empty part is carried too: so a rank waits for all others, and learns of calls that differ, whatever the size.
std::uint32_t stage_pieces(std::size_t bytes) {
  return std::max(1U, static_cast<std::uint32_t>((bytes + kStagePieceBytes - 1) / kStagePieceBytes));
}

}  // namespace

Staged::Staged(const Membership& group, std::uint64_t bytes, wire::ElementType element, Reduction reduction,
               const StagePlan& plan, Local local)
    : bytes_(bytes),
      element_(element),
      element_bytes_(wire::element_bytes(element)),
      kernel_(*kernel_of(element, reduction)),
      ranks_(group.size()),
      own_(group.own),
      slices_at_once_(plan.slices_at_once),
      local_(std::move(local)) {
  make_exchanges(plan);
  allocate(plan);
  for (const bool is_send : {false, true}) make_streams(group, plan, is_send);  // receives first: no early data then
  for (Slice& slice : slices_) advance(slice);
}

Staged::Part Staged::part_of(const Stage::Bytes& bytes) {
  return bytes ? Part{*bytes, 0, 0, stage_pieces(bytes->size())} : Part{};
}

void Staged::make_exchanges(const StagePlan& plan) {
  slices_.resize(plan.slices);
  for (const Stage& stage : plan.stages) {
    slices_[stage.slice].exchanges.push_back(exchanges_.size());
    Exchange& exchange = exchanges_.emplace_back();
    exchange.send = part_of(stage.sent);
    exchange.receive = part_of(stage.received);
    exchange.slice = stage.slice;
    exchange.needs = stage.needs;
    exchange.combines = stage.combines;
    if (stage.combines) exchange.into = *stage.received;
  }
  for (const Slice& slice : slices_) {
    const auto combines = [this](std::size_t i) { return exchanges_[i].combines; };
    const auto last = std::ranges::find_if(slice.exchanges.rbegin(), slice.exchanges.rend(), combines);
    if (last != slice.exchanges.rend()) exchanges_[*last].is_last_sum = true;
  }
}

// Slices that are in progress at once have memory of their own; later ones take it over.
void Staged::allocate(const StagePlan& plan) {
  std::vector<std::size_t> sums(plan.slices);
  for (const Exchange& exchange : exchanges_) sums[exchange.slice] += exchange.into.size();
  const std::size_t longest = *std::ranges::max_element(sums);
  received_ = std::make_unique_for_overwrite<std::byte[]>(longest * std::min(plan.slices, slices_at_once_));
  for (std::uint32_t slice = 0; slice < plan.slices; ++slice) {
    std::byte* at = received_.get() + longest * (slice % slices_at_once_);
    for (const std::size_t i : slices_[slice].exchanges) {
      Exchange& exchange = exchanges_[i];
      if (exchange.into.empty()) continue;
      exchange.receive.bytes = {at, exchange.into.size()};
      at += exchange.into.size();
    }
  }
}

std::size_t Staged::stream_with(std::uint16_t rank, bool is_send) {
  const auto found = std::ranges::find_if(
      streams, [&](const Stream& stream) { return stream.peer == rank && stream.is_send == is_send; });
  if (found != streams.end()) return static_cast<std::size_t>(found - streams.begin());
  streams.push_back(make_stream(rank, is_send, bytes_, 0, kMaxWindow));
  exchanges_of_.emplace_back();
  return streams.size() - 1;
}

// PROTOCOL 22.5.5: What a member sends another in a stage MUST be carried in pieces of 4 MiB, the last one shorter,
//     behind the shape and in the order of the stages; an empty part in an empty piece. All of it MUST be reliable
//     (bound 0), whatever the loss bound.
void Staged::make_streams(const Membership& group, const StagePlan& plan, bool is_send) {
  for (std::size_t i = 0; i < exchanges_.size(); ++i) {
    Part& part = is_send ? exchanges_[i].send : exchanges_[i].receive;
    if (part.pieces == 0) continue;
    part.stream = stream_with(group.ranks[is_send ? plan.stages[i].to : plan.stages[i].from], is_send);
    part.first_step = streams[part.stream].steps;
    streams[part.stream].steps += part.pieces;
    exchanges_of_[part.stream].push_back(i);
  }
  // PROTOCOL 22.1.14: A member MUST send its shape to the next member of the group, and receive that of the one before,
  //     also where the collective has nothing else between them. So calls that differ meet, whatever they are.
  stream_with(group.ranks[(own_ + (is_send ? 1 : ranks_ - 1)) % ranks_], is_send);
}

std::size_t Staged::exchange_of(const Stream& stream, std::uint32_t step) const {
  const auto& exchanges = exchanges_of_[static_cast<std::size_t>(&stream - streams.data())];
  const auto first_step = [&](std::size_t i) {
    return stream.is_send ? exchanges_[i].send.first_step : exchanges_[i].receive.first_step;
  };
  return *std::prev(std::ranges::upper_bound(exchanges, step, {}, first_step));
}

std::span<std::byte> Staged::piece(const Part& part, std::uint32_t step) {
  const std::size_t at = std::size_t{step - part.first_step} * kStagePieceBytes;
  return part.bytes.subspan(at, std::min<std::size_t>(kStagePieceBytes, part.bytes.size() - at));
}

bool Staged::is_sending(const Part& part) const {
  const Stream& stream = streams[part.stream];
  return stream.posted > part.first_step && stream.settled < part.first_step + part.pieces;
}

// PROTOCOL 22.7.6: ... A member MUST NOT send a round's parts before the rounds before it of the same slice are
// complete.
//     ...
bool Staged::is_ready(const Stream& stream, std::uint32_t step) const {
  const std::size_t index = exchange_of(stream, step);
  const Exchange& exchange = exchanges_[index];
  if (exchange.needs > slices_[exchange.slice].complete) return false;
  bool overtakes = false;
  std::uint32_t overtaking = 0;
  for (std::size_t i = first_open_; i <= std::max(index, last_sent_) && overtaking < kMaxOvertaking; ++i) {
    const Part& part = exchanges_[i].send;
    if (i == index && (!overtakes || is_sending(part))) return true;
    if (part.pieces == 0) continue;
    if (overtakes && is_sending(part)) ++overtaking;
    if (i < index && !is_posted(part)) overtakes = true;
  }
  return overtaking < kMaxOvertaking;
}

bool Staged::may_receive(const Stream& stream, std::uint32_t step) const {
  const std::size_t index = exchange_of(stream, step);
  const std::uint32_t slice = exchanges_[index].slice;
  if (slice >= slices_at_once_) {
    const Slice& before = slices_[slice - slices_at_once_];
    if (before.complete < before.exchanges.size()) return false;
  }
  for (std::size_t i = first_open_; i < index; ++i) {
    const Part& part = exchanges_[i].receive;
    if (part.pieces > 0 && !is_posted(part)) return false;
  }
  return true;
}

// A send that has ended may have been one that overtook others, or one that others overtook.
bool Staged::unlocks_all(std::size_t stream) const { return streams[stream].is_send || has_advanced_; }

void Staged::fill(const Stream& stream, std::uint32_t step, core::SendRequest& request) {
  const std::size_t index = exchange_of(stream, step);
  last_sent_ = std::max(last_sent_, index);
  request.data = piece(exchanges_[index].send, step);
  request.element = element_;
}

void Staged::fill(const Stream& stream, std::uint32_t step, core::ReceiveRequest& request) {
  request.data = piece(exchanges_[exchange_of(stream, step)].receive, step);
  request.element = element_;
}

void Staged::on_received(const Stream& stream, std::uint32_t step, const core::Completion&) {
  Exchange& exchange = exchanges_[exchange_of(stream, step)];
  ++exchange.received;
  advance(slices_[exchange.slice]);
}

// Parts arrive in any order of the stages; the sum does not depend on it.
void Staged::advance(Slice& slice) {
  const std::uint32_t before = slice.complete;
  for (; slice.complete < slice.exchanges.size(); ++slice.complete) {
    const Exchange& exchange = exchanges_[slice.exchanges[slice.complete]];
    if (!is_complete(exchange)) break;
    if (exchange.into.empty()) continue;
    const std::size_t elements = exchange.into.size() / element_bytes_;
    // PROTOCOL 22.5.6: A mean MUST be the sum times 1 / n, multiplied where a member adds the last term, before it is
    //     rounded.
    if (exchange.is_last_sum) {
      kernel_.combine_last(exchange.into.data(), exchange.receive.bytes.data(), elements, ranks_);
    } else {
      kernel_.combine(exchange.into.data(), exchange.receive.bytes.data(), elements);
    }
  }
  has_advanced_ = slice.complete > before;
  const auto is_over = [this](const Exchange& one) {
    return is_complete(one) && (one.send.pieces == 0 || is_posted(one.send));
  };
  while (first_open_ < exchanges_.size() && is_over(exchanges_[first_open_])) ++first_open_;
}

void Staged::copy(const std::vector<Copy>& copies) {
  for (const Copy& one : copies) {
    if (!one.to.empty() && one.to.data() != one.from.data()) std::memcpy(one.to.data(), one.from.data(), one.to.size());
  }
}

}  // namespace mlt::collective
