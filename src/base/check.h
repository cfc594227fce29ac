// Assertions that ship: what the code relies on is checked in release builds too.
//
// MLT_CHECK is for programming errors only (a broken invariant, a violated precondition of an internal call). Input
// from a network or a user is never checked with it: that is answered with a typed result.
#pragma once

namespace mlt::base {

[[noreturn]] void check_failed(const char* expression, const char* file, int line) noexcept;

}  // namespace mlt::base

#define MLT_CHECK(expression) \
  (static_cast<bool>(expression) ? void(0) : ::mlt::base::check_failed(#expression, __FILE__, __LINE__))
