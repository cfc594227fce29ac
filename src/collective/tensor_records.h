// Shape and tensor of each rank of an all-reduce in which a tensor follows its shape in one transfer: internal memory,
// sent and received, whose tensors are combined in the order of the group, rounded once.
#pragma once

#include <memory>
#include <span>

#include "collective/collective.h"
#include "collective/reduction.h"

namespace mlt::collective {

class TensorRecords {
 public:
  // Space for `count` records of tensors as long as `data`, which is the caller's memory and is only read here.
  TensorRecords(std::span<const std::byte> data, wire::ElementType element, Reduction reduction, std::uint32_t count);

  std::span<std::byte> record(std::uint32_t index) const;
  // Copies the caller's tensor into a record.
  void put(std::uint32_t index);
  // Writes the reduction of all records to `into`, which is as long as the caller's tensor.
  void combine(std::span<std::byte> into) const;

 private:
  std::span<std::byte> tensor(std::uint32_t index) const { return record(index).subspan(kShapeBytes); }

  std::span<const std::byte> data_;
  std::size_t elements_;
  const Kernel& kernel_;
  std::uint32_t count_;
  std::unique_ptr<std::byte[]> bytes_;
};

}  // namespace mlt::collective
