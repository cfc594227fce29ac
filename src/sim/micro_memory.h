// The memory of one micro-swarm world: all its allocations lie in one block, in order. So a copy of the block is a copy
// of the world, endpoints and oracle included, though neither is copyable: it is restored to the same addresses.
//
// A program that explores replaces operator new and calloc() with versions that call `WorldMemory::take_for_current()`
// first (tests/sim/micro_allocation.cc). A copy would miss any other allocation; replaying runs from the beginning
// (MicroLimits::replay_every) proves that there are none. Memory is freed only with the whole world. One thread.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace mlt::sim {

class WorldMemory {
 public:
  explicit WorldMemory(std::size_t bytes);
  ~WorldMemory();
  WorldMemory(const WorldMemory&) = delete;
  WorldMemory& operator=(const WorldMemory&) = delete;

  // During its lifetime allocations come from the world's memory.
  class Use {
   public:
    explicit Use(WorldMemory& memory) : before_(current_) { current_ = &memory; }
    ~Use() { current_ = before_; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    WorldMemory* before_;
  };

  // For operator new and delete: nullptr if no world's memory is in use; whether a block is a world's.
  static void* take_for_current(std::size_t bytes, std::size_t alignment);
  static bool holds(const void* memory);

  std::size_t used() const { return used_; }
  // Discards the world without destroying its objects.
  void clear() { used_ = 0; }

  class Copy {
   public:
    std::size_t size() const { return size_; }

   private:
    friend class WorldMemory;
    std::vector<std::byte> bytes_;
    std::size_t size_ = 0;
  };
  void save(Copy& copy) const;
  void restore(const Copy& copy);

 private:
  static WorldMemory* current_;
  static const std::byte* first_;  // of the program's only world memory
  static const std::byte* end_;

  std::byte* bytes_;
  std::size_t capacity_;
  std::size_t used_ = 0;
};

}  // namespace mlt::sim
