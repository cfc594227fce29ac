// The first contact of two nodes: the sender names itself, the receiver answers with where an engine of its own waits
// for this sender only. Neither is a secret; that engine proves the job's secret (docs/security.md).
#pragma once

#include <cstdint>

namespace mlt::van {

// Ranks of the two engines of a connection.
inline constexpr std::uint16_t kReceiver = 0;
inline constexpr std::uint16_t kSender = 1;

inline constexpr std::uint32_t kMark = 0x766d'6c75;  // another where the heads of messages differ

struct Greeting {
  std::uint32_t mark = kMark;
  std::uint16_t protocol = 0;
  std::uint16_t reserved = 0;
  std::int32_t sender = 0;
};

struct Offer {
  std::uint32_t mark = kMark;
  std::uint16_t protocol = 0;
  std::uint16_t control_port = 0;
  std::uint64_t job = 0;  // random
};
static_assert(sizeof(Greeting) == 12 && sizeof(Offer) == 16);

}  // namespace mlt::van
