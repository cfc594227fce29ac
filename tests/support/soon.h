// Waits for an event of another thread, for which a test has no descriptor or condition to wait on.
#pragma once

#include <chrono>
#include <thread>

namespace mlt::test {

// Whether `condition` became true within ten seconds.
template <typename Condition>
bool soon(Condition&& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // only between two checks
  }
  return true;
}

}  // namespace mlt::test
