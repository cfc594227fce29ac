#include "collective/reported_gone.h"

#include <doctest/doctest.h>

#include <string>

#include "recording_verbs.h"

namespace {

using namespace mlt::collective;
using mlt::test::RecordingVerbs;

}  // namespace

TEST_CASE("reported_gone__logs_each_worker_once_and_only_of_a_service") {
  RecordingVerbs verbs;
  const ServiceChoice services({4, 5}, 0);
  ReportedGone gone(services, verbs);
  gone.on_message(3, Gone{1, 2});  // from a worker
  gone.on_message(4, Gone{5, 2});  // of a service
  CHECK(gone.count() == 0);
  gone.on_message(4, Gone{1, 2});
  gone.on_message(5, Gone{1, 2});
  CHECK(gone.count() == 1);
  REQUIRE(verbs.notices.size() == 1);
  CHECK(verbs.notices[0].find("worker rank 1") == 0);
  CHECK(verbs.notices[0].find("1 of at most 2") != std::string::npos);
}

TEST_CASE("abort_text__names_the_rank_its_cause_and_those_before_it") {
  RecordingVerbs verbs;
  const ServiceChoice services({4}, 0);
  ReportedGone gone(services, verbs);
  gone.on_message(4, Gone{1, 1});
  gone.on_message(4, Gone{2, 1});
  verbs.errors[1] = "rank 1 was killed";
  const std::string text = gone.abort_text(7, 2);
  CHECK(text.find("key 7 cannot be summed without worker rank 2") == 0);
  CHECK(text.find("before it rank 1 was killed") != std::string::npos);
  verbs.errors[2] = "rank 2 is out of memory";
  CHECK(gone.abort_text(7, 2).find("rank 2 is out of memory (key 7") == 0);
}
