#include "io/os/random.h"

#include <sys/random.h>

#include <cerrno>

#include "base/check.h"

namespace mlt::io {

std::uint64_t random_u64() {
  std::uint64_t value = 0;
  // Up to 256 bytes are returned whole or not at all; only a signal during early boot interrupts the call.
  for (;;) {
    const ssize_t got = ::getrandom(&value, sizeof value, 0);
    if (got == static_cast<ssize_t>(sizeof value)) return value;
    MLT_CHECK(got < 0 && errno == EINTR);
  }
}

}  // namespace mlt::io
