// The queue of commands from any thread to the thread that runs the event loop.
#include "engine/command_queue.h"

#include <doctest/doctest.h>

#include <vector>

using namespace mlt;

// A command that comes while the clock is read was posted after that time, and would begin before its post.
TEST_CASE("run__leaves_what_comes_while_the_clock_is_read_to_the_next_run") {
  engine::CommandQueue queue(8);
  std::vector<base::TimeNs> first, second;
  REQUIRE(queue.push([&](base::TimeNs now) { first.push_back(now); }));
  REQUIRE(queue.run([&] {
    REQUIRE(queue.push([&](base::TimeNs now) { second.push_back(now); }));
    return base::TimeNs{5};
  }));
  CHECK(first == std::vector<base::TimeNs>{5});
  CHECK(second.empty());
  CHECK(queue.has_waiting());
  REQUIRE(queue.run([] { return base::TimeNs{7}; }));
  CHECK(second == std::vector<base::TimeNs>{7});
  CHECK_FALSE(queue.run([] { return base::TimeNs{9}; }));
}
