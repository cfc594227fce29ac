// Sums of float32 in place, written so that the compiler vectorises them. Sources are packet payloads and may be
// unaligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mlt::collective {

// accumulator[i] += source[i]; source is accumulator.size() little-endian float32 at any alignment.
void add_float32(std::span<float> accumulator, const std::byte* source);

// accumulator[i] = (accumulator[i] + source[i]) * scale, in one pass.
void add_and_scale_float32(std::span<float> accumulator, const std::byte* source, float scale);

void scale_float32(std::span<float> values, float scale);

}  // namespace mlt::collective
