// Processes parity packets: keeps them until as many are there as segments of their block are missing, and restores
// these. Section 7.8 of PROTOCOL.md.
#include <algorithm>
#include <array>

#include "core/erasure_code.h"
#include "core/receiver.h"

namespace mlt::core {

void Receiver::on_parity(TimeNs now, TimeNs arrival_ns, std::uint16_t from, const wire::ParityHeader& header,
                         std::span<const std::byte> payload, base::Ecn ecn) {
  shared_.counters.add(Counter::k_parity_packets_received);
  const wire::TransferId transfer{header.tag, header.generation};
  ReceiveState* state = receives_.find(from, transfer);
  const wire::Prefix& prefix = header.prefix;
  acks_.count(from, arrival_ns, {prefix.path, prefix.sequence, header.timestamp_ns, transfer}, ecn, state != nullptr,
              shared_.counters);
  if (state == nullptr) {
    // PROTOCOL 7.8.6: A receiver MUST NOT keep parity of a transfer that is not posted or has ended. It MUST take
    //     END_OF_ROUND in it as in DATA.
    shared_.counters.add(Counter::k_parity_packets_unused);
    if (tags_.is_over(from, transfer)) {
      if ((prefix.flags & MLT_FLAG_END_OF_ROUND) != 0) reply_finished(from, transfer, 0, false);
    } else if (EarlyTransfer* early = early_.find(from, transfer); early != nullptr && !early->aborted()) {
      note_newest(early->newest[prefix.path], prefix.sequence);
      note_early_end(*early, prefix, header.total_bytes);
    }
    return;
  }
  note_seen(*state);
  note_order(*state, prefix.path, prefix.sequence, arrival_ns);
  const bool is_first = state->data_over_ns == base::kNever;
  if (!take_parity(now, *state, header, payload)) return;
  check_completion(now, *state);
  if (!is_first && state->is_in_progress()) complete_behind_data(now, *state);
}

bool Receiver::take_parity(TimeNs now, ReceiveState& state, const wire::ParityHeader& header,
                           std::span<const std::byte> payload) {
  if (!matches(now, state, header.total_bytes, header.prefix.element)) return false;
  const SegmentGrid& grid = state.placement.grid();
  // PROTOCOL 7.8.1: A receiver MUST drop parity whose payload is not as long as the tensor's first segment, whose block
  //     begins behind the tensor, or whose blocks have more segments than the tensor or another length than the first
  //     parity of the transfer said (drop_bad_segment).
  const std::uint32_t first = std::uint32_t{header.block} * header.block_segments;
  const bool is_of_grid = payload.size() == grid.length(0) && first < grid.count() &&
                          header.block_segments <= grid.count() &&
                          (state.block_segments == 0 || state.block_segments == header.block_segments);
  if (!is_of_grid) {
    shared_.counters.add(Counter::k_drop_bad_segment);
    return true;
  }
  if (!state.machine.on(ReceiveEvent::k_data, shared_.counters)) return false;
  state.loss.on_data(now);
  state.block_segments = header.block_segments;
  if (state.data_over_ns == base::kNever) state.data_over_ns = now;
  // PROTOCOL 7.8.3: A receiver that does not leave segments unchanged where they arrived, because it adds them up, MUST
  //     NOT restore any.
  const bool keeps_segments = state.request.place == nullptr || state.request.places_in_data;
  const bool is_complete = state.placement.first_missing(first) >= first + header.block_segments;
  if (!keeps_segments || is_complete || parity_.has(state.parity, header.block, header.index)) {
    shared_.counters.add(Counter::k_parity_packets_unused);
  } else if (parity_.keep(state.parity, header.block, header.index, payload)) {
    restore(state, header.block);
  } else {
    // PROTOCOL 7.8.5: A receiver MUST drop parity that finds no space (parity_packets_dropped). What it would have
    //     restored is requested as without it.
    shared_.counters.add(Counter::k_parity_packets_dropped);
  }
  end_round(now, state, header.prefix);
  return true;
}

// PROTOCOL 7.8.2: A receiver MUST restore the missing segments of a block as soon as as many of its parities have
//     arrived as segments are missing, and treat them as if they had arrived (segments_restored). It MUST use nothing
//     but what packets of this transfer brought.
void Receiver::restore(ReceiveState& state, std::uint32_t block) {
  const SegmentGrid& grid = state.placement.grid();
  const std::uint32_t first = block * state.block_segments;
  const std::uint32_t end = std::min(first + state.block_segments, grid.count());
  std::array<std::uint8_t, kMaxBlockParities> positions;
  std::array<std::uint8_t, kMaxBlockParities> indices;
  std::array<std::byte*, kMaxBlockParities> sums;
  std::size_t missing = 0;
  for (std::size_t at = state.placement.first_missing(first); at < end; at = state.placement.first_missing(at + 1)) {
    if (missing == positions.size()) return;
    positions[missing++] = static_cast<std::uint8_t>(at - first);
  }
  if (missing == 0) return parity_.release(state.parity, block);
  const auto of_missing = [missing](auto& all) { return std::span(all).first(missing); };
  if (parity_.find(state.parity, block, of_missing(indices), of_missing(sums)) < missing) return;
  std::size_t passed = 0;
  for (std::uint32_t at = first; at < end; ++at) {
    if (passed < missing && first + positions[passed] == at) {
      ++passed;
      continue;
    }
    const std::span<const std::byte> segment = state.request.data.subspan(grid.offset(at), grid.length(at));
    for (std::size_t i = 0; i < missing; ++i) add_to_parity(sums[i], indices[i], at - first, segment);
  }
  restore_segments(of_missing(positions), of_missing(indices), of_missing(sums), grid.length(0));
  for (std::size_t i = 0; i < missing; ++i) {
    const std::uint32_t segment = first + positions[i];
    (void)state.placement.put(state.request, grid.offset(segment), {sums[i], grid.length(segment)});
    state.loss.on_segment();
  }
  shared_.counters.add(Counter::k_segments_restored, missing);
  parity_.release(state.parity, block);
}

// PROTOCOL 7.8.4: A patient receive MUST complete within its bound, without the end of the round, once the reorder
//     window has passed since its first parity and since its last segment, and more parity arrives.
void Receiver::complete_behind_data(TimeNs now, ReceiveState& state) {
  if (state.request.stop != StopPolicy::kPatient || state.budget.bytes() == 0) return;
  if (state.loss.round_over_ns() != base::kNever || now < base::after(state.data_over_ns, reorder_ns(state))) return;
  if (state.placement.received_segments() == 0) return;
  if (state.drops != drops_) note_drops(state);
  if (!state.budget.covers_loss(state.placement.missing_bytes(), state.loss.round())) return;
  finish(now, state, ReceiveEvent::k_within_bound, CompletionStatus::kWithinBound, true);
}

}  // namespace mlt::core
