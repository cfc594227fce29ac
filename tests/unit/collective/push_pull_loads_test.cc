// Push-pull by given loads of the services: whole rounds. service_loads_test.cc and partition_grid_test.cc have the
// cut.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "collective/push_pull.h"
#include "push_pull_job.h"

namespace {

using namespace mlt::test;

std::vector<std::optional<ServiceLoads>> alike(std::uint16_t workers, const std::vector<double>& loads) {
  return std::vector<std::optional<ServiceLoads>>(workers, ServiceLoads(loads));
}

}  // namespace

TEST_CASE("push_pull__each_service_sums_its_part_of_a_tensor") {
  const std::uint16_t workers = 3;
  const std::vector<double> loads{1, 0, 4};
  Job job(SimulationConfig{}, workers, 3, {}, 0, alike(workers, loads));
  const std::size_t elements = 500'000;
  for (std::size_t iteration = 0; iteration < 2; ++iteration) {
    std::vector<std::vector<float>> tensors;
    for (std::uint16_t worker = 0; worker < workers; ++worker) tensors.push_back(gradient(elements, worker, iteration));
    const auto pushed = tensors;
    for (std::uint16_t worker = 0; worker < workers; ++worker) job.start(worker, push_pull_of(1, tensors[worker], 0.0));
    for (std::uint16_t worker = 0; worker < workers; ++worker) {
      REQUIRE(job.run_until_done(worker, iteration + 1));
      REQUIRE(job.done(worker)[iteration].error == "");
      CHECK(tensors[worker] == tensors[0]);
    }
    bool exact = true;
    for (std::size_t i = 0; i < elements; ++i) {
      exact = exact && tensors[0][i] == (pushed[0][i] + pushed[1][i] + pushed[2][i]) * (1.0F / 3.0F);
    }
    CHECK(exact);
  }
  // Twice the buffer, of what it sums.
  const auto held = [&](std::uint16_t service) { return static_cast<double>(job.summation(service).bytes_held()); };
  CHECK(held(4) == 0);
  CHECK(held(3) > 0);
  CHECK(std::abs(held(5) / held(3) - 4) < 0.1);
}

TEST_CASE("push_pull__small_tensors_of_many_keys_go_to_services_by_their_loads") {
  Job job(SimulationConfig{}, 2, 3, {}, 0, alike(2, {1, 0, 3}));
  std::vector<std::vector<float>> tensors(2, std::vector<float>(10, 1.0F));
  for (std::uint64_t key = 0; key < 40; ++key) {
    for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(key, tensors[worker], 0.0));
    for (std::uint16_t worker = 0; worker < 2; ++worker) {
      REQUIRE(job.run_until_done(worker, key + 1));
      REQUIRE(job.done(worker)[key].error == "");
    }
  }
  CHECK(job.summation(3).rounds_summed() == 0);
  CHECK(job.summation(2).rounds_summed() >= 8);
  CHECK(job.summation(2).rounds_summed() <= 12);
  CHECK(job.summation(2).rounds_summed() + job.summation(4).rounds_summed() == 40);
}

// Two workers may register the same partition at different services, where neither learns of the other.
TEST_CASE("push_pull__loads_that_differ_fail_at_every_worker_at_once_and_name_both") {
  const std::optional<ServiceLoads> first(std::in_place, std::vector<double>{1, 0}),
      second(std::in_place, std::vector<double>{0, 1});
  for (const std::size_t elements : {std::size_t{10}, std::size_t{300'000}}) {
    for (const bool has_none : {false, true}) {
      CAPTURE(elements);
      CAPTURE(has_none);
      Job job(SimulationConfig{}, 2, 2, {}, 0, {first, has_none ? std::nullopt : second});
      std::vector<std::vector<float>> tensors(2, std::vector<float>(elements, 1.0F));
      for (std::uint16_t worker = 0; worker < 2; ++worker) job.start(worker, push_pull_of(4, tensors[worker], 0.0));
      const auto begun = job.network().now();
      for (std::uint16_t worker = 0; worker < 2; ++worker) {
        REQUIRE(job.run_until_done(worker, 1));
        const PushPullDone& done = job.done(worker)[0];
        CHECK(done.status == mlt::core::CompletionStatus::kSizeMismatch);
        CHECK(done.error.find("rank 0 cuts its tensors by the loads 100, 0 %") != std::string::npos);
        CHECK(done.error.find(has_none ? "rank 1 cuts its tensors by equal loads" : "the loads 0, 100 %") !=
              std::string::npos);
        CHECK(done.error.find("every worker the same loads") != std::string::npos);
      }
      CHECK(job.network().now() - begun < 10 * mlt::base::kMillisecond);
    }
  }
}

TEST_CASE("push_pull__a_service_refuses_elements_that_the_loads_do_not_give") {
  Job job(SimulationConfig{}, 2, 2, {}, 0, alike(2, {1, 3}));
  std::vector<float> tensor(1'000'000, 1.0F);
  job.start(0, push_pull_of(1, tensor, 0.0));
  job.run_for(mlt::base::kMillisecond);
  Register shape;  // of equal loads
  shape.key = 2;
  shape.elements = 500'000;
  shape.tensor_elements = 1'000'000;
  shape.segment_bytes = 1'432;
  shape.services = 2;
  job.summation(3).on_message(job.network().now(), 0, shape);
  job.start(1, push_pull_of(1, tensor, 0.0));
  for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(job.run_until_done(worker, 1));
  CHECK(job.summation(3).bytes_held() > 0);
  std::vector<float> whole(1'000'000, 1.0F);
  CHECK(job.done(0)[0].error == "");
}
