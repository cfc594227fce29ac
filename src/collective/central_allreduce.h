// All-reduce of a small tensor in a large group: every rank sends its whole tensor to the first of the group, which
// combines all of them in group order, rounding once, and sends the result to every rank.
//
// The direct algorithm (collective/direct_allreduce.h) has n (n - 1) transfers, this one 3 (n - 1) and the shapes: a
// large group takes as long as its first rank needs to receive and send n small tensors. The result has the same bits.
// No data is missing here. The caller's memory is written only once the result has arrived: a failed collective leaves
// the tensor unchanged.
#pragma once

#include <memory>
#include <span>

#include "collective/collective.h"
#include "collective/reduction.h"
#include "collective/tensor_records.h"

namespace mlt::collective {

class CentralAllReduce final : public Collective {
 public:
  CentralAllReduce(const Membership& group, std::span<std::byte> data, wire::ElementType element, Reduction reduction);

  // A send of the result waits for all tensors.
  bool is_ready(const Stream& stream, std::uint32_t step) const override;
  bool unlocks_all(std::size_t stream) const override;
  void fill(const Stream& stream, std::uint32_t step, core::SendRequest& request) override;
  void fill(const Stream& stream, std::uint32_t step, core::ReceiveRequest& request) override;
  bool is_lossy(std::uint32_t) const override { return false; }
  std::span<std::byte> opening(Stream& stream) override;
  void begin() override;
  void finish() override;

 private:
  bool is_center() const { return own_ == 0; }
  bool has_all() const;
  void combine();

  std::span<std::byte> data_;
  wire::ElementType element_;
  std::uint32_t own_;
  std::uint16_t center_;  // a rank, the first of the group
  bool combined_ = false;
  TensorRecords records_;  // at the center of all ranks in the order of the group, else of this one; own first
  std::unique_ptr<std::byte[]> result_;
};

}  // namespace mlt::collective
