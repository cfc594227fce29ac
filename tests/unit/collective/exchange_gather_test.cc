// Gather over a bus without endpoints.
#include "collective/exchange.h"
#include "fake_bus.h"

using namespace mlt::test;

namespace {

CollectiveRequest request_of(std::span<const float> input, std::span<float> output, std::uint16_t root,
                             double loss_bound = 0) {
  CollectiveRequest request;
  request.operation = 1;
  request.kind = CollectiveKind::kGather;
  request.input = std::as_bytes(input);
  request.output = std::as_writable_bytes(output);
  request.root = root;
  request.loss_bound = loss_bound;
  return request;
}

}  // namespace

TEST_CASE("gather__the_root_gets_all_inputs_in_the_order_of_the_group") {
  for (const int count : {1, 2, 4}) {
    const auto n = static_cast<std::uint16_t>(count);
    for (const std::size_t elements : {std::size_t{0}, std::size_t{1}, std::size_t{1'100'000}}) {
      CAPTURE(n);
      CAPTURE(elements);
      const auto root = static_cast<std::uint16_t>(n / 2);
      const auto inputs = random_tensors(n, elements, n);
      std::vector<float> output(n * elements, -1.0F), expected;
      for (const auto& input : inputs) expected.insert(expected.end(), input.begin(), input.end());
      FakeBus bus({.ranks = n, .seed = elements + 1});
      for (std::uint16_t rank = 0; rank < n; ++rank) {
        bus.start(rank, request_of(inputs[rank], rank == root ? std::span(output) : std::span<float>(), root));
      }
      bus.run();
      for (std::uint16_t rank = 0; rank < n; ++rank) {
        REQUIRE(bus.done(rank).size() == 1);
        CHECK(bus.done(rank)[0].error == "");
      }
      CHECK(output == expected);
    }
  }
}

TEST_CASE("gather__the_root_may_have_its_input_in_place") {
  std::vector<float> output = {9, 9, 3, 4}, other = {1, 2};
  FakeBus bus({.ranks = 2, .seed = 1});
  bus.start(0, request_of(other, {}, 1));
  bus.start(1, request_of(std::span(output).subspan(2, 2), output, 1));
  bus.run();
  CHECK(output == std::vector<float>{1, 2, 3, 4});
}

TEST_CASE("gather__what_may_be_lost_becomes_zero_within_the_bound") {
  const std::size_t elements = 20'000;
  std::vector<std::vector<float>> inputs(4, std::vector<float>(elements, 1.0F));
  std::vector<float> output(4 * elements, 7.0F);
  FakeBus bus({.ranks = 4, .seed = 2, .lossy = true});
  for (std::uint16_t rank = 0; rank < 4; ++rank) {
    bus.start(rank, request_of(inputs[rank], rank == 0 ? std::span(output) : std::span<float>(), 0, 0.1));
  }
  bus.run();
  CHECK(bus.done(0)[0].status == mlt::core::CompletionStatus::kWithinBound);
  const auto zeros = static_cast<std::uint64_t>(std::ranges::count(output, 0.0F));
  CHECK(zeros > 0);
  CHECK(zeros == bus.lost_elements());
  CHECK(bus.done(0)[0].missing_bytes == 4 * zeros);
  CHECK(zeros <= 3 * elements / 10);
  CHECK(std::ranges::count(output, 1.0F) + static_cast<std::ptrdiff_t>(zeros) == 4 * static_cast<int>(elements));
}

TEST_CASE("gather__refuses_an_output_that_does_not_fit") {
  std::vector<float> input(5), output(9);
  CollectiveRequest request = request_of(input, output, 0);
  request.ranks = {0, 1};
  CHECK(check_request(request, 0).find("36 bytes; the inputs of 2 ranks have 40") != std::string::npos);
  CHECK(check_request(request, 1).find("only the root, rank 0, has an output") != std::string::npos);
  request.root = 2;
  CHECK(check_request(request, 0).find("not in the group") != std::string::npos);
}
