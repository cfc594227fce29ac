// All-reduces of every element type by every reduction, small and large, over a bus without endpoints: the kernels in
// the order that the protocol says. What is undefined is refused.
#include <string>

#include "collective/direct_allreduce.h"
#include "collective/ring_allreduce.h"
#include "fake_bus.h"

using namespace mlt::test;
using mlt::wire::ElementType;

namespace {

using Tensors = std::vector<std::vector<std::byte>>;

Tensors random_bytes(std::size_t ranks, std::size_t bytes, std::uint64_t seed) {
  mlt::base::Prng prng(seed);
  Tensors made(ranks, std::vector<std::byte>(bytes));
  for (auto& tensor : made) {
    for (std::byte& byte : tensor) byte = static_cast<std::byte>(prng.below(256));
  }
  return made;
}

CollectiveRequest request_of(std::span<std::byte> data, ElementType element, Reduction reduction) {
  CollectiveRequest request;
  request.operation = 1;
  request.output = data;
  request.element = element;
  request.reduction = reduction;
  return request;
}

// By halving among four ranks: element by element, at the rank that keeps it.
std::vector<std::byte> halving_of_four(const Tensors& tensors, ElementType element, Reduction reduction) {
  const Kernel& kernel = *kernel_of(element, reduction);
  const std::size_t bytes = mlt::wire::element_bytes(element), elements = tensors[0].size() / bytes;
  const std::size_t half = (elements + 1) / 2;
  std::vector<std::byte> result(tensors[0].size());
  for (std::size_t i = 0; i < elements; ++i) {
    const bool is_second = i >= half;
    const std::size_t length = is_second ? elements - half : half;
    const std::size_t quarter = (length + 1) / 2;
    const std::size_t owner = (is_second ? 1U : 0U) + (i - (is_second ? half : 0) >= quarter ? 2U : 0U);
    const auto term = [&](std::size_t rank) {
      const auto from = tensors[rank].begin() + static_cast<std::ptrdiff_t>(i * bytes);
      return std::vector<std::byte>(from, from + static_cast<std::ptrdiff_t>(bytes));
    };
    const auto pair = [&](std::size_t rank) {
      std::vector<std::byte> sum = term(rank);
      kernel.combine(sum.data(), term(rank ^ 1).data(), 1);
      return sum;
    };
    std::vector<std::byte> sum = pair(owner);
    kernel.combine_last(sum.data(), pair(owner ^ 2).data(), 1, 4);
    std::ranges::copy(sum, result.begin() + static_cast<std::ptrdiff_t>(i * bytes));
  }
  return result;
}

std::vector<std::byte> reference(const Tensors& tensors, ElementType element, Reduction reduction) {
  const Kernel& kernel = *kernel_of(element, reduction);
  const std::size_t n = tensors.size(), bytes = mlt::wire::element_bytes(element);
  const std::size_t elements = tensors[0].size() / bytes;
  std::vector<std::byte> result(tensors[0].size());
  if (chosen_algorithm({n}, result.size()) == CollectiveAlgorithm::kDirect) {
    std::vector<const std::byte*> terms;
    for (const auto& tensor : tensors) terms.push_back(tensor.data());
    kernel.combine_all(result.data(), terms, elements, static_cast<std::uint32_t>(terms.size()));
    return result;
  }
  for (std::size_t chunk = 0; chunk < n; ++chunk) {
    const std::size_t first = elements / n * chunk + std::min(chunk, elements % n);
    const std::size_t count = elements / n + (chunk < elements % n ? 1 : 0);
    const auto part = [&](const std::vector<std::byte>& tensor) {
      const auto from = tensor.begin() + static_cast<std::ptrdiff_t>(first * bytes);
      return std::vector<std::byte>(from, from + static_cast<std::ptrdiff_t>(count * bytes));
    };
    std::vector<std::byte> sum = part(tensors[chunk]);
    for (std::size_t hop = 1; hop < n; ++hop) {
      std::vector<std::byte> own = part(tensors[(chunk + hop) % n]);
      if (hop + 1 < n) kernel.combine(own.data(), sum.data(), count);
      if (hop + 1 == n) kernel.combine_last(own.data(), sum.data(), count, static_cast<std::uint32_t>(n));
      sum = own;
    }
    std::ranges::copy(sum, result.begin() + static_cast<std::ptrdiff_t>(first * bytes));
  }
  return result;
}

}  // namespace

TEST_CASE("all_reduce__of_every_type_by_every_reduction_is_the_reference_bit_for_bit_at_every_rank") {
  for (std::uint8_t type = 0; type < mlt::wire::kElementTypeCount; ++type) {
    for (std::uint8_t number = 0; number < kReductionCount; ++number) {
      const auto element = static_cast<ElementType>(type);
      const auto reduction = static_cast<Reduction>(number);
      if (kernel_of(element, reduction) == nullptr) continue;
      for (const std::size_t elements : {0U, 1U, 3U, 1'001U, 40'003U}) {
        const auto ranks = static_cast<std::uint16_t>(2 + (type + number + elements) % 3);
        CAPTURE(std::string(mlt::wire::element_name(element)));
        CAPTURE(std::string(reduction_name(reduction)));
        CAPTURE(elements);
        Tensors tensors = random_bytes(ranks, elements * mlt::wire::element_bytes(element), elements + type);
        const auto expected = reference(tensors, element, reduction);
        FakeBus bus({.ranks = ranks, .seed = elements + number});
        for (std::uint16_t rank = 0; rank < ranks; ++rank) {
          bus.start(rank, request_of(tensors[rank], element, reduction));
        }
        bus.run();
        for (std::uint16_t rank = 0; rank < ranks; ++rank) {
          REQUIRE(bus.done(rank).size() == 1);
          CHECK(bus.done(rank)[0].error == "");
          CHECK(tensors[rank] == expected);
        }
      }
    }
  }
}

TEST_CASE("all_reduce__by_halving_of_every_type_by_every_reduction_is_the_reference_bit_for_bit_at_every_rank") {
  for (std::uint8_t type = 0; type < mlt::wire::kElementTypeCount; ++type) {
    for (std::uint8_t number = 0; number < kReductionCount; ++number) {
      const auto element = static_cast<ElementType>(type);
      const auto reduction = static_cast<Reduction>(number);
      if (kernel_of(element, reduction) == nullptr) continue;
      for (const std::size_t elements : {1U, 3U, 1'001U}) {
        CAPTURE(std::string(mlt::wire::element_name(element)));
        CAPTURE(std::string(reduction_name(reduction)));
        CAPTURE(elements);
        Tensors tensors = random_bytes(4, elements * mlt::wire::element_bytes(element), elements + type);
        const auto expected = halving_of_four(tensors, element, reduction);
        FakeBus bus({.ranks = 4, .seed = elements + number});
        for (std::uint16_t rank = 0; rank < 4; ++rank) {
          CollectiveRequest request = request_of(tensors[rank], element, reduction);
          request.algorithm = CollectiveAlgorithm::kHalving;
          bus.start(rank, request);
        }
        bus.run();
        for (std::uint16_t rank = 0; rank < 4; ++rank) {
          REQUIRE(bus.done(rank).size() == 1);
          CHECK(bus.done(rank)[0].error == "");
          CHECK(tensors[rank] == expected);
        }
      }
    }
  }
}

// Every member hears of both calls, and no memory has changed.
TEST_CASE("all_reduce__of_another_type_or_reduction_of_the_same_size_fails_everywhere_naming_both") {
  for (const bool is_type : {false, true}) {
    Tensors tensors = random_bytes(3, 240, 5);
    const Tensors before = tensors;
    FakeBus bus({.ranks = 3, .seed = 8});
    for (std::uint16_t rank = 0; rank < 3; ++rank) {
      const bool is_other = rank == 1;
      bus.start(rank, request_of(tensors[rank], is_type && is_other ? ElementType::kUint32 : ElementType::kInt32,
                                 !is_type && is_other ? Reduction::kMax : Reduction::kXor));
    }
    bus.run();
    for (std::uint16_t rank = 0; rank < 3; ++rank) {
      REQUIRE(bus.done(rank).size() == 1);
      const std::string& error = bus.done(rank)[0].error;
      CAPTURE(error);
      CHECK(error.find("of int32, loss bound 0, bitwise xor") != std::string::npos);
      CHECK(error.find(is_type ? "of uint32" : ", max") != std::string::npos);
      CHECK(error.find("rank 1") != std::string::npos);
    }
    CHECK(tensors == before);
  }
}

TEST_CASE("all_reduce__of_float64_keeps_its_bound_and_divides_by_what_arrived") {
  FakeBus bus({.ranks = 2, .seed = 9, .lossy = true});
  std::vector<std::vector<double>> tensors = {std::vector<double>(50'000, 2.0), std::vector<double>(50'000, 6.0)};
  for (std::uint16_t rank = 0; rank < 2; ++rank) {
    CollectiveRequest request =
        request_of(std::as_writable_bytes(std::span(tensors[rank])), ElementType::kFloat64, Reduction::kMean);
    request.loss_bound = 0.2;
    bus.start(rank, request);
  }
  bus.run();
  CHECK(tensors[0] == tensors[1]);
  CHECK(bus.lost_elements() > 0);
  CHECK(bus.lost_elements() <= 10'000);
  const auto is_short = [](double value) { return value != 4.0; };
  CHECK(static_cast<std::uint64_t>(std::ranges::count_if(tensors[0], is_short)) == bus.lost_elements());
  for (const double value : tensors[0]) REQUIRE((value == 4.0 || value == 2.0 || value == 6.0));
}

TEST_CASE("check_request__refuses_reductions_that_are_undefined_or_must_not_lose") {
  std::vector<std::byte> data(24);
  const auto problem = [&](ElementType element, Reduction reduction, double loss_bound = 0) {
    CollectiveRequest request = request_of(data, element, reduction);
    request.ranks = {0, 1};
    request.loss_bound = loss_bound;
    return check_request(request, 0);
  };
  CHECK(problem(ElementType::kInt16, Reduction::kMean).find("mean of int16 is not exact") != std::string::npos);
  CHECK(problem(ElementType::kBool, Reduction::kMean).find("mean of bool is not exact") != std::string::npos);
  CHECK(problem(ElementType::kFloat16, Reduction::kXor).find("bitwise xor of float16") != std::string::npos);
  CHECK(problem(ElementType::kInt64, static_cast<Reduction>(8)).find("unknown") != std::string::npos);
  CHECK(problem(ElementType::kFloat32, Reduction::kMax, 0.1).find("a max must not lose") != std::string::npos);
  CHECK(problem(ElementType::kInt32, Reduction::kSum, 0.1).find("floating-point") != std::string::npos);
  for (const ElementType element :
       {ElementType::kFloat16, ElementType::kBfloat16, ElementType::kFloat32, ElementType::kFloat64}) {
    CHECK(problem(element, Reduction::kSum, 0.1) == "");
    CHECK(problem(element, Reduction::kMean, 0.1) == "");
  }
  CHECK(problem(ElementType::kFloat64, Reduction::kSum) == "");
  data.resize(25);
  CHECK(problem(ElementType::kUint16, Reduction::kSum).find("element size") != std::string::npos);
}
