// Datagrams held for a time (delayed) or until later ones have overtaken them (reordered). Fixed slots, bounded; no
// allocation after construction. Owned by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/datagram.h"
#include "base/time.h"
#include "io/run_view.h"

namespace mlt::io {

// Destination and marks of a datagram; received datagrams have no peer.
struct DatagramMark {
  std::uint16_t peer = 0;
  std::uint8_t path = 0;
  std::uint8_t dscp = 0;
  base::Ecn ecn = base::Ecn::kNotEct;
  bool operator==(const DatagramMark&) const = default;
};

class DelayQueue {
 public:
  enum class Result : std::uint8_t { kHeld, kFull, kTooLarge };

  struct Released {
    DatagramMark mark;
    std::uint32_t place = 0;  // return it with give_back() when its bytes are no longer needed
    std::span<const std::byte> bytes;
  };

  DelayQueue(std::uint32_t places, std::uint32_t place_bytes);

  // Copies the datagram. overtaken_by == 0: held until `due`. Otherwise held until that many datagrams of its peer have
  // passed or until `due`, and never released by time before an earlier one of its kind.
  Result hold(const DatagramMark& mark, const DatagramView& view, std::uint32_t overtaken_by, base::TimeNs due);
  // The bytes of the datagram held last; may be changed in place.
  std::span<std::byte> newest() { return newest_; }

  // Records that a datagram of `peer` passes. Then pop_overtaken() returns those for which it was the last one
  // required.
  void overtake(std::uint16_t peer);
  bool pop_overtaken(Released& out);
  // The datagram with the earliest due time, if that has passed.
  bool pop_due(base::TimeNs now, Released& out);
  void give_back(std::uint32_t place) { free_.push_back(place); }

  base::TimeNs next_due() const;
  std::size_t size() const { return delayed_.size() + overtakable_.size(); }

 private:
  struct Held {
    DatagramMark mark;
    std::uint32_t place = 0;
    std::uint32_t bytes = 0;
    std::uint32_t overtaken_by = 0;
    base::TimeNs due = 0;
    std::uint64_t order = 0;  // order of arrival, for equal times
  };
  static bool later(const Held& a, const Held& b) { return a.due != b.due ? a.due > b.due : a.order > b.order; }

  void release(const Held& held, Released& out) const;

  std::uint32_t place_bytes_;
  std::vector<std::byte> bytes_;
  std::vector<std::uint32_t> free_;
  std::vector<Held> delayed_;      // a heap, earliest first
  std::vector<Held> overtakable_;  // in order of arrival, which is the order of their times
  std::span<std::byte> newest_;
  std::uint64_t orders_ = 0;
};

}  // namespace mlt::io
