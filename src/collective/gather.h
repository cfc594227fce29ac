// Gather, or incast: all ranks of a group send their inputs to the root at the same time.
//
// The root's output holds the inputs, its own included, one after another in group order. The senders are not throttled
// here: the endpoints' rate control prevents overload of the root's link.
#pragma once

#include <vector>

#include "collective/collective.h"

namespace mlt::collective {

class Gather final : public Collective {
 public:
  Gather(const CollectiveRequest& request, const Membership& group);

  void begin() override;
  void fill(const Stream& stream, std::uint32_t step, core::SendRequest& request) override;
  void fill(const Stream& stream, std::uint32_t step, core::ReceiveRequest& request) override;
  bool is_lossy(std::uint32_t step) const override;

 private:
  std::span<const std::byte> input_;
  std::span<std::byte> output_;  // empty except at the root
  wire::ElementType element_;
  double loss_bound_;
  std::span<std::byte> own_output_;     // the root's own part
  std::vector<std::uint64_t> offsets_;  // of each stream's part in the output
};

}  // namespace mlt::collective
