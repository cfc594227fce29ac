// Makes the parity packets of a send: plans how many follow its first round, sums its segments up, and fills batches
// with the sums. Section 6.12 of PROTOCOL.md.
//
// Sums take as long as the segments take to send on a fast link, or longer. One send at a time therefore has memory for
// all of its sums, and makes them as its segments leave; others sum up block by block behind their first round.
//
// Invariants: each segment is in its sums once; a batch points at sums, which stay until the driver's next call. Absent
// on purpose: pacing, window and order, which are those of data (Sender). Owned by the endpoint's Sender, used by one
// thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/datagram.h"
#include "base/lazy_array.h"
#include "core/config.h"
#include "core/peer.h"
#include "core/send_state.h"

namespace mlt::core {

class ParitySender {
 public:
  explicit ParitySender(const EndpointConfig& config);

  // A segment of the send leaves: before the first and after the last of round 0 it decides about parity.
  void on_segment(const Peer& peer, SendState& state, std::uint32_t segment) {
    if (!config_.erasure_correction || !state.request.may_have_parity) return;
    if (state.repair.round() > 0 || state.repaired_segments > 0) return;
    take_segment(peer, state, segment);
  }
  // The send has ended.
  void forget(const SendState& state) {
    if (state.post_number == ahead_post_) ahead_post_ = kNoPost;
  }

  // Adds the next packets of the send to an empty batch, up to `limit`, of one block. Returns the last one's sequence
  // number. `header`: with everything that they have in common.
  std::uint32_t fill(Peer& peer, SendState& state, std::uint32_t limit, wire::ParityHeader& header,
                     base::DatagramRun& run);

 private:
  static constexpr std::uint64_t kNoPost = ~std::uint64_t{0};

  // Memory whose sums begin at multiples of a cache line.
  class Sums {
   public:
    explicit Sums(std::size_t bytes);
    std::size_t size() const { return size_; }
    std::byte* at(std::size_t index, std::size_t stride) { return aligned_ + index * stride; }

   private:
    std::size_t size_;
    base::ZeroedArray<std::byte> memory_;
    std::byte* aligned_;
  };
  static std::size_t stride_of(const SendState& state);

  void take_segment(const Peer& peer, SendState& state, std::uint32_t segment);
  ParityPlan plan(const Peer& peer, const SendState& state, bool sums_ahead) const;
  void begin_ahead(const Peer& peer, SendState& state);
  const std::byte* sum_of(const SendState& state, std::uint32_t block, std::uint32_t index);

  const EndpointConfig& config_;
  Sums block_sums_;  // all sums of a block
  std::uint64_t block_post_ = kNoPost;
  std::uint32_t block_ = 0;
  Sums ahead_sums_;  // all sums of a send
  std::uint64_t ahead_post_ = kNoPost;
};

}  // namespace mlt::core
