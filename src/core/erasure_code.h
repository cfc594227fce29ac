// The erasure code of parity packets: a systematic code over GF(2^8) whose parities of a block are sums of its
// segments, each times a coefficient of a Cauchy matrix. Any n parities restore any n missing segments of the block.
// Section 6.12 of PROTOCOL.md.
//
// Absent on purpose: how many parities are worth their bytes (parity_plan.h), and where they are kept (ParityStore).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/galois.h"
#include "wire/packet.h"

namespace mlt::core {

inline constexpr std::uint32_t kMaxBlockSegments = MLT_MAX_BLOCK_SEGMENTS;
inline constexpr std::uint32_t kMaxBlockParities = MLT_MAX_BLOCK_PARITIES;

// What segment `position` of a block is multiplied by in its parity `index`.
constexpr std::uint8_t parity_coefficient(std::uint32_t index, std::uint32_t position) {
  // PROTOCOL 6.12.4: Segment i of a block, from 0, MUST be multiplied by 1 / ((224 + j) XOR i) in its parity j, from 0.
  return base::galois::inverse(static_cast<std::uint8_t>((kMaxBlockSegments + index) ^ position));
}

// Adds a segment to a parity, or takes it out of one again: the two are the same. A segment may be shorter.
inline void add_to_parity(std::byte* parity, std::uint32_t index, std::uint32_t position,
                          std::span<const std::byte> segment) {
  base::galois::multiply_add(parity, segment.data(), segment.size(), parity_coefficient(index, position));
}

// Turns parities, of which all segments of the block that are there were taken out, into the missing segments, in
// place: sums[i] becomes the segment at positions[i]. As many of one as of the other, at most kMaxBlockParities.
void restore_segments(std::span<const std::uint8_t> positions, std::span<const std::uint8_t> indices,
                      std::span<std::byte* const> sums, std::size_t bytes);

}  // namespace mlt::core
