// What stands behind the handle of the C API.
#pragma once

#include "c/call.h"
#include "mlt.h"

struct mlt_context {
  explicit mlt_context(const mlt::Options& options) : rank(options.rank), ranks(options.ranks), engine(options) {}
  const std::uint16_t rank;
  const std::uint16_t ranks;
  mlt::Engine engine;
};

namespace mlt::c {

inline mlt_context& checked(mlt_context* context, const char* function) {
  check(context != nullptr, function, "context is NULL");
  return *context;
}

}  // namespace mlt::c
