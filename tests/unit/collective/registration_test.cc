// The rules by themselves; summation_test.cc has what a service does with them.
#include "collective/registration.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace {

using namespace mlt::collective;

Register registration() {
  Register shape;
  shape.elements = 10;
  shape.tensor_elements = 10;
  shape.segment_bytes = 8;
  return shape;
}

const ServiceLoads kEqual(1);

}  // namespace

TEST_CASE("rejection__of_fields_out_of_range_another_cut_another_grid_and_other_segments") {
  CHECK(rejection(1, registration(), kEqual, 8, nullptr) == "");
  Register shape = registration();
  shape.loss_bound = 1.0;
  CHECK(rejection(1, shape, kEqual, 8, nullptr).find("out of range") != std::string::npos);
  shape = registration();
  shape.elements = 9;
  CHECK(rejection(1, shape, kEqual, 8, nullptr).find("rank 1 registers 9 elements as partition 0 of 10") !=
        std::string::npos);
  CHECK(rejection(1, registration(), kEqual, 16, nullptr).find("its connection has segments of 16") !=
        std::string::npos);
  Move move;  // five cells
  move.cells.resize(1);
  CHECK(rejection(1, registration(), kEqual, 8, &move) == "");
  move.cells.resize(2);
  CHECK(rejection(1, registration(), kEqual, 8, &move).find("other segments") != std::string::npos);
}

TEST_CASE("rejection__of_elements_that_the_loads_do_not_give") {
  const ServiceLoads loads(std::vector<double>{1, 3});
  Register shape = registration();
  shape.tensor_elements = 1'048'576;
  shape.services = 2;
  shape.elements = 262'144;
  CHECK(rejection(1, shape, loads, 8, nullptr) == "");
  const ServiceLoads others(std::vector<double>{1, 1.1});
  CHECK(rejection(1, shape, others, 8, nullptr).find("of 1048576 over 2 services with the loads 47.62, 52.38 %") !=
        std::string::npos);
  shape.partition = 4;
  CHECK(rejection(1, shape, loads, 8, nullptr).find("over 2 services with the loads 25, 75 %, which are not cut so") !=
        std::string::npos);
  shape.services = 3;
  CHECK(rejection(1, shape, loads, 8, nullptr).find("another number of services") != std::string::npos);
}

TEST_CASE("difference__names_both_workers_and_both_tensors") {
  Register other = registration();
  CHECK(difference(2, other, 0, registration()) == "");
  other.average = false;
  const std::string text = difference(2, other, 0, registration());
  CHECK(text.find("rank 2 has 10 elements over 1 service, loss bound 0, sum") != std::string::npos);
  CHECK(text.find("rank 0 has 10 elements over 1 service, loss bound 0, average") != std::string::npos);
}
