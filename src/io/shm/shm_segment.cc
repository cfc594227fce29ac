#include "io/shm/shm_segment.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <new>
#include <utility>

namespace mlt::io {

namespace {

// PROTOCOL 23.2.1: A ring MUST have a power of two bytes, 256 KiB to 16 MiB.
// Control words of the ring from creator to joiner, then of the other one, each on its own page; then the bytes of the
// two rings.
constexpr std::size_t kPageBytes = 4'096;
constexpr std::size_t kControlBytes = 2 * kPageBytes;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

static_assert(sizeof(ShmControl) <= kPageBytes);

std::size_t segment_size(std::uint32_t ring_bytes) { return kControlBytes + 2 * std::size_t{ring_bytes}; }

// Two mappings of the same bytes, one behind the other.
std::optional<MemoryMapping> map_twice(int fd, std::uint32_t bytes, std::size_t offset, bool writable, OsError& error) {
  const std::size_t all = 2 * std::size_t{bytes};
  MemoryMapping mapping(::mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), all);
  if (!mapping) {
    error = os_error(errno, "reserve addresses for", "a ring of shared memory");
    return std::nullopt;
  }
  // The reader's mapping is read-only: a bug there cannot change the writer's bytes.
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  for (int i = 0; i < 2; ++i) {
    void* at = mapping.data() + std::size_t{bytes} * static_cast<std::size_t>(i);
    if (::mmap(at, bytes, protection, MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(offset)) == MAP_FAILED) {
      error = os_error(errno, "map", "a ring of shared memory");
      return std::nullopt;
    }
  }
  // A forked child does not use it, and would keep the memory after its parent's death.
  mapping.keep_from_children();
  return mapping;
}

bool is_ring_size(std::uint32_t bytes) {
  return std::has_single_bit(bytes) && bytes >= kMinShmRingBytes && bytes <= kMaxShmRingBytes;
}

}  // namespace

bool ShmSegment::map(int fd, std::uint32_t ring_bytes, bool creator, OsError& error) {
  control_ = MemoryMapping(::mmap(nullptr, kControlBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), kControlBytes);
  if (!control_) {
    error = os_error(errno, "map", "the control words of shared memory");
    return false;
  }
  control_.keep_from_children();
  ShmRingMemory memory[2];
  for (int i = 0; i < 2; ++i) {
    const bool writable = (i == 0) == creator;
    auto mapped = map_twice(fd, ring_bytes, kControlBytes + static_cast<std::size_t>(i) * ring_bytes, writable, error);
    if (!mapped) return false;
    rings_[i] = std::move(*mapped);
    std::byte* words = control_.data() + static_cast<std::size_t>(i) * kPageBytes;
    // A new memfd is all zeros, which are the initial values: the joining side must not write them again.
    memory[i] = {std::launder(reinterpret_cast<ShmControl*>(words)), rings_[i].data(), ring_bytes};
  }
  out_ = ShmWriter(memory[creator ? 0 : 1]);
  in_ = ShmReader(memory[creator ? 1 : 0]);
  return true;
}

std::optional<ShmSegment> ShmSegment::create(std::uint32_t ring_bytes, ShmDescriptors& give, OsError& error) {
  if (!is_ring_size(ring_bytes)) {
    error = bad_argument("a ring of " + std::to_string(ring_bytes) + " bytes is not a power of two within the limits");
    return std::nullopt;
  }
  give.memory = UniqueFd(::memfd_create("mlt", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!give.memory) {
    error = os_error(errno, "create", "shared memory (memfd)");
    return std::nullopt;
  }
  if (::ftruncate(give.memory.get(), static_cast<off_t>(segment_size(ring_bytes))) != 0 ||
      ::fcntl(give.memory.get(), F_ADD_SEALS, kSeals) != 0) {
    error = os_error(errno, "size and seal", "shared memory (memfd)");
    return std::nullopt;
  }
  give.creator_bell = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  give.joiner_bell = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  ShmSegment segment;
  segment.own_bell_ = UniqueFd(::fcntl(give.creator_bell.get(), F_DUPFD_CLOEXEC, 0));
  segment.other_bell_ = UniqueFd(::fcntl(give.joiner_bell.get(), F_DUPFD_CLOEXEC, 0));
  if (!segment.own_bell_ || !segment.other_bell_) {
    error = os_error(errno, "open", "an eventfd");
    return std::nullopt;
  }
  if (!segment.map(give.memory.get(), ring_bytes, true, error)) return std::nullopt;
  return segment;
}

std::optional<ShmSegment> ShmSegment::join(std::uint32_t ring_bytes, ShmDescriptors received, OsError& error) {
  if (!is_ring_size(ring_bytes)) {
    error = bad_argument("shared memory with a ring of " + std::to_string(ring_bytes) + " bytes was offered");
    return std::nullopt;
  }
  // PROTOCOL 23.1.5: It MUST check that the memory has the size that the offer names, and that its size is sealed
  //     (F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL).
  struct stat status{};
  if (::fstat(received.memory.get(), &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) != segment_size(ring_bytes)) {
    error = bad_argument("the offered shared memory does not have the size stated in the offer");
    return std::nullopt;
  }
  const int seals = ::fcntl(received.memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    error = bad_argument("the size of the offered shared memory is not sealed");
    return std::nullopt;
  }
  ShmSegment segment;
  segment.own_bell_ = std::move(received.joiner_bell);
  segment.other_bell_ = std::move(received.creator_bell);
  if (!segment.map(received.memory.get(), ring_bytes, false, error)) return std::nullopt;
  return segment;
}

void ShmSegment::ring_other() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(other_bell_.get(), &one, sizeof one);
}

void ShmSegment::drain_own_bell() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto n = ::read(own_bell_.get(), &count, sizeof count);
}

}  // namespace mlt::io
