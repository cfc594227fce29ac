// Non-temporal copies to memory that is not read soon: they bypass the caches, without fetching lines that are
// overwritten anyway.
//
// A large tensor is written once, in segments of about a kilobyte in any order, and is read when complete, long after
// its first lines have left the caches. An ordinary copy waits for each line to come from memory; on the host of the
// measurement (docs/results/line-rate.md) that was most of the cost of receiving. On processors without such stores,
// this is memcpy.
#pragma once

#include <cstddef>

namespace mlt::base {

// Min size of a tensor for these copies: a smaller one stays in a core's own cache, where the reader finds it.
inline constexpr std::size_t kStreamedBytes = std::size_t{4} << 20;

// The memory must not overlap. Until fence_streamed(), other threads may see the old bytes, despite any
// synchronisation.
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes);
void fence_streamed();

}  // namespace mlt::base
