#include "io/run_view.h"

#include <doctest/doctest.h>

#include <vector>

#include "unit/io/datagrams.h"

using namespace mlt;
using io_test::TestRun;

TEST_CASE("DatagramCursor__visits_every_datagram_with_its_slices") {
  const TestRun run(1, 5, 4, 300, 12);
  io::DatagramCursor cursor(run.get());
  io::DatagramView view;
  for (std::uint32_t i = 0; i < 4; ++i) {
    REQUIRE(cursor.next(view));
    CHECK(view.bytes == (i == 3 ? 12 : 300));
    CHECK(view.slices.size() == (i == 3 ? 1 : 2));
    std::vector<std::byte> copy(view.bytes);
    CHECK(io::copy_datagram(view, copy.data()) == view.bytes);
    CHECK(copy == TestRun::content(5 + i, view.bytes));
  }
  CHECK(!cursor.next(view));
}

TEST_CASE("CopiedRun__keeps_the_bytes_and_gives_up_its_front") {
  io::CopiedRun copied;
  CHECK(copied.empty());
  {
    TestRun run(3, 0, 10, 200, 50);
    run.get().dscp = 11;
    run.get().ecn = base::Ecn::kEct0;
    copied.assign(run.get(), 4);
  }
  copied.remove_front(2);
  const base::DatagramRun& rest = copied.run();
  CHECK(rest.peer == 3);
  CHECK(rest.dscp == 11);
  CHECK(rest.ecn == base::Ecn::kEct0);
  CHECK(rest.datagram_count == 4);
  CHECK(rest.total_bytes == 3 * 200 + 50);
  io::DatagramCursor cursor(rest);
  io::DatagramView view;
  for (std::uint32_t i = 6; i < 10; ++i) {
    REQUIRE(cursor.next(view));
    std::vector<std::byte> copy(view.bytes);
    io::copy_datagram(view, copy.data());
    CHECK(copy == TestRun::content(i, view.bytes));
  }
  copied.remove_front(4);
  CHECK(copied.empty());
}
