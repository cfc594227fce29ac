// All-reduce by recursive halving and doubling (Rabenseifner): a reduce-scatter in which the part that two ranks
// exchange halves in each stage, then an all-gather in which it doubles.
//
// A rank sends about as much as in a ring (collective/ring_allreduce.h), but in 2 log2 n successive transfers instead
// of 2 (n - 1): the faster one while a transfer costs more than its bytes. It waits for a whole part before it sends
// the next, so that a ring, which passes on segment by segment, wins with large tensors.
//
// Of n ranks, the largest power of two that fits are the core. Each of the others, if n is no such power, is paired
// with one of the core: it sends that its whole tensor first, and receives the whole result last. The partners of stage
// j differ in bit j of their core numbers: the first stages, with the longest parts, join ranks near each other in the
// group. A part is combined by one rank in each stage and then copied, so that all ranks end with identical bits,
// independent of arrival order. 16-bit floating-point sums are rounded in each stage. Absent on purpose: loss; with a
// bound the ring is chosen. Parts to combine are received into internal memory, shorter than the tensor (twice that at
// a rank with a partner outside the core).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collective/collective.h"
#include "collective/reduction.h"

namespace mlt::collective {

// Max bytes of a transfer; a multiple of every element's size.
inline constexpr std::uint64_t kHalvingPieceBytes = 4U << 20;

class HalvingAllReduce final : public Collective {
 public:
  // Requires at least two ranks.
  HalvingAllReduce(const Membership& group, std::span<std::byte> data, wire::ElementType element, Reduction reduction);

  // A send waits for all receives of the stages before its own.
  bool is_ready(const Stream& stream, std::uint32_t step) const override;
  // The receives of earlier stages take slots first: whatever few there are, the stages end in their order.
  bool may_receive(const Stream& stream, std::uint32_t step) const override;
  bool unlocks_all(std::size_t stream) const override;
  void fill(const Stream& stream, std::uint32_t step, core::SendRequest& request) override;
  void fill(const Stream& stream, std::uint32_t step, core::ReceiveRequest& request) override;
  void on_received(const Stream& stream, std::uint32_t step, const core::Completion& completion) override;
  bool is_lossy(std::uint32_t) const override { return false; }

 private:
  // What a stage sends or receives: a part of the tensor, in pieces, which are steps of a stream.
  struct Part {
    std::span<std::byte> bytes;
    std::size_t stream = 0;
    std::uint32_t first_step = 0;
    std::uint32_t pieces = 0;  // 0: the stage has no such part
  };
  struct Stage {
    std::uint32_t member = 0;  // with which it exchanges the parts; an index in the group
    Part send, receive;
    std::span<std::byte> into;   // of a receive to combine: the part of the tensor; else empty
    std::uint32_t received = 0;  // pieces
  };

  using Bytes = std::optional<std::span<std::byte>>;
  void add_stage(std::uint32_t member, Bytes sent, Bytes received, bool combines);
  void make_stages();
  void make_streams(const Membership& group, bool is_send);
  std::size_t stream_with(std::uint16_t rank, bool is_send);
  // Combines what stages have received, in their order.
  void advance();
  std::size_t stage_of(const Stream& stream, std::uint32_t step) const;
  static std::span<std::byte> piece(const Part& part, std::uint32_t step);

  std::span<std::byte> data_;
  wire::ElementType element_;
  std::uint32_t element_bytes_;
  const Kernel& kernel_;
  std::uint32_t ranks_;
  std::uint32_t own_;
  std::vector<Stage> stages_;                        // in order
  std::vector<std::vector<std::size_t>> stages_of_;  // of each stream, in order
  std::size_t complete_ = 0;                         // stages whose receive is complete and combined
  std::size_t last_combined_ = 0;                    // stage that combines last
  bool has_advanced_ = false;                        // by the last receive
  std::unique_ptr<std::byte[]> received_;            // parts to combine
};

}  // namespace mlt::collective
