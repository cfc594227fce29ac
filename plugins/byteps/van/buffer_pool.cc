#include "buffer_pool.h"

#include <bit>

namespace mlt::van {

Part BufferPool::take(std::size_t bytes) {
  if (bytes == 0) return {};
  if (bytes < kMinPooledBytes) {
    std::shared_ptr<std::byte[]> owner(new std::byte[bytes]);
    return {owner.get(), bytes, owner};
  }
  const std::size_t capacity = std::bit_ceil(bytes);
  std::unique_ptr<std::byte[]> memory;
  {
    const std::lock_guard lock(mutex_);
    auto& kept = free_[capacity];
    if (!kept.empty()) {
      memory = std::move(kept.back());
      kept.pop_back();
      kept_bytes_ -= capacity;
    }
  }
  if (!memory) memory.reset(new std::byte[capacity]);  // not make_unique, which would clear it
  std::byte* const data = memory.release();
  return {data, bytes, std::shared_ptr<void>(data, [pool = shared_from_this(), capacity](void* given) {
            pool->give_back(static_cast<std::byte*>(given), capacity);
          })};
}

void BufferPool::give_back(std::byte* data, std::size_t capacity) {
  std::unique_ptr<std::byte[]> memory(data);
  const std::lock_guard lock(mutex_);
  if (kept_bytes_ + capacity > kMaxKeptBytes) return;
  free_[capacity].push_back(std::move(memory));
  kept_bytes_ += capacity;
}

}  // namespace mlt::van
