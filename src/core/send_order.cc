#include "core/send_order.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/send_queue.h"

namespace mlt::core {

namespace {

// Segments classified in one call (SendRequest::classify).
constexpr std::uint32_t kClassifiedAtOnce = 64;

}  // namespace

SendOrder::SendOrder(Shared& shared, TransferSlots<SendState>& sends)
    : shared_(shared),
      sends_(sends),
      work_words_(base::words_for_bits(shared.config.peers)),
      peers_with_work_(work_words_.data(), shared.config.peers),
      fed_(shared.config.max_sends) {}

// Front layers before back layers across tensors; ties in the order of posting.
void SendOrder::link(SendState& state) {
  if (state.in_work || !state.has_work()) return;
  SendQueue(sends_, shared_.peers[state.request.peer].work_head).push(sends_.slot_of(state));
  state.in_work = true;
  peers_with_work_.set(state.request.peer);
}

void SendOrder::unlink(SendState& state) {
  if (!state.in_work) return;
  Peer& peer = shared_.peers[state.request.peer];
  SendQueue(sends_, peer.work_head).erase(sends_.slot_of(state));
  state.in_work = false;
  if (peer.work_head != kNil) return;
  peers_with_work_.clear(state.request.peer);
  peer.pacer.on_idle();
}

// Takes the segments that have become ready since the last call.
void SendOrder::take_feeds() {
  for (std::uint32_t at = fed_count_; at-- > 0;) {
    SendState& state = sends_[fed_[at]];
    SendFeed& feed = *state.request.feed;
    if (feed.fresh_count == 0) continue;
    MLT_CHECK(feed.fresh_count <= state.withheld);
    for (std::size_t w = 0; w < base::words_for_bits(feed.fresh.size()); ++w) {
      state.pending.words()[w] |= std::exchange(feed.fresh.words()[w], 0);
    }
    state.withheld -= feed.fresh_count;
    state.pending_count += std::exchange(feed.fresh_count, 0);
    state.restart_passes();
    if (!state.waits_for_space) link(state);
    if (state.withheld == 0) end_feed(state);
  }
}

void SendOrder::end_feed(const SendState& state) {
  if (state.request.feed == nullptr) return;
  const auto fed = std::span(fed_).first(fed_count_);
  const auto at = std::ranges::find(fed, sends_.slot_of(state));
  if (at != fed.end()) *at = fed[--fed_count_];
}

// The first segment from the cursor on that belongs to the current pass, or the segment count if none does. Empty if
// the call's classification budget is used up; the cursor then marks where the search resumes.
std::optional<std::uint32_t> SendOrder::find_of_pass(SendState& state) {
  const std::uint32_t count = state.grid.count();
  auto i = static_cast<std::uint32_t>(state.pending.find_set(state.cursor));
  // With one tag for all segments, all belong to the same pass.
  if (state.request.priorities.empty()) return state.request.uniform_priority.pass() == state.pass ? i : count;
  // The last pass takes all segments that the earlier passes left.
  if (state.pass + 1 == kPasses) return i;
  for (; i < count; i = static_cast<std::uint32_t>(state.pending.find_set(i + 1))) {
    // Block size: long enough to amortise the call and memory latency, short enough to stay in the caches.
    for (; state.classified <= i; state.classified += std::min(kClassifiedAtOnce, count - state.classified)) {
      if (blocks_left_ == 0) {
        state.cursor = i;
        return std::nullopt;
      }
      --blocks_left_;
      state.request.classify(state.request.classify_context, state.classified,
                             std::min(kClassifiedAtOnce, count - state.classified));
    }
    if (state.request.priorities[i].pass() == state.pass) break;
  }
  return i;
}

// The next segment in send order: critical, then important, then the rest. Leaves the cursor on it. False if none is
// left, or if the classification budget is used up.
bool SendOrder::next_segment(SendState& state, std::uint32_t& segment) {
  // PROTOCOL 6.1.1: Within a tensor, a sender MUST send critical segments first, then important ones, then the rest;
  //     each kind by offset.
  while (state.pass < kPasses) {
    const std::optional<std::uint32_t> found = find_of_pass(state);
    if (!found) return false;
    if (*found < state.grid.count()) {
      MLT_CHECK(*found < state.classified);
      segment = state.cursor = *found;
      return true;
    }
    ++state.pass;
    state.cursor = 0;
  }
  return false;
}

// Defers remaining classification until the driver has checked its input: the timer makes it return at once.
void SendOrder::defer(TimeNs now, std::uint16_t rank) {
  MLT_CHECK(blocks_left_ == 0);
  shared_.peers[rank].classification_deferred = true;
  shared_.timers.set(shared_.peer_timer(rank), base::after(now, 1));
}

}  // namespace mlt::core
