// A list of tensors that a collective carries as one: packed into memory of its own, and unpacked at the end.
//
// Invariant: the tensors change only in unpack(), so a collective that fails leaves them as they were. Absent on
// purpose: who else uses the memory (the operation's `lent` keeps it).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace mlt::engine {

class CoalescedTensors {
 public:
  using Tensors = std::vector<std::span<std::byte>>;

  // Why the tensors can't be one of elements of this size; empty if they can.
  static std::string check(const Tensors& tensors, std::size_t element_bytes);

  // `is_result`: unpack() changes the tensors; else they are only read.
  CoalescedTensors(Tensors tensors, bool is_result);

  std::size_t count() const { return tensors_.size(); }
  std::span<std::byte> packed() const { return {packed_.get(), bytes_}; }
  void pack();
  void unpack() const;
  // "element 3 of tensor 1": where an element of the packed tensor is.
  std::string place_of(std::size_t element, std::size_t element_bytes) const;

 private:
  Tensors tensors_;
  bool is_result_;
  std::size_t bytes_;
  std::unique_ptr<std::byte[]> packed_;  // not set to zero: pack() fills it
};

}  // namespace mlt::engine
