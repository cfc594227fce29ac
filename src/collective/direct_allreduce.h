// All-reduce of a small tensor in one step: every rank sends its whole tensor to every other, and each combines all of
// them in group order, rounding once.
//
// With more than two ranks, a ring (collective/ring_allreduce.h) carries fewer bytes: 2 (n - 1) / n of the tensor
// instead of n - 1. But it takes 2 (n - 1) sequential steps, and for a small tensor the steps cost more than the bytes.
// No data is missing here. A tensor follows its shape in one transfer, from and to internal memory. The caller's memory
// is written only once everything has arrived: a failed collective leaves the tensor unchanged. All ranks combine the
// same terms in the same order, so that they end with identical bits.
#pragma once

#include <span>

#include "collective/collective.h"
#include "collective/reduction.h"
#include "collective/tensor_records.h"

namespace mlt::collective {

class DirectAllReduce final : public Collective {
 public:
  DirectAllReduce(const Membership& group, std::span<std::byte> data, wire::ElementType element, Reduction reduction);

  // The first transfer is the only one.
  void fill(const Stream&, std::uint32_t, core::SendRequest&) override {}
  void fill(const Stream&, std::uint32_t, core::ReceiveRequest&) override {}
  bool is_lossy(std::uint32_t) const override { return false; }
  std::span<std::byte> opening(Stream& stream) override;
  void begin() override;
  void finish() override;

 private:
  std::span<std::byte> data_;
  std::uint32_t ranks_;
  std::uint32_t own_;
  TensorRecords records_;  // of all ranks, in the order of the group; none in a group of one
};

}  // namespace mlt::collective
