// What the targets of the control channel share, on the listening and on the connecting side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "io/control/control_frame.h"

namespace mlt::fuzz {

inline std::vector<std::byte> frame_of(std::uint8_t type, std::span<const std::byte> payload) {
  std::vector<std::byte> frame(io::kFrameHeaderBytes);
  io::encode_frame_header({static_cast<std::uint32_t>(payload.size()), type}, frame.data());
  frame.insert(frame.end(), payload.begin(), payload.end());
  return frame;
}

}  // namespace mlt::fuzz
