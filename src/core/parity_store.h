// Parity packets that receivers keep until they can restore segments with them: a fixed number over all receives, in a
// list for each.
//
// Invariants: a packet is in one list, or free; a list has no two of one block and index. Absent on purpose: when they
// are of use (Receiver), the code (erasure_code.h). Owned by the endpoint's Receiver, used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/lazy_array.h"
#include "core/tag_table.h"

namespace mlt::core {

class ParityStore {
 public:
  // Part of a receive.
  struct List {
    std::uint32_t first = kNil;
    bool empty() const { return first == kNil; }
  };
  struct Packet {
    std::uint32_t block = 0;
    std::uint8_t index = 0;
    std::uint32_t next = kNil;  // of its list, or free
  };

  ParityStore(std::uint32_t packets, std::uint32_t bytes);

  // False if nothing is free.
  bool keep(List& list, std::uint32_t block, std::uint8_t index, std::span<const std::byte> payload);
  bool has(const List& list, std::uint32_t block, std::uint8_t index) const;
  // Takes up to as many packets of the block as there is space for in both; returns how many.
  std::size_t find(const List& list, std::uint32_t block, std::span<std::uint8_t> indices, std::span<std::byte*> bytes);
  void release(List& list, std::uint32_t block);
  void release_all(List& list);

  std::size_t used() const { return used_; }
  std::size_t capacity() const { return packets_.capacity(); }

 private:
  std::byte* bytes_of(std::uint32_t packet) { return storage_.data() + std::size_t{packet} * bytes_; }
  void free(std::uint32_t packet);

  base::LazyArray<Packet> packets_;
  base::ZeroedArray<std::byte> storage_;
  std::uint32_t bytes_;
  std::uint32_t free_ = kNil;
  std::size_t used_ = 0;
};

}  // namespace mlt::core
