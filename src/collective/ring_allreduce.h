// In-place ring all-reduce: reduce-scatter, then all-gather. Arriving segments are summed or copied and
// passed on one by one: a transfer to the right starts while the transfer from the left that it continues is still in
// progress.
//
// The tensor is cut into one chunk per rank, all equal or by rate (collective/shares.h), and a chunk into pieces. In
// turn t a rank sends chunk (own - t) to its right and receives chunk (own - t - 1) from its left. The first n - 1
// turns combine arriving data with the present data, segment by segment (as "add" and "sum" stand for any reduction
// below); the others copy it. So one rank sums a chunk last, in ring order, and it is copied to all: every rank ends
// with identical bits, independent of arrival order. 16-bit floating-point sums are rounded at each hop. Loss is
// allowed only while sums are passed on (section 22.2 of PROTOCOL.md): up to the bound of all that a rank receives of
// sums, in whichever chunks, because the bound of a small chunk alone is less than a segment. A missing segment adds
// nothing, and drops the terms of every rank that it had passed. In a mean the own term of the rank that misses it
// takes their weights: so lost terms do not make a mean smaller, though a segment does not state how many terms it
// holds, and the divisor is the number of ranks. With lossy results the other turns may lose as much: the rank that
// misses a result takes the sum that it has of it in its place, of a mean divided by its terms, and passes that on.
// Ranks then end with different bits.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "collective/collective.h"
#include "collective/onward.h"
#include "collective/reduction.h"

namespace mlt::collective {

// Long enough that a transfer's replies cost little, short enough that a chunk of a large tensor has several. Pieces of
// a quarter were slower with large tensors and busy neighbours. Every rank must cut the same pieces, so the size cannot
// depend on the segment bytes, which differ by pair: a piece's last segment is shorter. Where sums may lose data, a
// segment has the importance of what this rank held when it posted the send, mostly its own term: to pass a piece on
// only when all of it is there, with the importance of the sums, made the repairs of one turn wait for those before.
inline constexpr std::uint64_t kRingPieceBytes = 1U << 20;

class RingAllReduce final : public Collective {
 public:
  // Requires at least two ranks. `shares`: of each chunk, in order; empty: all are equal.
  RingAllReduce(const Membership& group, std::span<std::byte> data, wire::ElementType element, Reduction reduction,
                double loss_bound, std::span<const std::uint16_t> shares = {}, bool lossy_results = false);

  bool is_ready(const Stream& stream, std::uint32_t step) const override;
  std::optional<std::uint64_t> fed_checksum(std::uint32_t step) const override {
    return onward_[step % kMaxWindow].fed_checksum(step);
  }
  void fill(const Stream& stream, std::uint32_t step, core::SendRequest& request) override;
  void fill(const Stream& stream, std::uint32_t step, core::ReceiveRequest& request) override;
  void on_received(const Stream& stream, std::uint32_t step, const core::Completion& completion) override;
  bool is_lossy(std::uint32_t step) const override { return may_lose(place_of(step, true)); }
  std::size_t unlocks(std::size_t) const override { return kSends; }

  // Of each chunk, if all are equal.
  static std::uint32_t pieces_of(std::uint64_t elements, std::uint64_t element_bytes, std::uint32_t ranks);

 private:
  static constexpr std::size_t kReceives = 0, kSends = 1;  // streams: from the left, to the right
  // Destination of a receive's segments, to add or copy to.
  struct Target {
    std::byte* first = nullptr;
    const Kernel* kernel = nullptr;  // null: copy
    std::uint32_t element_bytes = 1;
    std::uint32_t ranks = 0;   // of the last sum; else 0
    Onward* onward = nullptr;  // null: nothing is passed on before the receive ends
  };

  struct Chunk {
    std::size_t first = 0, length = 0;  // elements
    std::uint32_t pieces = 0;
  };
  struct Place {
    std::uint32_t turn = 0;
    std::uint32_t chunk = 0;
    std::uint32_t piece = 0;                   // of the chunk
    bool is_sum = false, is_last_sum = false;  // what its receiver does
  };

  void cut_chunks(std::size_t elements, std::span<const std::uint16_t> shares);
  Place place_of(std::uint32_t step, bool is_send) const;
  bool may_lose(const Place& place) const { return loss_bound_ > 0 && (place.is_sum || lossy_results_); }
  std::span<std::byte> data_of(const Place& place) const;
  // The step that sends on what a step receives. Both go through the chunks in the same order, but a rank sends its own
  // before all others.
  std::uint32_t send_step_of(std::uint32_t receive_step) const { return receive_step + chunks_[own_].pieces; }
  static void take_segment(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload);
  Onward* begin_onward(std::uint32_t receive_step, std::span<const std::byte> piece);

  std::span<std::byte> data_;
  wire::ElementType element_;
  std::uint32_t element_bytes_;
  const Kernel& kernel_;
  std::uint32_t ranks_;
  std::uint32_t own_;
  double loss_bound_;
  bool lossy_results_;
  std::vector<Chunk> chunks_;
  std::vector<std::uint32_t> received_;       // steps that receive, by the end of each turn
  core::SharedLossBudget budget_;             // of all receives of sums
  core::SharedLossBudget results_budget_;     // of all receives of results
  std::array<Target, kMaxWindow> targets_{};  // of receives in progress, by step modulo the window
  std::array<Onward, kMaxWindow> onward_{};   // by the send's step modulo the window
};

}  // namespace mlt::collective
