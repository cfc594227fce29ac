#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace mlt::base {

void check_failed(const char* expression, const char* file, int line) noexcept {
  std::fprintf(stderr, "mlt: internal error: %s does not hold at %s:%d\n", expression, file, line);
  std::abort();
}

}  // namespace mlt::base
