// Gather, or incast: every rank of a group sends its input to one, the root, all at once.
//
// The root's output holds the inputs one after another in the order of the group, its own among them. The senders are
// not held back from one another here: the rate control of the endpoints is what keeps the root's link from
// overflowing.
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
  std::span<std::byte> output_;  // empty but at the root
  wire::ElementType element_;
  double loss_bound_;
  std::span<std::byte> own_output_;     // the root's own part
  std::vector<std::uint64_t> offsets_;  // of each stream's part in the output
};

}  // namespace mlt::collective
