// All-to-all: every rank sends each other rank a part of its input, and receives a part of its output from each.
//
// Parts are stored one after another in group order. The order of peers is rotated: at index j, a rank sends to the
// j-th rank after it and receives from the j-th before it, so that the ranks do not all start with the same peer.
#pragma once

#include <vector>

#include "collective/collective.h"

namespace mlt::collective {

// Max bytes of a transfer of all-to-all and gather; a multiple of every element's size.
inline constexpr std::uint64_t kPartPieceBytes = 4U << 20;

// Max transfers in progress with each of `peers` peers: a window's worth with one peer, fewer with many, at least one.
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
  std::vector<std::uint64_t> offsets_;  // of each stream's part in the input or output
};

}  // namespace mlt::collective
