// Ring all-reduce of float32, in place: reduce-scatter, then all-gather. What arrives is summed, or copied, and passed
// on segment by segment: a transfer to the right begins while the one from the left that it carries on is still under
// way.
//
// The tensor is cut into a chunk per rank, a chunk into pieces. In step t a rank sends chunk (own - t) to its right and
// receives chunk (own - t - 1) from its left; in the first n - 1 steps what arrives is added to what is there, segment
// by segment, in the rest it is copied. So a chunk is summed in the order of the ring, by one rank, and copied to all:
// every rank ends with the same bits, whatever arrived when. Losses are allowed while sums flow (DESIGN.md section 6):
// a lost segment adds nothing, and with it go the terms of every rank that it had passed. The divisor is the number of
// ranks, whatever was lost: a segment does not say how many terms it holds.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "collective/collective.h"

namespace mlt::collective {

// Long enough that a transfer's own answers cost little, short enough that a chunk of a large tensor has several;
// pieces a quarter as long were slower there, beside busy neighbours. Every rank must cut the same, so this can't
// follow the segment bytes, which differ from pair to pair: a piece's last segment is shorter.
inline constexpr std::uint64_t kRingPieceBytes = 1U << 20;
// Where sums may lose, a segment is passed on only when its whole piece has ended: whether it matters is judged by the
// piece's median. Of a smaller chunk too, then, so many pieces that the first is on its way again while the last
// arrives, but none so short that the turn-around of a transfer costs more than the overlap gains.
inline constexpr std::uint64_t kRingOverlap = 4;
inline constexpr std::uint64_t kRingMinPieceBytes = 32U << 10;

class RingAllReduce final : public Collective {
 public:
  // Of two ranks at least.
  RingAllReduce(const Membership& group, std::span<float> data, bool average, double loss_bound);

  bool is_ready(const Stream& stream, std::uint32_t step) const override;
  void fill(const Stream& stream, std::uint32_t step, core::SendRequest& request) override;
  void fill(const Stream& stream, std::uint32_t step, core::ReceiveRequest& request) override;
  void on_received(const Stream& stream, std::uint32_t step, const core::Completion& completion) override;
  bool is_lossy(std::uint32_t step) const override;
  std::size_t unlocks(std::size_t) const override { return kSends; }

  static std::uint32_t pieces_of(std::uint64_t elements, std::uint32_t ranks, double loss_bound);

 private:
  static constexpr std::size_t kReceives = 0, kSends = 1;  // streams: from the left, to the right
  // The send that carries on what a receive brings, from when that is posted until the send has ended.
  struct Onward {
    std::uint32_t send_step = 0;  // 0: none
    std::uint32_t segment_bytes = 0;
    core::SendFeed feed;
    std::vector<std::uint64_t> words;  // of the feed
    std::vector<std::uint32_t> left;   // bytes still to come, for each segment of the send
  };
  // What becomes of the segments of a receive: where they are added, or copied to, and what a sum is multiplied by (1
  // but for the last of a mean).
  struct Target {
    float* first = nullptr;
    float scale = 1;
    bool is_sum = true;
    Onward* onward = nullptr;  // null: nothing is passed on before the receive has ended
  };

  std::uint32_t turn_of(std::uint32_t step) const { return (step - 1) / pieces_; }
  bool is_sum(std::uint32_t step) const { return turn_of(step) + 1 < ranks_; }
  bool is_last_sum(std::uint32_t step) const { return turn_of(step) + 2 == ranks_; }
  std::span<float> piece(std::uint32_t step, bool is_send) const;
  static void take_segment(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload);
  static void pass_on(Onward& onward, std::uint64_t offset_bytes, std::uint64_t bytes);
  Onward* begin_onward(std::uint32_t receive_step, std::span<const float> piece);

  std::span<float> data_;
  std::uint32_t ranks_;
  std::uint32_t own_;
  std::uint32_t pieces_;  // of a chunk
  double loss_bound_;
  float scale_;
  std::array<Target, kMaxWindow> targets_{};  // of receives under way, by step modulo the window
  std::array<Onward, kMaxWindow> onward_{};   // by the send's step modulo the window
};

}  // namespace mlt::collective
