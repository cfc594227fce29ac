// The oracle of drawn collectives: right results pass, and each kind of wrong one is found.
#include "sim/collective_call.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

using namespace mlt;
using namespace mlt::sim;
using collective::CollectiveKind;
using collective::CollectiveRequest;

namespace {

CallPlan plan_of(CollectiveKind kind, double loss_bound = 0) {
  CallPlan plan;
  plan.kind = kind;
  plan.elements = 5;
  plan.root = 1;
  plan.loss_bound = loss_bound;
  plan.seed = 3;
  return plan;
}

void set(const CollectiveRequest& request, std::size_t element, float value) {
  std::memcpy(request.output.data() + element * sizeof value, &value, sizeof value);
}

}  // namespace

TEST_CASE("take_result__finds_what_differs_from_the_inputs") {
  const GroupPlan group{{4, 7}, 0};
  CallPlan plan = plan_of(CollectiveKind::kBroadcast);
  CollectiveCall call(plan, group);
  const CollectiveRequest root = call.request(1, 1), other = call.request(0, 2);
  CHECK(root.root == 7);
  std::ranges::copy(root.output, other.output.begin());
  CHECK(call.take_result(0, 0) == "");
  CHECK(call.take_result(1, 0) == "");
  CollectiveCall wrong(plan, group);
  CHECK(wrong.take_result(0, 0).find("differs") != std::string::npos);  // nothing has arrived
  CHECK(wrong.take_result(1, 4) == "something is missing without a bound");
}

TEST_CASE("take_result__of_a_lossy_sum_counts_its_terms") {
  const GroupPlan group{{0, 1, 2}, 0};
  const CallPlan plan = plan_of(CollectiveKind::kAllReduce, 0.4);
  const auto result = [&](float value, std::uint64_t missing, float other = 0) {
    CollectiveCall call(plan, group);
    for (const std::size_t member : {0U, 1U}) {
      const CollectiveRequest request = call.request(member, 1);
      for (std::size_t i = 0; i < 5; ++i) set(request, i, member == 1 && other > 0 ? other : value);
    }
    const std::string first = call.take_result(0, missing);
    return first.empty() ? call.take_result(1, missing) : first;
  };
  CHECK(result(3, 0) == "");
  CHECK(result(2, 32) == "");
  CHECK(result(1, 32).find("10.000000 terms are missing of which 8.000000 may be") != std::string::npos);
  CHECK(result(4, 0).find("is 4.0") != std::string::npos);  // a term counted twice
  CHECK(result(0, 0).find("is 0.0") != std::string::npos);
  CHECK(result(2.5F, 0).find("is 2.5") != std::string::npos);
  CHECK(result(3, 0, 2).find("members end with other bits") != std::string::npos);
  CHECK(result(3, 36).find("36 bytes are missing") != std::string::npos);
}

TEST_CASE("take_result__of_a_lossy_sum_finds_terms_that_no_member_reports_missing") {
  const GroupPlan group{{0, 1, 2}, 0};
  const CallPlan plan = plan_of(CollectiveKind::kAllReduce, 0.4);
  const auto result = [&](std::uint64_t missing_at_last) {
    CollectiveCall call(plan, group);
    for (const std::size_t member : {0U, 1U, 2U}) {
      const CollectiveRequest request = call.request(member, 1);
      for (std::size_t i = 0; i < 5; ++i) set(request, i, i < 2 ? 1 : 3);  // four terms are missing
    }
    CHECK(call.take_result(0, 0) == "");
    CHECK(call.take_result(1, 0) == "");
    return call.take_result(2, missing_at_last);
  };
  CHECK(result(8) == "");  // two elements of a sum of two terms each
  CHECK(result(4).find("4.000000 terms are missing, and what all members report explains 2") != std::string::npos);
  CHECK(result(0).find("explains 0") != std::string::npos);
}

TEST_CASE("take_result__of_a_lossy_gather_is_what_was_passed_or_zero") {
  const GroupPlan group{{0, 1, 2}, 0};
  const CallPlan plan = plan_of(CollectiveKind::kAllGather, 0.2);  // one element of five
  const auto result = [&](std::size_t zeros, std::uint64_t missing, float odd = 0, std::size_t step = 5) {
    CollectiveCall call(plan, group);
    const CollectiveRequest to = call.request(0, 1);
    for (std::size_t from = 0; from < 3; ++from) {
      std::ranges::copy(call.request(from, 1).input, to.output.begin() + static_cast<std::ptrdiff_t>(from * 20));
    }
    for (std::size_t i = 0; i < zeros; ++i) set(to, 5 + i * step, 0);
    if (odd > 0) set(to, 14, odd);
    return call.take_result(0, missing);
  };
  CHECK(result(0, 0) == "");
  CHECK(result(2, 8) == "");
  CHECK(result(2, 4).find("2 elements are zero, and 4 bytes") != std::string::npos);
  CHECK(result(2, 8, 0, 1).find("2 elements of part 1 are missing of which 1 may be") != std::string::npos);
  CHECK(result(0, 0, 77).find("neither what was passed nor zero") != std::string::npos);
}

TEST_CASE("was_touched__finds_what_is_written_after_the_end") {
  const GroupPlan group{{0, 1}, 0};
  const CallPlan plan = plan_of(CollectiveKind::kAllReduce);
  CollectiveCall call(plan, group);
  const CollectiveRequest request = call.request(0, 1);
  CHECK_FALSE(call.was_touched(0));
  call.give_up(0);
  CHECK_FALSE(call.was_touched(0));
  set(request, 2, 1);
  CHECK(call.was_touched(0));
}

TEST_CASE("other_request__is_another_collective_of_the_same_group") {
  const GroupPlan group{{0, 1}, 5};
  const CallPlan gather = plan_of(CollectiveKind::kGather), barrier = plan_of(CollectiveKind::kBarrier);
  CHECK(CollectiveCall(gather, group).other_request(1).kind == CollectiveKind::kBarrier);
  CHECK(CollectiveCall(barrier, group).other_request(1).kind == CollectiveKind::kAllGather);
  CHECK(CollectiveCall(barrier, group).other_request(1).stream == 5);
}
