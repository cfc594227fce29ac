// Shares by rate: how a ring cuts its tensor where not every link is as fast, so that a slow link carries less
// (section 22.8 of PROTOCOL.md).
//
// A chunk crosses every link of the ring twice, as a sum and as a result, except two: chunk c starts at member c and is
// summed last at member c - 1, so the sums do not cross the link from c - 1 to c, and the results not the link from
// c - 2 to c - 1. So the link from member i to the next carries twice the tensor less chunks i + 1 and i + 2. A slow
// host, at index s, slows the links to it and from it, and both are spared by chunk s + 1. If that chunk is the whole
// tensor, they carry it once and all others twice: a host of half the rate then costs nothing but what a ring of equal
// chunks saves, 2 / n of the tensor.
//
// Every member computes the shares from the same codes, in integers: the same on every machine. Absent on purpose:
// where the codes come from (rate_exchange.h), measurement (core/port_rate.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mlt::collective {

// All chunks together.
inline constexpr std::uint32_t kShareUnits = 4'096;

// The rate of a link in one byte: 2^(8 + code / 8) bytes per second, rounded, so that neighbours differ by 9 %.
inline constexpr std::uint8_t kNoShares = 0;   // this member takes equal chunks
inline constexpr std::uint8_t kNoLimit = 255;  // nothing limits the link, as in shared memory
inline constexpr std::uint32_t kCodesPerOctave = 8;
// `bytes_per_second` 0: no limit.
std::uint8_t rate_code(double bytes_per_second);

// Units of each chunk by the codes of the links from each member to the next; empty: equal chunks, because a member
// takes no others, or because they are hardly slower.
std::vector<std::uint16_t> shares_by_rate(std::span<const std::uint8_t> codes);

// Names a cut in a call's shape: 0 for equal chunks, and for no others.
std::uint16_t cut_id(std::span<const std::uint16_t> shares);

// First of `elements` that comes after chunks of `units` units.
constexpr std::size_t part_begin(std::size_t elements, std::size_t units) {
  return elements / kShareUnits * units + elements % kShareUnits * units / kShareUnits;
}

}  // namespace mlt::collective
