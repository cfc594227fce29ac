// The four rings that an AF_XDP socket shares with the kernel: each has one producer and one consumer.
//
// Indices increase without wrapping and are masked to a slot. The producer stores its index after the entries
// (release), the consumer loads that index first (acquire). Layout: the kernel's Documentation/networking/af_xdp.rst.
// One thread owns the user side.
#pragma once

#include <linux/if_xdp.h>

#include <atomic>
#include <cstdint>

namespace mlt::io {

// Location of a ring in mmap()ed memory.
template <typename Entry>
struct XskRingView {
  std::uint32_t* producer = nullptr;
  std::uint32_t* consumer = nullptr;
  std::uint32_t* flags = nullptr;
  Entry* entries = nullptr;
  std::uint32_t size = 0;  // a power of two
};

// Producer is this process: frames to receive into, frames to send.
template <typename Entry>
class XskFilledRing {
 public:
  XskFilledRing() = default;
  explicit XskFilledRing(const XskRingView<Entry>& view)
      : view_(view), next_(std::atomic_ref(*view.producer).load(std::memory_order_relaxed)) {}

  // Entries that the kernel has not consumed yet.
  std::uint32_t pending() const { return next_ - std::atomic_ref(*view_.consumer).load(std::memory_order_acquire); }
  std::uint32_t room() const { return view_.size - pending(); }
  // The entry `ahead` slots behind the last published one.
  Entry& slot(std::uint32_t ahead) { return view_.entries[(next_ + ahead) & (view_.size - 1)]; }
  void publish(std::uint32_t count) {
    next_ += count;
    std::atomic_ref(*view_.producer).store(next_, std::memory_order_release);
  }
  // The kernel does not poll the ring: it needs a system call.
  bool needs_wakeup() const {
    return (std::atomic_ref(*view_.flags).load(std::memory_order_relaxed) & XDP_RING_NEED_WAKEUP) != 0;
  }

 private:
  XskRingView<Entry> view_;
  std::uint32_t next_ = 0;
};

// Producer is the kernel: frames received, frames sent.
template <typename Entry>
class XskEmptiedRing {
 public:
  XskEmptiedRing() = default;
  explicit XskEmptiedRing(const XskRingView<Entry>& view)
      : view_(view), next_(std::atomic_ref(*view.consumer).load(std::memory_order_relaxed)) {}

  std::uint32_t available() const { return std::atomic_ref(*view_.producer).load(std::memory_order_acquire) - next_; }
  const Entry& slot(std::uint32_t ahead) const { return view_.entries[(next_ + ahead) & (view_.size - 1)]; }
  void release(std::uint32_t count) {
    next_ += count;
    std::atomic_ref(*view_.consumer).store(next_, std::memory_order_release);
  }

 private:
  XskRingView<Entry> view_;
  std::uint32_t next_ = 0;
};

}  // namespace mlt::io
