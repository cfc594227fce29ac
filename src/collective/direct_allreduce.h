// All-reduce of a small float32 tensor in one round: every rank sends its whole tensor to every other, and each sums
// all of them in the order of the group.
//
// A ring (collective/ring_allreduce.h) carries fewer bytes with more than two ranks, 2 (n - 1) / n of the tensor
// instead of n - 1, but one after the other in 2 (n - 1) turns; of a small tensor the turns cost more than the bytes.
// Nothing is lost here. A tensor travels behind its shape in one transfer, from and to memory of this machine's own,
// and the caller's is written only once everything has arrived: a collective that fails leaves the tensor as it was.
// All ranks add the same terms in the same order, so that they end with the same bits.
#pragma once

#include <memory>
#include <span>

#include "collective/collective.h"

namespace mlt::collective {

// What a rank sends in all, at most.
inline constexpr std::uint64_t kDirectBytes = 64U << 10;
// Bytes that a loss bound must allow to be missing before it can spare a segment: of less there is nothing to gain.
inline constexpr double kDirectLossBytes = 1'024;

class DirectAllReduce final : public Collective {
 public:
  DirectAllReduce(const Membership& group, std::span<float> data, bool average);

  // Whether an all-reduce is this one: every rank finds the same.
  static bool fits(std::uint64_t ranks, std::uint64_t bytes, double loss_bound);

  // Nothing follows the first transfer.
  void fill(const Stream&, std::uint32_t, core::SendRequest&) override {}
  void fill(const Stream&, std::uint32_t, core::ReceiveRequest&) override {}
  bool is_lossy(std::uint32_t) const override { return false; }
  std::span<std::byte> opening(Stream& stream) override;
  void begin() override;
  void finish() override;

 private:
  // A shape and the tensor of the rank of this index: what leaves, or what arrives.
  std::span<std::byte> record(std::uint32_t index) const;
  std::span<float> tensor(std::uint32_t index) const;

  std::span<float> data_;
  std::uint32_t ranks_;
  std::uint32_t own_;
  float scale_;
  std::unique_ptr<float[]> records_;  // of all ranks, in the order of the group
};

}  // namespace mlt::collective
