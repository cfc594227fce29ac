#include "delay_line/frame_queue.h"

#include <algorithm>

namespace mlt::delay_line {

FrameQueue::FrameQueue(std::uint32_t limit, std::uint32_t spare, std::uint32_t frame_bytes, std::uint64_t seed)
    : frame_bytes_(frame_bytes),
      memory_(::mmap(nullptr, (std::size_t{limit} + spare) * frame_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
              (std::size_t{limit} + spare) * frame_bytes),
      free_(std::size_t{limit} + spare),
      held_(limit),
      dice_(seed) {
  for (std::size_t i = 0; i < free_.size(); ++i) free_[i] = static_cast<std::uint32_t>(free_.size() - 1 - i);
}

std::span<std::byte> FrameQueue::space(std::uint32_t number) const { return place(free_[free_.size() - 1 - number]); }

std::uint32_t FrameQueue::hold(std::span<const std::uint32_t> lengths, std::span<const base::TimeNs> arrivals,
                               base::DurationNs delay_ns, base::DurationNs jitter_ns) {
  const auto kept =
      static_cast<std::uint32_t>(std::min(lengths.size(), held_.size() - static_cast<std::size_t>(size_)));
  const base::DurationNs delay = std::clamp<base::DurationNs>(delay_ns, 0, kMaxDelayNs);
  const auto jitter = static_cast<std::uint64_t>(std::clamp<base::DurationNs>(jitter_ns, 0, kMaxDelayNs));
  for (std::uint32_t i = 0; i < lengths.size(); ++i) {
    // Drawn for dropped frames too: a frame's jitter depends on its number alone.
    const auto extra = static_cast<base::DurationNs>(dice_.below(jitter + 1));
    if (i >= kept) continue;
    last_due_ns_ = std::max(last_due_ns_, arrivals[i] + delay + extra);
    held_[(first_ + size_ + i) % held_.size()] = {last_due_ns_, free_[free_.size() - 1 - i], lengths[i]};
  }
  free_.resize(free_.size() - kept);
  size_ += kept;
  return kept;
}

std::span<std::byte> FrameQueue::due_frame(std::uint32_t number, base::TimeNs now) const {
  if (number >= size_ || held(number).due_ns > now) return {};
  return place(held(number).place).first(held(number).bytes);
}

void FrameQueue::pop(std::uint32_t frames) {
  // The first to leave is the first to be used again.
  for (std::uint32_t i = frames; i > 0; --i) free_.push_back(held(i - 1).place);
  first_ = (first_ + frames) % held_.size();
  size_ -= frames;
}

}  // namespace mlt::delay_line
