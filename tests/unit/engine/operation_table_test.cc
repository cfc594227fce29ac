#include "engine/operation_table.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/time.h"
#include "engine/deadline.h"
#include "io/os/clock.h"
#include "unit/engine/still_loop.h"

using mlt::Completion;
using mlt::engine_test::StillLoop;
using Table = mlt::engine::OperationTable;

namespace {

struct OperationTableWorld {
  explicit OperationTableWorld(std::uint32_t max_operations = 4) : table(max_operations, driving) {}

  StillLoop still;
  mlt::engine::Driving driving{still, 0};
  Table table;
};

Completion ended(mlt::OperationId id) {
  Completion done;
  done.operation = id;
  return done;
}

}  // namespace

TEST_CASE("forget__withdraws_an_operation_that_close_has_ended_already") {
  OperationTableWorld world;
  Table& table = world.table;
  const mlt::OperationId first = table.begin({}).id;
  const mlt::OperationId second = table.begin({}).id;
  table.finish_all([](const std::string& name) { return name; });
  CHECK(table.forget(first) == "receive of tag 0 (0 bytes of uint8) from rank 0");
  const auto taken = table.take_any();  // walked over the place of an entry that was gone
  REQUIRE(taken.has_value());
  CHECK(taken->operation == second);
  CHECK_FALSE(table.take_any().has_value());
  CHECK(table.size() == 0);
}

TEST_CASE("begin__is_refused_once_everything_was_ended") {
  OperationTableWorld world;
  Table& table = world.table;
  table.finish_all([](const std::string& name) { return name; });
  CHECK(table.begin({}).operation == nullptr);
}

TEST_CASE("begin__is_refused_at_the_limit_and_leaves_the_operation_as_it_was") {
  OperationTableWorld world(1);
  Table& table = world.table;
  const mlt::OperationId first = table.begin({}).id;
  mlt::engine::Operation operation;
  operation.tag = 9;
  operation.lent = std::make_shared<int>(1);
  CHECK(table.begin(std::move(operation)).operation == nullptr);
  CHECK(operation.lent != nullptr);
  CHECK(operation.name() == "receive of tag 9 (0 bytes of uint8) from rank 0");
  table.forget(first);
  CHECK(table.begin(std::move(operation)).operation != nullptr);
}

TEST_CASE("begin_all__registers_all_or_none") {
  OperationTableWorld world(4);
  Table& table = world.table;
  const mlt::OperationId first = table.begin({}).id;
  std::vector<mlt::engine::Operation> operations(4);
  for (std::size_t i = 0; i < operations.size(); ++i) operations[i].tag = i;
  std::vector<Table::Begun> begun(4);
  CHECK_FALSE(table.begin_all(operations, begun));
  CHECK(table.size() == 1);
  CHECK(operations[3].tag == 3);
  table.forget(first);
  REQUIRE(table.begin_all(operations, begun));
  CHECK(table.size() == 4);
  CHECK(table.in_progress() == 4);
  for (std::size_t i = 0; i < begun.size(); ++i) CHECK(begun[i].operation->tag == i);
  table.finish_all([](const std::string& name) { return name; });
  for (int i = 0; i < 4; ++i) CHECK(table.take_any().has_value());
  CHECK_FALSE(table.begin_all({operations.data(), 1}, begun));
}

TEST_CASE("wait_all__wakes_once_when_the_last_has_ended_and_takes_none_before") {
  OperationTableWorld world(8);
  Table& table = world.table;
  std::vector<mlt::OperationId> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(table.begin({}).id);
  std::vector<Completion> done(ids.size());
  mlt::OperationId unknown = 0;
  table.finish(ended(ids[3]));
  CHECK(table.wait_all(ids, 1'000'000, nullptr, done, unknown) == Table::WaitResult::kTimeout);
  CHECK(table.is_done(ids[3]) == true);
  CHECK(table.is_unclaimed(ids[0]));
  CHECK_FALSE(table.is_unclaimed(ids[3]));
  // While a thread waits for them they are no other's, those that have ended included.
  int calls = 0;
  const auto within = [&] {
    ++calls;
    CHECK_FALSE(table.is_unclaimed(ids[0]));
    CHECK_FALSE(table.take_any().has_value());
    mlt::OperationId other = 0;
    std::vector<Completion> one(1);
    CHECK(table.wait_all({ids.data(), 1}, 0, nullptr, one, other) == Table::WaitResult::kUnknown);
    CHECK(other == ids[0]);
    if (calls == 1) {
      for (const std::size_t i : {4U, 1U, 0U}) table.finish(ended(ids[i]));
    } else {
      table.finish(ended(ids[2]));
    }
  };
  CHECK(table.wait_all(ids, -1, within, done, unknown) == Table::WaitResult::kDone);
  CHECK(calls == 2);
  for (std::size_t i = 0; i < ids.size(); ++i) CHECK(done[i].operation == ids[i]);
  CHECK(table.size() == 0);
}

TEST_CASE("wait_all__of_an_unknown_one_or_one_named_twice_leaves_all_to_other_takers") {
  OperationTableWorld world(8);
  Table& table = world.table;
  const mlt::OperationId first = table.begin({}).id, second = table.begin({}).id;
  table.finish(ended(first));
  std::vector<Completion> done(3);
  for (const mlt::OperationId wrong : {first, second, second + 1, mlt::OperationId{0}}) {
    const std::vector<mlt::OperationId> ids{first, second, wrong};
    mlt::OperationId unknown = 7;
    CHECK(table.wait_all(ids, -1, nullptr, done, unknown) == Table::WaitResult::kUnknown);
    CHECK(unknown == wrong);
    CHECK(table.is_unclaimed(second));
  }
  const auto leave = [] { throw std::runtime_error("enough"); };
  mlt::OperationId unknown = 0;
  const std::vector<mlt::OperationId> both{first, second};
  CHECK_THROWS_AS(table.wait_all(both, -1, leave, {done.data(), 2}, unknown), std::runtime_error);
  CHECK(table.take_any()->operation == first);
  CHECK(table.is_unclaimed(second));
}

TEST_CASE("wait_all__of_many_that_have_ended_does_not_slow_down_other_takers") {
  constexpr std::size_t kMany = 50'000;
  OperationTableWorld world(kMany + 2);
  Table& table = world.table;
  std::vector<mlt::OperationId> ids;
  for (std::size_t i = 0; i <= kMany; ++i) ids.push_back(table.begin({}).id);
  const mlt::OperationId own = table.begin({}).id;
  for (std::size_t i = 0; i < kMany / 2; ++i) table.finish(ended(ids[i]));  // before the wait, and during it
  mlt::base::DurationNs spent = 0;
  const auto within = [&] {
    for (std::size_t i = kMany / 2; i < kMany; ++i) table.finish(ended(ids[i]));
    const mlt::base::TimeNs began = mlt::io::monotonic_now();
    bool has_any = false;
    for (std::size_t i = 0; i < kMany; ++i) has_any |= table.has_any();
    spent = mlt::io::monotonic_now() - began;
    CHECK_FALSE(has_any);
    table.finish(ended(own));
    CHECK(table.take_any()->operation == own);
    table.finish(ended(ids.back()));
  };
  std::vector<Completion> done(ids.size());
  mlt::OperationId unknown = 0;
  CHECK(table.wait_all(ids, -1, within, done, unknown) == Table::WaitResult::kDone);
  // A walk over all that are held would take a hundred times as long.
  CHECK(spent < mlt::base::kSecond);
  CHECK(table.size() == 0);
}

TEST_CASE("wait_all__that_ends_early_returns_what_has_ended_to_other_takers") {
  OperationTableWorld world(8);
  Table& table = world.table;
  std::vector<mlt::OperationId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(table.begin({}).id);
  for (const std::size_t i : {2U, 0U}) table.finish(ended(ids[i]));
  std::vector<Completion> done(3);
  mlt::OperationId unknown = 0;
  const std::vector<mlt::OperationId> some{ids[0], ids[1], ids[2]};
  CHECK(table.wait_all(some, 1'000'000, nullptr, done, unknown) == Table::WaitResult::kTimeout);
  std::vector<mlt::OperationId> taken;
  table.finish(ended(ids[1]));
  while (const auto one = table.take_any()) taken.push_back(one->operation);
  CHECK(taken == std::vector<mlt::OperationId>{ids[0], ids[2], ids[1]});
  CHECK(table.is_unclaimed(ids[3]));
}

TEST_CASE("name__of_a_barrier_has_no_size") {
  mlt::engine::Operation operation;
  operation.verb = mlt::Verb::kBarrier;
  operation.members = 3;
  CHECK(operation.name() == "barrier over 3 ranks");
}

TEST_CASE("id__names_no_other_operation_after_its_own_was_taken") {
  OperationTableWorld world;
  Table& table = world.table;
  const mlt::OperationId first = table.begin({}).id;
  table.finish(ended(first));
  REQUIRE(table.take_any().has_value());
  const mlt::OperationId second = table.begin({}).id;  // in the same place
  CHECK(second > first);
  CHECK_FALSE(table.is_done(first).has_value());
  table.finish(ended(first));
  CHECK(table.is_done(second) == false);
  CHECK(table.name(first).empty());
}

TEST_CASE("lent__comes_back_with_the_completion_or_after_the_end_of_all") {
  OperationTableWorld world;
  Table& table = world.table;
  const auto lent = std::make_shared<int>(1);
  std::vector<mlt::OperationId> ids;
  for (int i = 0; i < 3; ++i) {
    mlt::engine::Operation operation;
    operation.lent = lent;
    ids.push_back(table.begin(std::move(operation)).id);
  }
  CHECK(table.lending() == 3);
  table.finish(ended(ids[0]));
  CHECK(table.take_any()->lent == lent);
  table.forget(ids[1]);
  CHECK(lent.use_count() == 2);
  CHECK(table.take_lent().empty());  // it is under way
  table.finish_all([](const std::string& name) { return name; });
  CHECK(table.take_lent().size() == 1);
  CHECK(table.lending() == 0);
  CHECK(lent.use_count() == 1);
  CHECK(table.take_any().has_value());
}

TEST_CASE("watch__leaves_the_completion_to_next_watched_and_to_who_waits_for_it") {
  OperationTableWorld world;
  Table& table = world.table;
  const mlt::OperationId watched = table.begin({}).id;
  const mlt::OperationId waited = table.begin({}).id;
  REQUIRE(table.watch(watched));
  REQUIRE(table.watch(waited));
  std::thread ender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the wait has begun: no event shows that
    table.finish(ended(waited));
    table.finish(ended(watched));
  });
  Completion done;
  CHECK(table.wait(waited, -1, nullptr, done) == Table::WaitResult::kDone);
  CHECK_FALSE(table.take_any().has_value());
  const auto taken = table.next_watched(mlt::engine::deadline_after(10'000'000'000));
  ender.join();
  REQUIRE(taken.has_value());
  CHECK(taken->operation == watched);
  CHECK_FALSE(table.watch(watched));
  CHECK_FALSE(table.next_watched(mlt::engine::deadline_after(1'000'000)).has_value());
}

TEST_CASE("test__takes_what_ended_and_knows_what_was_taken") {
  OperationTableWorld world;
  Table& table = world.table;
  const mlt::OperationId id = table.begin({}).id;
  Completion done;
  CHECK(table.test(id, done) == Table::WaitResult::kTimeout);
  table.finish(ended(id));
  CHECK(table.test(id, done) == Table::WaitResult::kDone);
  CHECK(done.operation == id);
  CHECK(table.test(id, done) == Table::WaitResult::kUnknown);
  CHECK(table.test(0, done) == Table::WaitResult::kUnknown);
  const mlt::OperationId next = table.begin({}).id;  // in the same record
  CHECK(table.test(id, done) == Table::WaitResult::kUnknown);
  const auto within = [&] {
    CHECK(table.test(next, done) == Table::WaitResult::kUnknown);  // it is the waiting thread's
    table.finish(ended(next));
    CHECK(table.test(next, done) == Table::WaitResult::kUnknown);
  };
  CHECK(table.wait(next, -1, within, done) == Table::WaitResult::kDone);
}

TEST_CASE("is_unclaimed__is_true_while_an_operation_is_in_progress_and_no_thread_waits_for_it") {
  OperationTableWorld world(2);
  Table& table = world.table;
  Completion done;
  const mlt::OperationId id = table.begin({}).id;
  CHECK(table.is_unclaimed(id));
  CHECK_FALSE(table.is_unclaimed(0));
  CHECK_FALSE(table.is_unclaimed(id + 1));           // no such place yet
  CHECK_FALSE(table.is_unclaimed(id + (1U << 17)));  // past the limit
  CHECK_FALSE(table.is_unclaimed(id + (1U << 18)));  // a later operation's
  const auto leave = [&] {
    CHECK_FALSE(table.is_unclaimed(id));
    throw std::runtime_error("enough");
  };
  CHECK_THROWS_AS(table.wait(id, -1, leave, done), std::runtime_error);
  CHECK(table.is_unclaimed(id));
  CHECK(table.wait(id, 1'000'000, nullptr, done) == Table::WaitResult::kTimeout);
  CHECK(table.is_unclaimed(id));
  table.finish(ended(id));
  CHECK_FALSE(table.is_unclaimed(id));
  REQUIRE(table.take_any().has_value());
  const mlt::OperationId next = table.begin({}).id;  // in the same record
  CHECK(table.is_unclaimed(next));
  CHECK_FALSE(table.is_unclaimed(id));
  table.forget(next);
  CHECK_FALSE(table.is_unclaimed(next));
  const mlt::OperationId last = table.begin({}).id;
  table.finish_all([](const std::string& name) { return name; });
  CHECK_FALSE(table.is_unclaimed(last));
}

TEST_CASE("is_unclaimed__is_read_by_a_thread_while_another_ends_operations") {
  OperationTableWorld world;
  Table& table = world.table;
  for (int i = 0; i < 200; ++i) {
    const mlt::OperationId id = table.begin({}).id;
    std::thread ending([&] { table.finish(ended(id)); });
    while (table.is_unclaimed(id)) std::this_thread::yield();
    Completion done;
    CHECK(table.test(id, done) == Table::WaitResult::kDone);
    ending.join();
  }
}

TEST_CASE("next_any__is_woken_by_what_it_may_take_and_not_by_watched_operations") {
  constexpr std::size_t kWatched = 50;
  OperationTableWorld world(kWatched + 2);
  Table& table = world.table;
  const mlt::OperationId own = table.begin({}).id;
  std::vector<mlt::OperationId> watched;
  for (std::size_t i = 0; i < kWatched; ++i) {
    watched.push_back(table.begin({}).id);
    REQUIRE(table.watch(watched.back()));
  }
  std::optional<Completion> got;
  long times_asleep = 0;
  std::thread taker([&] {
    got = table.next_any(std::nullopt);
    rusage used{};
    getrusage(RUSAGE_THREAD, &used);
    times_asleep = used.ru_nvcsw;
  });
  for (const mlt::OperationId id : watched) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // a taker that was woken too early sleeps again
    table.finish(ended(id));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  table.finish(ended(own));
  taker.join();
  REQUIRE(got.has_value());
  CHECK(got->operation == own);
  CHECK(times_asleep < static_cast<long>(kWatched) / 2);
  for (const mlt::OperationId id : watched) {
    const auto one = table.next_watched(std::nullopt);
    REQUIRE(one.has_value());
    CHECK(one->operation == id);
  }
}

TEST_CASE("watch__gives_a_completion_that_nobody_took_to_a_thread_that_waits_already") {
  OperationTableWorld world;
  Table& table = world.table;
  const mlt::OperationId id = table.begin({}).id;
  table.finish(ended(id));
  std::optional<Completion> got;
  std::thread watcher([&] { got = table.next_watched(mlt::engine::deadline_after(10'000'000'000)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the wait has begun: no event shows that
  CHECK(table.watch(id));
  watcher.join();
  REQUIRE(got.has_value());
  CHECK(got->operation == id);
}

TEST_CASE("next_any__ends_with_the_table_and_in_time") {
  OperationTableWorld world;
  Table& table = world.table;
  CHECK_FALSE(table.next_any(mlt::engine::deadline_after(1'000'000)).has_value());
  const mlt::OperationId id = table.begin({}).id;
  std::vector<std::optional<Completion>> got(2);
  std::vector<std::thread> takers;
  for (auto& one : got) takers.emplace_back([&] { one = table.next_any(std::nullopt); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the waits have begun: no event shows that
  table.finish_all([](const std::string& name) { return name; });
  for (std::thread& taker : takers) taker.join();
  REQUIRE(got[0].has_value() != got[1].has_value());
  CHECK((got[0] ? got[0] : got[1])->operation == id);
}

TEST_CASE("wait__calls_now_and_then_and_lets_it_end_the_wait") {
  OperationTableWorld world;
  Table& table = world.table;
  const mlt::OperationId id = table.begin({}).id;
  Completion done;
  int calls = 0;
  const auto leave = [&] {
    CHECK_FALSE(table.take_any().has_value());
    if (++calls == 2) throw std::runtime_error("enough");
  };
  CHECK_THROWS_AS(table.wait(id, -1, leave, done), std::runtime_error);
  CHECK(calls == 2);
  CHECK(table.wait(id, 1'000'000, leave, done) == Table::WaitResult::kTimeout);
  const auto end = [&] {
    table.finish(ended(id));
    CHECK_FALSE(table.take_any().has_value());  // it is the waiter's
  };
  CHECK(table.wait(id, -1, end, done) == Table::WaitResult::kDone);
  CHECK(table.wait(id, -1, end, done) == Table::WaitResult::kUnknown);
}

TEST_CASE("finish__wakes_who_waits_for_that_operation_and_nobody_else") {
  constexpr std::size_t kOthers = 50;
  OperationTableWorld world(kOthers + 1);
  Table& table = world.table;
  std::vector<mlt::OperationId> ids;
  for (std::size_t i = 0; i <= kOthers; ++i) ids.push_back(table.begin({}).id);
  std::optional<Completion> got;
  long times_asleep = 0;
  std::thread waiter([&] {
    Completion done;
    const auto result = table.wait(ids.back(), -1, nullptr, done);
    if (result == Table::WaitResult::kDone) got = done;
    rusage used{};
    getrusage(RUSAGE_THREAD, &used);
    times_asleep = used.ru_nvcsw;
  });
  for (const mlt::OperationId id : ids) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // a waiter that was woken too early sleeps again
    table.finish(ended(id));
  }
  waiter.join();
  REQUIRE(got.has_value());
  CHECK(got->operation == ids.back());
  CHECK(times_asleep < static_cast<long>(kOthers / 2));
  CHECK(table.size() == kOthers);
}
