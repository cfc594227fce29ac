// Lines for the log: each once, the newest ones.
#include "engine/notices.h"

#include <doctest/doctest.h>

using mlt::engine::Notices;

TEST_CASE("take__returns_each_line_once_in_order") {
  Notices notices;
  CHECK(notices.take().empty());
  notices.add("first");
  notices.add("second");
  CHECK(notices.take() == std::vector<std::string>{"first", "second"});
  CHECK(notices.take().empty());
}

TEST_CASE("add__drops_the_oldest_beyond_the_limit") {
  Notices notices;
  for (std::size_t i = 0; i <= Notices::kMax; ++i) notices.add(std::to_string(i));
  const std::vector<std::string> taken = notices.take();
  CHECK(taken.size() == Notices::kMax);
  CHECK(taken.front() == "1");
  CHECK(taken.back() == std::to_string(Notices::kMax));
}
