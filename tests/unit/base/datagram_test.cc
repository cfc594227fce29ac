#include "base/datagram.h"

#include <doctest/doctest.h>

#include <memory>

using namespace mlt;

TEST_CASE("traffic_class__puts_the_dscp_above_the_ecn_bits") {
  auto run = std::make_unique<base::DatagramRun>();
  CHECK(run->traffic_class() == 0);
  run->dscp = 46;
  run->ecn = base::Ecn::kEct0;
  CHECK(run->traffic_class() == 0xBA);
  run->dscp = 63;
  run->ecn = base::Ecn::kCe;
  CHECK(run->traffic_class() == 0xFF);
}
