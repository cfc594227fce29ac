// Segment priorities: class (DSCP), ECN codepoint and position in the send order of a segment.
//
// Paper section 4.2.2: class of layer i of L is floor(i * P / L); important segments are ECN-capable, so that a RED
// queue marks them and drops the others. Class 0 is the most urgent (front layers).
#pragma once

#include <array>
#include <cstdint>

#include "base/datagram.h"

namespace mlt::core {

inline constexpr std::uint32_t kMaxClasses = 8;

// Class, important and critical bits of one segment; the priority function fills an array of them.
struct SegmentPriority {
  std::uint8_t bits = 0;

  static constexpr std::uint8_t kClassMask = 0x07;
  static constexpr std::uint8_t kImportant = 0x08;
  static constexpr std::uint8_t kCritical = 0x10;
  static constexpr std::uint8_t kAllBits = kClassMask | kImportant | kCritical;

  static constexpr SegmentPriority important(std::uint8_t traffic_class) {
    return {static_cast<std::uint8_t>(traffic_class | kImportant)};
  }
  constexpr std::uint8_t traffic_class() const { return bits & kClassMask; }
  constexpr bool is_critical() const { return (bits & kCritical) != 0; }
  // A critical segment counts as important in any case: a switch should drop it last.
  constexpr bool is_important() const { return (bits & (kImportant | kCritical)) != 0; }
  // Send order within a tensor: critical, then important, then the rest.
  constexpr std::uint8_t pass() const { return is_critical() ? 0 : (is_important() ? 1 : 2); }
  // PROTOCOL 13.1.3: A sender MUST send packets of important and critical segments ECN-capable, ECT(0), all others
  //     Not-ECT, so that a switch over its threshold marks the former and drops the latter.
  constexpr base::Ecn ecn() const { return is_important() ? base::Ecn::kEct0 : base::Ecn::kNotEct; }
};
inline constexpr std::uint8_t kPasses = 3;

// Class of layer `layer` (0 = front) of `layers`, over `classes` data classes.
constexpr std::uint8_t class_of_layer(std::uint32_t layer, std::uint32_t layers, std::uint32_t classes) {
  if (layers == 0) return 0;
  const std::uint64_t at = layer < layers ? layer : layers - 1;
  // PROTOCOL 13.1.1: A segment's class, 0 to 7, 0 the most urgent, SHOULD be floor(layer * classes / layers) of its
  //     tensor's layer, 0 the front; a priority function MAY choose another.
  return static_cast<std::uint8_t>(at * classes / layers);
}

// Class to DSCP, shared with the switch configuration (Options::data_dscp of mlt.h). The default uses RFC 2474's pool
// of local code points (xxxx11): it is large enough for eight queues, and no well-known service uses it.
struct DscpMap {
  std::uint8_t data_classes = 7;
  std::array<std::uint8_t, kMaxClasses> data = {3, 7, 11, 15, 19, 23, 27, 27};
  // PROTOCOL 13.1.6: The control class MUST be the reserved one, which no switch marks or drops early.
  std::uint8_t control = 31;
};

}  // namespace mlt::core
