#include "collective/reduce.h"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

using namespace mlt::collective;

TEST_CASE("add_float32__adds_from_any_alignment") {
  for (const std::size_t n : {0U, 1U, 3U, 8U, 17U, 358U, 1000U}) {
    for (std::size_t shift = 0; shift < 4; ++shift) {
      std::vector<float> source(n), sum(n, 0.5F);
      for (std::size_t i = 0; i < n; ++i) source[i] = static_cast<float>(i) - 3.25F;
      std::vector<std::byte> bytes(4 * n + shift);
      if (n > 0) std::memcpy(bytes.data() + shift, source.data(), 4 * n);
      add_float32(sum, bytes.data() + shift);
      for (std::size_t i = 0; i < n; ++i) CHECK(sum[i] == 0.5F + source[i]);
    }
  }
}

TEST_CASE("add_and_scale_float32__adds_first_and_scales_then") {
  for (const std::size_t n : {0U, 1U, 7U, 358U}) {
    std::vector<float> source(n), sum(n, 0.1F);
    for (std::size_t i = 0; i < n; ++i) source[i] = static_cast<float>(i) / 3.0F;
    std::vector<std::byte> bytes(4 * n + 1);
    if (n > 0) std::memcpy(bytes.data() + 1, source.data(), 4 * n);
    add_and_scale_float32(sum, bytes.data() + 1, 1.0F / 3.0F);
    for (std::size_t i = 0; i < n; ++i) CHECK(sum[i] == (0.1F + source[i]) * (1.0F / 3.0F));
  }
}

TEST_CASE("scale_float32__scales_in_place") {
  std::vector<float> values{2, 4, -6};
  scale_float32(values, 0.5F);
  CHECK(values == std::vector<float>{1, 2, -3});
}
