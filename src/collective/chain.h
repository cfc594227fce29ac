// Broadcast and reduce of a long tensor along a chain of the group's members: each passes on each segment to the next
// as it arrives. A broadcast begins at the root and ends at the member before it; a reduce begins at the member after
// the root, each further one combines its own term with what arrives, and it ends at the root. By two levels the order
// of the chain is by hosts, so that it enters and leaves each host once at most (algorithm.h).
//
// Each link carries the tensor once in each direction, so that the last member has it a trip for each member after the
// first one's link could have sent it once; sent directly (collective/exchange.h), the root's link carries it n - 1
// times. A member of a reduce that is neither first nor last holds kChainSlots pieces at most. 16-bit floating-point
// sums are rounded at each member. Absent on purpose: loss. The memory of a result is undefined after a failure.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "collective/collective.h"
#include "collective/onward.h"
#include "collective/reduction.h"

namespace mlt::collective {

// Max bytes of a transfer; a multiple of every element's size.
inline constexpr std::uint64_t kChainPieceBytes = 1U << 20;
// Max pieces of a sum that a member holds until they are sent on.
inline constexpr std::uint32_t kChainSlots = 8;

class Chain final : public Collective {
 public:
  // Requires at least two ranks. `order`: positions in the group, from the root on; empty: the group's order.
  Chain(const CollectiveRequest& request, const Membership& group, const std::vector<std::uint32_t>& order = {});

  bool is_ready(const Stream& stream, std::uint32_t step) const override;
  std::optional<std::uint64_t> fed_checksum(std::uint32_t step) const override {
    return onward_[step % kMaxWindow].fed_checksum(step);
  }
  bool may_receive(const Stream& stream, std::uint32_t step) const override;
  void fill(const Stream& stream, std::uint32_t step, core::SendRequest& request) override;
  void fill(const Stream& stream, std::uint32_t step, core::ReceiveRequest& request) override;
  bool is_lossy(std::uint32_t) const override { return false; }
  std::size_t unlocks(std::size_t stream) const override {
    return stream > kSends ? stream : stream == kReceives ? kSends : kReceives;
  }

 private:
  static constexpr std::size_t kReceives = 0, kSends = 1;  // streams: from the member before, to the next
  // Destination of a receive's segments.
  struct Target {
    std::byte* first = nullptr;
    const std::byte* own = nullptr;  // this member's term, which may be at `first`; null of a broadcast
    const Kernel* kernel = nullptr;  // of a reduce
    std::uint32_t element_bytes = 1;
    std::uint32_t ranks = 0;   // at the root of a reduce; else 0
    Onward* onward = nullptr;  // null: nothing is passed on before the receive ends
  };

  bool is_first() const { return streams[kReceives].steps == 1; }
  bool is_last() const { return streams[kSends].steps == 1; }
  template <typename Bytes>
  Bytes piece_of(Bytes tensor, std::uint32_t step) const;
  std::span<std::byte> arriving(std::uint32_t step) const;
  static void take_segment(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload);
  Onward* begin_onward(std::uint32_t step, std::span<const std::byte> piece);

  std::span<const std::byte> own_;  // of a broadcast the root's tensor, or what arrives
  std::span<std::byte> memory_;     // where the tensor arrives: the output, or slots
  std::uint32_t slots_;             // pieces that fit there
  wire::ElementType element_;
  std::uint32_t ranks_;
  const Kernel* kernel_ = nullptr;  // of a reduce
  std::unique_ptr<std::byte[]> sums_;
  std::array<Target, kMaxWindow> targets_{};  // of receives in progress, by step modulo the window
  std::array<Onward, kMaxWindow> onward_{};   // by step modulo the window
};

}  // namespace mlt::collective
