// A collective in stages (collective/stages.h): an all-reduce by recursive halving, or an all-reduce, all-gather or
// reduce-scatter by two levels, within hosts and between them.
//
// A rank waits for a whole part before it sends the next, so that a ring (collective/ring_allreduce.h), which passes on
// segment by segment, wins with large tensors unless a stage saves what a ring sends. A part is combined by one rank in
// each stage and then copied, so that all ranks end with identical bits, independent of arrival order. 16-bit
// floating-point sums are rounded in each stage. Absent on purpose: loss; with a bound the ring is chosen. Parts to
// combine are received into internal memory, shorter than the tensor (twice that at a rank with a partner outside the
// core of a halving).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "collective/collective.h"
#include "collective/reduction.h"
#include "collective/stages.h"

namespace mlt::collective {

// Max bytes of a transfer; a multiple of every element's size.
inline constexpr std::uint64_t kStagePieceBytes = 4U << 20;
// Max exchanges that send at once before an earlier one has begun to: of those that have, one is then never short of a
// slot, if there are more slots than this.
inline constexpr std::uint32_t kMaxOvertaking = 2;

class Staged final : public Collective {
 public:
  struct Copy {
    std::span<const std::byte> from;
    std::span<std::byte> to;
  };
  // What the plan's parts need besides the caller's memory.
  struct Local {
    std::unique_ptr<std::byte[]> memory;
    std::vector<Copy> first, last;  // before the first stage and after the last
  };

  // `plan`: of this member. `bytes`: as in Shape::bytes. `reduction`: unused if no stage combines.
  Staged(const Membership& group, std::uint64_t bytes, wire::ElementType element, Reduction reduction,
         const StagePlan& plan, Local local = {});

  void begin() override { copy(local_.first); }
  void finish() override { copy(local_.last); }

  // A send waits for all receives of its slice that its stage needs. Few overtake sends of earlier stages, which need
  // slots first.
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
  struct Exchange {
    Part send, receive;
    std::span<std::byte> into;   // of a receive to combine: the part of the tensor; else empty
    std::uint32_t received = 0;  // pieces
    std::uint32_t slice = 0;
    std::uint32_t needs = 0;
    bool combines = false;
    bool is_last_sum = false;
  };
  struct Slice {
    std::vector<std::size_t> exchanges;  // in order
    std::uint32_t complete = 0;          // the first so many are complete and combined
  };

  static Part part_of(const Stage::Bytes& bytes);
  void make_exchanges(const StagePlan& plan);
  void allocate(const StagePlan& plan);
  void make_streams(const Membership& group, const StagePlan& plan, bool is_send);
  std::size_t stream_with(std::uint16_t rank, bool is_send);
  // Combines what the exchanges of a slice have received, in their order.
  void advance(Slice& slice);
  static bool is_complete(const Exchange& exchange) { return exchange.received == exchange.receive.pieces; }
  bool is_posted(const Part& part) const { return streams[part.stream].posted >= part.first_step + part.pieces; }
  // Whether some of the part is on its way.
  bool is_sending(const Part& part) const;
  std::size_t exchange_of(const Stream& stream, std::uint32_t step) const;
  static std::span<std::byte> piece(const Part& part, std::uint32_t step);

  static void copy(const std::vector<Copy>& copies);

  std::uint64_t bytes_;
  wire::ElementType element_;
  std::uint32_t element_bytes_;
  const Kernel& kernel_;
  std::uint32_t ranks_;
  std::uint32_t own_;
  std::uint32_t slices_at_once_;
  std::vector<Exchange> exchanges_;  // in order
  std::vector<Slice> slices_;
  std::vector<std::vector<std::size_t>> exchanges_of_;  // of each stream, in order
  std::size_t first_open_ = 0;                          // all exchanges before it are complete and sent
  std::size_t last_sent_ = 0;                           // the last exchange that has begun to send
  bool has_advanced_ = false;                           // by the last receive
  std::unique_ptr<std::byte[]> received_;               // parts to combine
  Local local_;
};

}  // namespace mlt::collective
