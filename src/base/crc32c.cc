#include "base/crc32c.h"

#include <array>
#include <cstring>

#include "base/bytes.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace mlt::base {

namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reversed
constexpr std::uint32_t kOnes = 0xFFFFFFFF;

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// [j][b]: the remainder of byte b with j zero bytes behind it.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (std::size_t j = 1; j < tables.size(); ++j) {
    for (std::size_t b = 0; b < 256; ++b) {
      const std::uint32_t crc = tables[j - 1][b];
      tables[j][b] = (crc >> 8) ^ tables[0][crc & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) std::uint32_t crc32c_by_instruction(std::span<const std::byte> bytes) {
  std::uint64_t crc = kOnes;
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) crc = _mm_crc32_u64(crc, load_le64(&bytes[at]));
  for (; at < bytes.size(); ++at) {
    crc = _mm_crc32_u8(static_cast<std::uint32_t>(crc), std::to_integer<std::uint8_t>(bytes[at]));
  }
  return static_cast<std::uint32_t>(crc) ^ kOnes;
}

bool has_instruction() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("sse4.2") != 0;
}

#elif defined(__ARM_FEATURE_CRC32)

std::uint32_t crc32c_by_instruction(std::span<const std::byte> bytes) {
  std::uint32_t crc = kOnes;
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) crc = __crc32cd(crc, load_le64(&bytes[at]));
  for (; at < bytes.size(); ++at) crc = __crc32cb(crc, std::to_integer<std::uint8_t>(bytes[at]));
  return crc ^ kOnes;
}

bool has_instruction() { return true; }

#else

std::uint32_t crc32c_by_instruction(std::span<const std::byte> bytes) { return crc32c_by_table(bytes); }

bool has_instruction() { return false; }

#endif

const bool kHasInstruction = has_instruction();

}  // namespace

std::uint32_t crc32c_by_table(std::span<const std::byte> bytes) {
  std::uint32_t crc = kOnes;
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    const std::uint64_t word = load_le64(&bytes[at]) ^ crc;
    crc = 0;
    for (std::size_t byte = 0; byte < 8; ++byte) crc ^= kTables[7 - byte][(word >> (8 * byte)) & 0xFF];
  }
  for (; at < bytes.size(); ++at) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ std::to_integer<std::uint32_t>(bytes[at])) & 0xFF];
  }
  return crc ^ kOnes;
}

std::uint32_t crc32c(std::span<const std::byte> bytes) {
  return kHasInstruction ? crc32c_by_instruction(bytes) : crc32c_by_table(bytes);
}

}  // namespace mlt::base
