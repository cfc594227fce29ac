#include "io/fault/delay_queue.h"

#include <algorithm>

namespace mlt::io {

DelayQueue::DelayQueue(std::uint32_t places, std::uint32_t place_bytes)
    : place_bytes_(place_bytes), bytes_(std::size_t{places} * place_bytes) {
  free_.reserve(places);
  delayed_.reserve(places);
  overtakable_.reserve(places);
  for (std::uint32_t place = places; place-- > 0;) free_.push_back(place);
}

DelayQueue::Result DelayQueue::hold(const DatagramMark& mark, const DatagramView& view, std::uint32_t overtaken_by,
                                    base::TimeNs due) {
  if (view.bytes > place_bytes_) return Result::kTooLarge;
  if (free_.empty()) return Result::kFull;
  Held held{mark, free_.back(), view.bytes, overtaken_by, due, orders_++};
  free_.pop_back();
  std::byte* to = bytes_.data() + std::size_t{held.place} * place_bytes_;
  copy_datagram(view, to);
  newest_ = {to, view.bytes};
  if (overtaken_by == 0) {
    delayed_.push_back(held);
    std::push_heap(delayed_.begin(), delayed_.end(), later);
  } else {
    // A caller's `now` may be slightly older than the previous one: keep times in order of arrival.
    if (!overtakable_.empty()) held.due = std::max(due, overtakable_.back().due);
    overtakable_.push_back(held);
  }
  return Result::kHeld;
}

void DelayQueue::release(const Held& held, Released& out) const {
  out.mark = held.mark;
  out.place = held.place;
  out.bytes = {bytes_.data() + std::size_t{held.place} * place_bytes_, held.bytes};
}

void DelayQueue::overtake(std::uint16_t peer) {
  for (Held& held : overtakable_) {
    if (held.mark.peer == peer && held.overtaken_by > 0) --held.overtaken_by;
  }
}

bool DelayQueue::pop_overtaken(Released& out) {
  const auto found =
      std::find_if(overtakable_.begin(), overtakable_.end(), [](const Held& held) { return held.overtaken_by == 0; });
  if (found == overtakable_.end()) return false;
  release(*found, out);
  overtakable_.erase(found);
  return true;
}

bool DelayQueue::pop_due(base::TimeNs now, Released& out) {
  if (next_due() > now) return false;
  const bool from_delayed =
      overtakable_.empty() || (!delayed_.empty() && later(overtakable_.front(), delayed_.front()));
  if (from_delayed) {
    std::pop_heap(delayed_.begin(), delayed_.end(), later);
    release(delayed_.back(), out);
    delayed_.pop_back();
  } else {
    release(overtakable_.front(), out);
    overtakable_.erase(overtakable_.begin());
  }
  return true;
}

base::TimeNs DelayQueue::next_due() const {
  base::TimeNs due = base::kNever;
  if (!delayed_.empty()) due = delayed_.front().due;
  if (!overtakable_.empty()) due = std::min(due, overtakable_.front().due);
  return due;
}

}  // namespace mlt::io
