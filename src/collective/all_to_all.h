// All-to-all: every rank sends each other rank a part of its input, and receives a part of its output from each.
//
// Parts lie one after another in the order of the group. The peers' turns are rotated: in place j a rank sends to the
// j-th after it and receives from the j-th before it, so that no rank is the first of everybody.
#pragma once

#include <vector>

#include "collective/collective.h"

namespace mlt::collective {

// Of an all-to-all's and a gather's transfers, at most; a multiple of every element's size.
inline constexpr std::uint64_t kPartPieceBytes = 4U << 20;

// Transfers under way with each of `peers` peers: a window's worth with one, fewer with many, one at least.
std::uint32_t window_of(std::uint32_t peers);

class AllToAll final : public Collective {
 public:
  AllToAll(const CollectiveRequest& request, const Membership& group);

  void begin() override;
  void fill(const Stream& stream, std::uint32_t step, core::SendRequest& request) override;
  void fill(const Stream& stream, std::uint32_t step, core::ReceiveRequest& request) override;
  bool is_lossy(std::uint32_t step) const override;

 private:
  std::size_t index_of(const Stream& stream) const { return static_cast<std::size_t>(&stream - streams.data()); }

  std::span<const std::byte> input_;
  std::span<std::byte> output_;
  wire::ElementType element_;
  double loss_bound_;
  std::span<const std::byte> own_input_;
  std::span<std::byte> own_output_;
  std::vector<std::uint64_t> offsets_;  // of each stream's part, in the input or the output
};

}  // namespace mlt::collective
