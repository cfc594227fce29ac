// Broadcast of a long tensor along a chain: the root sends it to the next member of the group, which passes on each
// segment as it arrives, and so on to the member before the root.
//
// Each link carries the tensor once in each direction, so that the last member has it a trip for each member after the
// root's link could have sent it once; sent directly (collective/exchange.h), the root's link carries it n - 1 times.
// Absent on purpose: loss. The memory of a member is undefined after a failure.
#pragma once

#include <array>
#include <span>

#include "collective/collective.h"
#include "collective/onward.h"

namespace mlt::collective {

// Max bytes of a transfer; a multiple of every element's size.
inline constexpr std::uint64_t kChainPieceBytes = 1U << 20;

class Chain final : public Collective {
 public:
  // Requires at least two ranks.
  Chain(const CollectiveRequest& request, const Membership& group);

  bool is_ready(const Stream& stream, std::uint32_t step) const override;
  void fill(const Stream& stream, std::uint32_t step, core::SendRequest& request) override;
  void fill(const Stream& stream, std::uint32_t step, core::ReceiveRequest& request) override;
  bool is_lossy(std::uint32_t) const override { return false; }
  std::size_t unlocks(std::size_t) const override { return kSends; }

 private:
  static constexpr std::size_t kReceives = 0, kSends = 1;  // streams: from the member before, to the next
  // Destination of a receive's segments that are passed on.
  struct Target {
    std::byte* first = nullptr;
    Onward* onward = nullptr;
  };

  bool is_first() const { return streams[kReceives].steps == 1; }
  std::span<std::byte> piece(std::uint32_t step) const;
  static void take_segment(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload);
  Onward* begin_onward(std::uint32_t step, std::uint64_t bytes);

  std::span<std::byte> data_;
  wire::ElementType element_;
  std::array<Target, kMaxWindow> targets_{};  // of receives in progress, by step modulo the window
  std::array<Onward, kMaxWindow> onward_{};   // by step modulo the window
};

}  // namespace mlt::collective
