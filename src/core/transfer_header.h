// The fields that the headers of a transfer's DATA and PARITY packets share.
#pragma once

#include <cstdint>

#include "core/send_state.h"
#include "wire/codec.h"

namespace mlt::core {

// `Header`: wire::DataHeader or wire::ParityHeader.
template <typename Header>
Header transfer_header(wire::PacketType type, const SendState& state, std::uint64_t cookie, std::uint8_t path,
                       TimeNs now) {
  Header header;
  header.prefix.type = type;
  header.prefix.path = path;
  header.prefix.element = state.request.element;
  header.prefix.round = state.repair.round();
  header.prefix.cookie = cookie;
  header.tag = state.request.tag;
  header.generation = state.generation;
  header.total_bytes = state.grid.total_bytes();
  header.timestamp_ns = static_cast<std::uint32_t>(now);
  return header;
}

}  // namespace mlt::core
