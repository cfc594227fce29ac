// What of one receive may be missing at completion: bytes within the loss bound, but no critical segment, and nothing
// that this endpoint dropped itself as long as the sender may still repair it. Paper section 4.2.3.
//
// Invariants: the budget in bytes never rises, and falls only as other receives draw on the one that they share;
// without critical segments their number never matters, and with them nothing may be missing before it is known. Owned
// by a receive (ReceiveState), used by one thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/loss_bound.h"

namespace mlt::core {

class LossBudget {
 public:
  LossBudget() = default;
  LossBudget(std::uint64_t elements, std::uint32_t element_bytes, double bound)
      // PROTOCOL 7.5.2: A receiver MUST count the bound in elements: the largest k whose fraction k / elements, in
      //     double precision, is not above p may be missing at completion, and not one more.
      : bytes_(allowed_missing(elements, bound) * element_bytes) {}

  // The tensor turns out to be as long as this one is for, and not longer than before; what was noted remains.
  void shrink(const LossBudget& to) {
    bytes_ = to.bytes_;
    shared_ = to.shared_;
  }

  // PROTOCOL 7.5.12: Receives that share a budget MUST together miss at most its elements at completion, as 7.5.2
  //     counts them.
  void share(SharedLossBudget& shared, std::uint64_t min_bytes) {
    shared_ = &shared;
    bytes_ = std::max(bytes_, min_bytes);
  }
  // The receive ends without these bytes. Nothing is read from the shared budget from then on.
  void settle(std::uint64_t missing_bytes) {
    bytes_ = bytes();
    if (shared_ != nullptr) shared_->draw(missing_bytes);
    shared_ = nullptr;
  }

  std::uint64_t bytes() const { return shared_ == nullptr ? bytes_ : std::min(bytes_, shared_->left_bytes()); }

  // The sender has critical segments; their number follows in a probe.
  void expect_critical() { has_critical_ = true; }
  void expect_critical(std::uint32_t segments) {
    has_critical_ = critical_known_ = true;
    critical_total_ = segments;
  }
  void count_critical() { ++critical_received_; }
  // A segment of the first round may have been dropped here: for lack of space, or before the connection was up.
  void note_dropped() {
    if (!dropped_here_) note_dropped(0, 0);
  }
  // The same of a round from `first` on, up to `further` rounds later; not before a round of an earlier note.
  void note_dropped(std::uint8_t first, std::uint8_t further) {
    dropped_here_ = true;
    dropped_first_ = first;
    dropped_further_ = further;
  }

  bool is_critical_complete() const {
    if (!has_critical_) return true;
    // PROTOCOL 7.5.3: A transfer with critical segments MUST NOT complete within its bound before their number is
    //     known, from a probe, and all have arrived.
    return critical_known_ && critical_received_ >= critical_total_;
  }
  // Whether the receive may complete without these bytes.
  bool covers(std::uint64_t missing_bytes) const {
    // PROTOCOL 7.5.2: A receiver MUST count the bound in elements: the largest k whose fraction k / elements, in double
    //     precision, is not above p may be missing at completion, and not one more.
    return missing_bytes <= bytes() && is_critical_complete();
  }
  // For a patient receive at the end of `round`: segments that this endpoint dropped do not count as network loss.
  bool covers_loss(std::uint64_t missing_bytes, std::uint8_t round) const {
    // PROTOCOL 7.5.10: A receiver may have dropped a segment for lack of space, or because the connection was not up
    //     here yet. A patient receive of such a transfer MUST NOT complete within bound before the end of a later round
    //     than the first, because the network lost nothing.
    return covers(missing_bytes) && !may_have_dropped(round);
  }
  // END_OF_ROUND states that critical segments exist, but not how many; the probe that follows does.
  bool lacks_only_critical_number(std::uint64_t missing_bytes) const {
    return missing_bytes <= bytes() && has_critical_ && !critical_known_;
  }

 private:
  bool may_have_dropped(std::uint8_t round) const {
    return dropped_here_ && static_cast<std::uint8_t>(round - dropped_first_) <= dropped_further_;
  }

  std::uint64_t bytes_ = 0;
  SharedLossBudget* shared_ = nullptr;  // null: none, or the receive has ended
  std::uint32_t critical_total_ = 0;
  std::uint32_t critical_received_ = 0;
  bool has_critical_ = false;
  bool critical_known_ = false;  // their number, from a probe
  bool dropped_here_ = false;
  std::uint8_t dropped_first_ = 0;
  std::uint8_t dropped_further_ = 0;
};

}  // namespace mlt::core
