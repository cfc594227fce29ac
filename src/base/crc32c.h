// CRC-32C (Castagnoli; RFC 3720, appendix B.4): by the processor's instruction where it has one, else by a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mlt::base {

std::uint32_t crc32c(std::span<const std::byte> bytes);
// The same without the instruction.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes);

}  // namespace mlt::base
