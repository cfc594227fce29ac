// The header of a DATA packet on its way.
#pragma once

#include <doctest/doctest.h>

#include <span>

#include "support/simulation.h"
#include "wire/codec.h"

namespace mlt::test {

inline wire::DataHeader data_header_of(const Flight& flight) {
  wire::DataHeader header;
  std::span<const std::byte> payload;
  REQUIRE(wire::decode_prefix(flight.bytes, header.prefix) == wire::DropReason::kNone);
  REQUIRE(wire::decode_data(flight.bytes, header, payload) == wire::DropReason::kNone);
  return header;
}

}  // namespace mlt::test
