#include "engine/operation_table.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <chrono>
#include <optional>
#include <thread>

#include "engine/deadline.h"
#include "engine/driving.h"

using mlt::Completion;
using Table = mlt::engine::OperationTable<Completion>;

namespace {

// Nobody drives: what is waited for is ended by the test itself.
struct StillLoop final : mlt::engine::DrivenLoop {
  bool step(bool) override { return false; }
  bool run_posts() override { return false; }
  mlt::base::TimeNs next_timeout() const override { return mlt::base::kNever; }
  Descriptors descriptors() const override { return {}; }
  bool prepare_to_wait() override { return true; }
  bool has_posts() const override { return false; }
  bool has_operations() const override { return false; }
};

template <typename Id>
Completion ended(Id id) {
  Completion done;
  done.operation = id;
  return done;
}

}  // namespace

TEST_CASE("forget__withdraws_an_operation_that_close_has_ended_already") {
  StillLoop still;
  mlt::engine::Driving driving(still, 0);
  Table table(4, driving);
  REQUIRE(table.begin(1, {}) != nullptr);
  REQUIRE(table.begin(2, {}) != nullptr);
  table.finish_all([](mlt::OperationId id, const auto&) { return ended(id); });
  table.forget(1);
  const auto taken = table.take_any();  // walked over the place of an entry that was gone
  REQUIRE(taken.has_value());
  CHECK(taken->operation == 2);
  CHECK_FALSE(table.take_any().has_value());
  CHECK(table.size() == 0);
}

TEST_CASE("begin__is_refused_once_everything_was_ended") {
  StillLoop still;
  mlt::engine::Driving driving(still, 0);
  Table table(4, driving);
  table.finish_all([](mlt::OperationId id, const auto&) { return ended(id); });
  CHECK(table.begin(1, {}) == nullptr);
}

TEST_CASE("finish__wakes_who_waits_for_that_operation_and_nobody_else") {
  constexpr mlt::OperationId kOthers = 50;
  StillLoop still;
  mlt::engine::Driving driving(still, 0);
  Table table(kOthers + 1, driving);
  for (mlt::OperationId id = 0; id <= kOthers; ++id) REQUIRE(table.begin(id, {}) != nullptr);
  std::optional<Completion> got;
  long times_asleep = 0;
  std::thread waiter([&] {
    Completion done;
    const auto result = table.wait(kOthers, mlt::engine::deadline_after(-1), done);
    if (result == Table::WaitResult::kDone) got = done;
    rusage used{};
    getrusage(RUSAGE_THREAD, &used);
    times_asleep = used.ru_nvcsw;
  });
  for (mlt::OperationId id = 0; id <= kOthers; ++id) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    table.finish(ended(id));
  }
  waiter.join();
  REQUIRE(got.has_value());
  CHECK(got->operation == kOthers);
  CHECK(times_asleep < kOthers / 2);
  CHECK(table.size() == kOthers);
}
