// Copies to memory that nobody reads soon: past the caches, without fetching the lines that are overwritten anyway.
//
// A large tensor is written once, in segments of about a kilobyte that jump about in it, and is read when it is
// complete, long after its first lines have left the caches. An ordinary copy then waits for each line to come from
// memory; on the machine this was measured on (docs/results/line-rate.md) that was most of what receiving cost.
// Where the processor has no such stores, it is memcpy.
#pragma once

#include <cstddef>

namespace mlt::base {

// From this size on a tensor is worth it: below, it stays in a core's own cache, and the reader finds it there.
inline constexpr std::size_t kStreamedBytes = std::size_t{4} << 20;

// The memory may not overlap. Until fence_streamed() other threads may see the old bytes, whatever they synchronise on.
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes);
void fence_streamed();

}  // namespace mlt::base
