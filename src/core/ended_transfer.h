// The completion of an ended send or receive: what the states of both have alike. Absent on purpose: what only a
// receive has, its budget and its bitmap.
#pragma once

#include "core/event.h"
#include "core/segmenter.h"

namespace mlt::core {

// `State`: SendState or ReceiveState.
template <typename State>
void describe_end(const State& state, const SegmentGrid& grid, CompletionKind kind, Completion& completion) {
  completion.operation = state.request.operation;
  completion.kind = kind;
  completion.status = state.status;
  completion.peer = state.request.peer;
  completion.tag = state.request.tag;
  completion.generation = state.generation;
  completion.total_bytes = grid.total_bytes();
  completion.repaired_segments = state.repaired_segments;
  completion.remote_total_bytes = state.remote_total_bytes;
  completion.remote_element = state.remote_element;
  completion.elapsed_ns = state.elapsed_ns;
  completion.aborted = {};
  completion.received_bitmap = {};
  completion.segment_count = grid.count();
  completion.segment_bytes = grid.segment_bytes();
}

}  // namespace mlt::core
