// The memory shared by two processes: two rings in one memfd, and a bell for each side.
//
// One side creates it and passes the descriptors to the other (io/shm/shm_offer.h). It has no name in the file system:
// the kernel frees it with the last process that maps it, however that ends. Its size is sealed, so that no access can
// fault because the other side truncated it.
#pragma once

#include <cstdint>
#include <optional>

#include "io/os/memory_mapping.h"
#include "io/os/os_error.h"
#include "io/os/unique_fd.h"
#include "io/shm/shm_ring.h"

namespace mlt::io {

inline constexpr std::uint32_t kMinShmRingBytes = 256U << 10;
inline constexpr std::uint32_t kMaxShmRingBytes = 16U << 20;

// The descriptors passed by the creator, in this order: both bells and the memory.
struct ShmDescriptors {
  UniqueFd memory;
  UniqueFd creator_bell;
  UniqueFd joiner_bell;
};

class ShmSegment {
 public:
  // `ring_bytes`: a power of two within the limits above. `give` receives what the other side needs.
  static std::optional<ShmSegment> create(std::uint32_t ring_bytes, ShmDescriptors& give, OsError& error);
  // Checks seals and size before mapping.
  static std::optional<ShmSegment> join(std::uint32_t ring_bytes, ShmDescriptors received, OsError& error);

  ShmWriter& out() { return out_; }
  ShmReader& in() { return in_; }
  // Polls readable once the other side has rung; never -1.
  int own_bell() const { return own_bell_.get(); }
  void ring_other();
  void drain_own_bell();

 private:
  ShmSegment() = default;
  bool map(int fd, std::uint32_t ring_bytes, bool creator, OsError& error);

  MemoryMapping control_;
  MemoryMapping rings_[2];
  ShmWriter out_;
  ShmReader in_;
  UniqueFd own_bell_;
  UniqueFd other_bell_;
};

}  // namespace mlt::io
