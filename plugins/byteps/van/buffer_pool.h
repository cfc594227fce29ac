// Memory of received parts, reused: a fresh buffer of megabytes costs more in page faults than its copy. Any thread.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "frame.h"

namespace mlt::van {

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  static constexpr std::size_t kMinPooledBytes = 32'768;
  static constexpr std::size_t kMaxKeptBytes = std::size_t{256} << 20;  // unused buffers beyond that are freed

  static std::shared_ptr<BufferPool> make() { return std::shared_ptr<BufferPool>(new BufferPool()); }
  // Its owner gives it back.
  Part take(std::size_t bytes);

 private:
  BufferPool() = default;
  void give_back(std::byte* data, std::size_t capacity);

  std::mutex mutex_;
  std::map<std::size_t, std::vector<std::unique_ptr<std::byte[]>>> free_;  // by capacity
  std::size_t kept_bytes_ = 0;
};

}  // namespace mlt::van
