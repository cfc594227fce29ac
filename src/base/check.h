// Assertions for invariants, also in release builds.
//
// MLT_CHECK is only for programming errors (a broken invariant, a violated precondition of an internal call). Never use
// it for input from the network or a user: invalid input gets a typed result.
#pragma once

namespace mlt::base {

[[noreturn]] void check_failed(const char* expression, const char* file, int line) noexcept;

}  // namespace mlt::base

#define MLT_CHECK(expression) \
  (static_cast<bool>(expression) ? void(0) : ::mlt::base::check_failed(#expression, __FILE__, __LINE__))
