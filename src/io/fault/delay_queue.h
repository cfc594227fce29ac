// Datagrams that wait: for a time (delayed), or to be overtaken by later ones (reordered). Fixed places, bounded; no
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

// Where a datagram goes and how it is marked; received datagrams have no peer.
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
    std::uint32_t place = 0;  // give_back() it when its bytes are no longer needed
    std::span<const std::byte> bytes;
  };

  DelayQueue(std::uint32_t places, std::uint32_t place_bytes);

  // Copies the datagram. overtaken_by == 0: waits until `due`. Otherwise until so many datagrams of its peer passed, at
  // the latest until `due`, and never released by time before an earlier one of these.
  Result hold(const DatagramMark& mark, const DatagramView& view, std::uint32_t overtaken_by, base::TimeNs due);
  // The bytes of the datagram held last, to be changed in place.
  std::span<std::byte> newest() { return newest_; }

  // One datagram of `peer` passes. Then pop_overtaken() gives those for which it was the last they waited for.
  void overtake(std::uint16_t peer);
  bool pop_overtaken(Released& out);
  // The datagram with the earliest time, if that has come.
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
    std::uint64_t order = 0;  // of arrival: equal times keep it
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
