#include "collective/reduce.h"

#include <cstring>

namespace mlt::collective {

void add_float32(std::span<float> accumulator, const std::byte* source) {
  float* __restrict to = accumulator.data();
  const std::size_t n = accumulator.size();
  for (std::size_t i = 0; i < n; ++i) {
    float value;
    std::memcpy(&value, source + 4 * i, sizeof value);
    to[i] += value;
  }
}

void add_and_scale_float32(std::span<float> accumulator, const std::byte* source, float scale) {
  float* __restrict to = accumulator.data();
  const std::size_t n = accumulator.size();
  for (std::size_t i = 0; i < n; ++i) {
    float value;
    std::memcpy(&value, source + 4 * i, sizeof value);
    to[i] = (to[i] + value) * scale;
  }
}

void scale_float32(std::span<float> values, float scale) {
  for (float& value : values) value *= scale;
}

}  // namespace mlt::collective
