// mlt-delay-line FILE: the delay line of a testbed (python/mlt/testbed/delay_line.py starts it, in a namespace of its
// own). Prints "ready" and then runs until a signal ends it; it keeps FILE locked meanwhile.
#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "delay_line/forwarder.h"
#include "delay_line/shared_file.h"
#include "io/os/memory_mapping.h"
#include "io/os/unique_fd.h"

namespace {

int fail(const char* what) {
  std::fprintf(stderr, "mlt-delay-line: %s: %s\n", what, std::strerror(errno));
  return 1;
}

// A frame leaves when it is due although the job under test keeps every core busy. Without the privilege it is served
// like any other process.
void run_promptly() {
  ::prctl(PR_SET_TIMERSLACK, 1UL);
  sched_param first{};
  first.sched_priority = 1;
  if (::sched_setscheduler(0, SCHED_FIFO, &first) != 0) ::setpriority(PRIO_PROCESS, 0, -20);
}

}  // namespace

int main(int count, char** arguments) {
  using namespace mlt::delay_line;
  if (count != 2) {
    std::fputs("usage: mlt-delay-line FILE\n", stderr);
    return 2;
  }
  const mlt::io::UniqueFd fd(::open(arguments[1], O_RDWR | O_CLOEXEC));
  struct stat status{};
  if (!fd || ::fstat(fd.get(), &status) != 0 || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return fail(arguments[1]);
  const auto bytes = static_cast<std::size_t>(status.st_size);
  const mlt::io::MemoryMapping file(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), bytes);
  if (!file) return fail(arguments[1]);
  FileHeader header{};
  if (bytes >= sizeof header) std::memcpy(&header, file.data(), sizeof header);
  if (header.magic != kMagic || bytes != sizeof header + header.directions * sizeof(DirectionRecord)) {
    errno = EINVAL;
    return fail(arguments[1]);
  }
  Forwarder forwarder({reinterpret_cast<DirectionRecord*>(file.data() + sizeof header), header.directions});
  if (!forwarder.error().empty()) {
    std::fprintf(stderr, "mlt-delay-line: %s\n", forwarder.error().c_str());
    return 1;
  }
  run_promptly();
  std::puts("ready");
  std::fflush(stdout);
  while (true) forwarder.turn();
}
