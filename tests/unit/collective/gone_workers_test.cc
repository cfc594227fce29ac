#include "collective/gone_workers.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "service_world.h"

namespace {

using namespace mlt::collective;
using mlt::test::ServiceWorld;

}  // namespace

TEST_CASE("add__false_beyond_the_bound_and_when_no_worker_is_left") {
  ServiceWorld one(4, 2);
  CHECK(one.gone.add(1));
  CHECK(one.gone.may_lose(1));
  CHECK(!one.gone.may_lose(2));
  CHECK(one.gone.add(3));
  CHECK(one.gone.live() == 2);
  CHECK(!one.gone.may_lose(1));
  CHECK(one.gone.breaking() == -1);
  CHECK(!one.gone.add(0));
  CHECK(!one.gone.add(2));
  CHECK(one.gone.breaking() == 0);
  ServiceWorld all(2, 2);
  CHECK(all.gone.add(0));
  CHECK(!all.gone.may_lose(1));
  CHECK(!all.gone.add(1));
  ServiceWorld none(2, 0);
  CHECK(!none.gone.add(1));
}

TEST_CASE("report__names_each_worker_once_with_its_cause") {
  ServiceWorld one(4, 3);
  one.verbs.errors[1] = "rank 1 was killed";
  one.gone.add(1);
  one.gone.add(2);
  one.gone.report();
  REQUIRE(one.verbs.notices.size() == 2);
  CHECK(one.verbs.notices[0].find("rank 1 was killed") == 0);
  CHECK(one.verbs.notices[1].find("worker rank 2 was excluded by the others") == 0);
  CHECK(one.verbs.notices[1].find("2 of at most 3 workers gone") != std::string::npos);
  one.gone.report();
  CHECK(one.verbs.notices.size() == 2);
  one.gone.inform(0, 2);
  CHECK(one.verbs.sent.back().first == 0);
  CHECK(std::get<Gone>(one.verbs.last).rank == 2);
  CHECK(std::get<Gone>(one.verbs.last).max_dead_workers == 3);
}

TEST_CASE("is_undecided__from_the_loss_of_a_connection_until_the_worker_is_gone") {
  ServiceWorld one(4, 1);
  CHECK(!one.gone.is_undecided(2));
  one.survivors.on_lost(0, 2);
  CHECK(one.gone.is_undecided(2));
  one.gone.add(2);
  CHECK(!one.gone.is_undecided(2));
}
