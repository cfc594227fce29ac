// Shifts the wall clock of one process: loaded with LD_PRELOAD, because CLOCK_REALTIME belongs to the whole host and
// cannot be namespaced. The file named by MLT_CHAOS_CLOCK holds three 64-bit numbers: the time of the jump (by the true
// clock, ns), and the clock's error in ns before and after it. The kernel's arrival stamps (SCM_TIMESTAMPNS) are
// shifted by the error at their own time: a datagram that arrived before a jump and is read after it has the old time,
// as it would with the host's own clock. Absent on purpose: CLOCK_MONOTONIC, which never jumps, and waits until a
// wall-clock time, which neither mlt nor Python uses.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

using Word = std::atomic<std::int64_t>;
constexpr std::int64_t kSecond = 1'000'000'000;

const Word* shift() {
  static const Word* const words = []() -> const Word* {
    const char* name = std::getenv("MLT_CHAOS_CLOCK");
    if (name == nullptr) return nullptr;
    const int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return nullptr;
    void* memory = mmap(nullptr, 3 * sizeof(Word), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return memory == MAP_FAILED ? nullptr : static_cast<const Word*>(memory);
  }();
  return words;
}

void move(timespec& t) {
  const Word* words = shift();
  if (words == nullptr) return;
  const std::int64_t exact = std::int64_t{t.tv_sec} * kSecond + t.tv_nsec;
  const std::int64_t moved = exact + words[exact < words[0].load() ? 1 : 2].load();
  t.tv_sec = moved / kSecond;
  t.tv_nsec = moved % kSecond;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* t) noexcept {
  using Function = int (*)(clockid_t, timespec*);
  static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int status = real(clock, t);
  if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) move(*t);
  return status;
}

__attribute__((visibility("default"))) int gettimeofday(timeval* t, void*) noexcept {
  timespec exact{};
  const int status = clock_gettime(CLOCK_REALTIME, &exact);
  t->tv_sec = exact.tv_sec;
  t->tv_usec = exact.tv_nsec / 1'000;
  return status;
}

__attribute__((visibility("default"))) time_t time(time_t* t) noexcept {
  timespec exact{};
  clock_gettime(CLOCK_REALTIME, &exact);
  if (t != nullptr) *t = exact.tv_sec;
  return exact.tv_sec;
}

__attribute__((visibility("default"))) ssize_t recvmsg(int fd, msghdr* message, int flags) {
  using Function = ssize_t (*)(int, msghdr*, int);
  static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "recvmsg"));
  const ssize_t got = real(fd, message, flags);
  if (got < 0) return got;
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr; header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_TIMESTAMPNS) continue;
    timespec t{};
    std::memcpy(&t, CMSG_DATA(header), sizeof t);
    move(t);
    std::memcpy(CMSG_DATA(header), &t, sizeof t);
  }
  return got;
}

}  // extern "C"
