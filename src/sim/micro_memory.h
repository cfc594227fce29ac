// The memory of one micro-swarm world: everything that it allocates lies in one block, in the order in which it was
// asked for. So a copy of the block is a copy of the world, endpoints and oracle included, though neither can be
// copied: it goes back to the same addresses.
//
// A program that explores replaces operator new and calloc(), and has them ask `WorldMemory::take_for_current()` first
// (tests/sim/micro_allocation.cc). Whatever else would allocate, a copy would miss: that a run goes the same way from
// its beginning (MicroLimits::replay_every) is the proof that nothing does. Nothing is freed before the whole world is.
// One thread.
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

  // While one lives, what is allocated lies in the world's memory.
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
  // Forgets the world: nothing in it is destroyed.
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
  static const std::byte* first_;  // of the only world memory of the program
  static const std::byte* end_;

  std::byte* bytes_;
  std::size_t capacity_;
  std::size_t used_ = 0;
};

}  // namespace mlt::sim
