#include "core/parity_sender.h"

#include <algorithm>

#include "base/check.h"
#include "core/erasure_code.h"

namespace mlt::core {

namespace {

constexpr std::size_t kLineBytes = 64;

constexpr std::size_t whole_lines(std::size_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }

}  // namespace

ParitySender::Sums::Sums(std::size_t bytes)
    : size_(bytes), memory_(bytes == 0 ? 0 : bytes + kLineBytes), aligned_(memory_.data()) {
  const auto at = reinterpret_cast<std::uintptr_t>(aligned_);
  aligned_ += whole_lines(at) - at;
}

ParitySender::ParitySender(const EndpointConfig& config)
    : config_(config),
      block_sums_(config.erasure_correction ? kMaxBlockParities * whole_lines(config.max_segment_bytes) : 0),
      ahead_sums_(config.erasure_correction ? config.parity_sum_bytes : 0) {}

std::size_t ParitySender::stride_of(const SendState& state) { return whole_lines(state.grid.length(0)); }

ParityPlan ParitySender::plan(const Peer& peer, const SendState& state, bool sums_ahead) const {
  // PROTOCOL 6.12.1: A sender MUST NOT send parity over several paths, through shared memory, of a transfer with
  //     critical segments, of an empty one, or after the receiver has sent NOT_POSTED and not READY since.
  if (config_.paths != 1 || peer.holds_back || state.critical_segments > 0 || state.grid.total_bytes() == 0) return {};
  if (state.probe.is_not_posted()) return {};
  ParityConditions conditions;
  conditions.segments = state.grid.count();
  conditions.segment_bytes = state.grid.length(0);
  conditions.loss = peer.spray.parity_loss(0);
  conditions.round_trip_ns = peer.rate->base_rtt_ns();
  conditions.rate_bytes_per_second = peer.rate->rate_bytes_per_second();
  conditions.min_round_trip_ns = config_.min_parity_round_trip_ns;
  conditions.sums_ahead = sums_ahead;
  return plan_parity(conditions);
}

void ParitySender::take_segment(const Peer& peer, SendState& state, std::uint32_t segment) {
  if (!state.parity_planned) begin_ahead(peer, state);
  if (state.post_number == ahead_post_) {
    const std::uint32_t block = segment / state.parity.block_segments;
    const std::uint32_t position = segment % state.parity.block_segments;
    const auto bytes = state.request.data.subspan(state.grid.offset(segment), state.grid.length(segment));
    const std::size_t stride = stride_of(state);
    for (std::uint32_t j = 0; j < state.parity.block_parities; ++j) {
      add_to_parity(ahead_sums_.at(std::size_t{block} * state.parity.block_parities + j, stride), j, position, bytes);
    }
    if (!state.are_segments_sent() || !state.probe.is_not_posted()) return;
    state.parity = {};
    forget(state);
  } else if (state.are_segments_sent()) {
    state.parity = plan(peer, state, false);
  }
}

// Gives the send the memory in which it sums up while it sends, if it is free and large enough.
void ParitySender::begin_ahead(const Peer& peer, SendState& state) {
  state.parity_planned = true;
  if (ahead_post_ != kNoPost) return;
  const ParityPlan planned = plan(peer, state, true);
  const std::size_t bytes = planned.packets() * stride_of(state);
  if (bytes == 0 || bytes > ahead_sums_.size()) return;
  state.parity = planned;
  ahead_post_ = state.post_number;
  std::fill_n(ahead_sums_.at(0, 0), bytes, std::byte{0});
}

// PROTOCOL 6.12.5: A parity MUST be the sum, in GF(2^8), of the products of each byte of the block's segments. A
//     shorter segment counts as filled with zeros.
const std::byte* ParitySender::sum_of(const SendState& state, std::uint32_t block, std::uint32_t index) {
  const std::size_t stride = stride_of(state);
  if (state.post_number == ahead_post_) {
    return ahead_sums_.at(std::size_t{block} * state.parity.block_parities + index, stride);
  }
  MLT_CHECK(state.parity.block_parities * stride <= block_sums_.size());
  if (block_post_ != state.post_number || block_ != block) {
    std::fill_n(block_sums_.at(0, 0), state.parity.block_parities * stride, std::byte{0});
    const std::uint32_t first = block * state.parity.block_segments;
    const std::uint32_t end = std::min(first + state.parity.block_segments, state.grid.count());
    for (std::uint32_t at = first; at < end; ++at) {
      const auto segment = state.request.data.subspan(state.grid.offset(at), state.grid.length(at));
      // All sums and one segment fit into the nearest cache.
      for (std::uint32_t j = 0; j < state.parity.block_parities; ++j) {
        add_to_parity(block_sums_.at(j, stride), j, at - first, segment);
      }
    }
    block_post_ = state.post_number;
    block_ = block;
  }
  return block_sums_.at(index, stride);
}

std::uint32_t ParitySender::fill(Peer& peer, SendState& state, std::uint32_t limit, wire::ParityHeader& header,
                                 base::DatagramRun& run) {
  const std::uint32_t block = state.parity_sent / state.parity.block_parities;
  std::uint32_t index = state.parity_sent % state.parity.block_parities;
  const std::uint32_t length = state.grid.length(0);
  run.datagram_bytes = MLT_DATA_HEADER_BYTES + length;
  run.datagram_count = run.slice_count = run.total_bytes = 0;
  header.block = static_cast<std::uint16_t>(block);
  header.block_segments = static_cast<std::uint8_t>(state.parity.block_segments);
  for (; run.datagram_count < limit && index < state.parity.block_parities; ++index) {
    ++state.parity_sent;
    // PROTOCOL 6.12.2: Parity packets MUST follow all segments of round 0 and belong to it; the last of them is the
    //     round's last packet.
    if (state.is_round_sent()) header.prefix.flags |= MLT_FLAG_END_OF_ROUND;
    header.prefix.sequence = peer.spray.next_sequence(header.prefix.path);
    header.index = static_cast<std::uint8_t>(index);
    std::byte* const at = run.scratch.data() + std::size_t{run.datagram_count++} * MLT_DATA_HEADER_BYTES;
    wire::encode_parity_header(header, at);
    run.slices[run.slice_count++] = {at, MLT_DATA_HEADER_BYTES};
    run.slices[run.slice_count++] = {sum_of(state, block, index), length};
    run.total_bytes += run.datagram_bytes;
  }
  return header.prefix.sequence;
}

}  // namespace mlt::core
