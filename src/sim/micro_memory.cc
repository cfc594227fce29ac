#include "sim/micro_memory.h"

#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace mlt::sim {

WorldMemory* WorldMemory::current_ = nullptr;
const std::byte* WorldMemory::first_ = nullptr;
const std::byte* WorldMemory::end_ = nullptr;

WorldMemory::WorldMemory(std::size_t bytes)
    : bytes_(static_cast<std::byte*>(std::aligned_alloc(64, bytes / 64 * 64))), capacity_(bytes / 64 * 64) {
  MLT_CHECK(bytes_ != nullptr && first_ == nullptr);
  first_ = bytes_;
  end_ = bytes_ + capacity_;
}

WorldMemory::~WorldMemory() {
  first_ = end_ = nullptr;
  std::free(bytes_);
}

void* WorldMemory::take_for_current(std::size_t bytes, std::size_t alignment) {
  if (current_ == nullptr) return nullptr;
  WorldMemory& memory = *current_;
  const std::size_t at = (memory.used_ + alignment - 1) / alignment * alignment;
  MLT_CHECK(bytes <= memory.capacity_ && at <= memory.capacity_ - bytes);  // a world whose memory grows without limit
  memory.used_ = at + bytes;
  return memory.bytes_ + at;
}

bool WorldMemory::holds(const void* memory) { return memory >= first_ && memory < end_; }

void WorldMemory::save(Copy& copy) const {
  if (copy.bytes_.size() < used_) copy.bytes_.resize(used_ * 2);
  std::memcpy(copy.bytes_.data(), bytes_, used_);
  copy.size_ = used_;
}

void WorldMemory::restore(const Copy& copy) {
  std::memcpy(bytes_, copy.bytes_.data(), copy.size_);
  used_ = copy.size_;
}

}  // namespace mlt::sim
