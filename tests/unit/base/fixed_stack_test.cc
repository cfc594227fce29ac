#include "base/fixed_stack.h"

#include <doctest/doctest.h>

using namespace mlt;

TEST_CASE("fixed_stack__last_in_first_out_up_to_its_capacity") {
  base::FixedStack<int> stack(3);
  CHECK(stack.empty());
  for (int i = 0; i < 3; ++i) stack.push(i);
  CHECK(stack.size() == 3);
  CHECK(stack[0] == 0);
  CHECK(stack.pop() == 2);
  stack.push(7);
  CHECK(stack.pop() == 7);
  CHECK(stack.pop() == 1);
  CHECK(stack.pop() == 0);
  CHECK(stack.empty());
}
