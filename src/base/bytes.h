// Little-endian integers in and out of bytes, at any alignment: the only byte order on the network.
//
// Each call compiles to one load or store on little-endian hosts. The caller must have checked the bounds: these
// functions deliberately take no length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace mlt::base {

namespace detail {

// A fold, not a loop: GCC 12 merges the loads of a fold into one, but not those of a loop.
template <typename Unsigned, std::size_t... I>
constexpr Unsigned load_le(const std::byte* from, std::index_sequence<I...>) {
  return static_cast<Unsigned>(((std::uint64_t{static_cast<std::uint8_t>(from[I])} << (8 * I)) | ...));
}

template <typename Unsigned, std::size_t... I>
constexpr void store_le(std::byte* to, Unsigned value, std::index_sequence<I...>) {
  ((to[I] = static_cast<std::byte>((std::uint64_t{value} >> (8 * I)) & 0xFFU)), ...);
}

template <typename Unsigned>
constexpr Unsigned load_le(const std::byte* from) {
  return load_le<Unsigned>(from, std::make_index_sequence<sizeof(Unsigned)>{});
}

template <typename Unsigned>
constexpr void store_le(std::byte* to, Unsigned value) {
  store_le(to, value, std::make_index_sequence<sizeof(Unsigned)>{});
}

}  // namespace detail

constexpr std::uint16_t load_le16(const std::byte* from) { return detail::load_le<std::uint16_t>(from); }
constexpr std::uint32_t load_le32(const std::byte* from) { return detail::load_le<std::uint32_t>(from); }
constexpr std::uint64_t load_le64(const std::byte* from) { return detail::load_le<std::uint64_t>(from); }

constexpr void store_le16(std::byte* to, std::uint16_t value) { detail::store_le(to, value); }
constexpr void store_le32(std::byte* to, std::uint32_t value) { detail::store_le(to, value); }
constexpr void store_le64(std::byte* to, std::uint64_t value) { detail::store_le(to, value); }

}  // namespace mlt::base
