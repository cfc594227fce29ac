// Wakes a thread that sleeps on a descriptor; costs one load while it is awake.
//
// The sleeper calls arm(), checks once more for work, and if there is none waits until fd() is readable. A producer
// publishes work first (sequentially consistent, as everything here) and then calls ring(), which writes the descriptor
// only if the bell is armed. So either the sleeper's second check finds the work, or the descriptor is written: no
// wake-up is lost. The bell stays rung, and the descriptor readable, until arm(). The sleeper never waits for a
// producer, which may lose its CPU in the middle of ring().
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "base/check.h"
#include "io/os/unique_fd.h"

namespace mlt::io {

// The descriptor of a bell: a counter that writes increment and a read resets. A type of its own, so that a test can
// interleave another thread's steps.
class BellDescriptor {
 public:
  BellDescriptor() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

  bool is_open() const { return static_cast<bool>(fd_); }
  int fd() const { return fd_.get(); }

  void write_one() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(fd_.get(), &one, sizeof one);
  }

  // The writes since the last read; 0 if there were none.
  std::uint64_t read_all() {
    std::uint64_t written = 0;
    return ::read(fd_.get(), &written, sizeof written) == sizeof written ? written : 0;
  }

 private:
  UniqueFd fd_;
};

template <typename Descriptor>
class BasicDoorbell {
 public:
  // False if the system had no descriptor left; see errno.
  bool is_open() const { return descriptor_.is_open(); }
  int fd() const { return descriptor_.fd(); }

  // The sleeper's thread.
  void arm() {
    if (writes_due_ == 0 && armed_.load()) return;
    // The read before the exchange: whatever is read belongs to a ring that this or an earlier exchange counts, and the
    // bell is armed in any case. A write still in progress, from one of several ringers, causes one spurious wake-up
    // and is read then.
    writes_due_ -= static_cast<std::int64_t>(descriptor_.read_all());
    if (!armed_.exchange(true)) ++writes_due_;
    MLT_CHECK(writes_due_ >= 0);
  }

  // Any thread.
  void ring() {
    if (!armed_.load() || !armed_.exchange(false)) return;
    rings_.fetch_add(1, std::memory_order_relaxed);
    descriptor_.write_one();
  }

  std::uint64_t rings() const { return rings_.load(std::memory_order_relaxed); }

 protected:
  Descriptor descriptor_;

 private:
  std::atomic<bool> armed_{true};
  std::atomic<std::uint64_t> rings_{0};
  std::int64_t writes_due_ = 0;  // the sleeper's: rings observed minus writes read
};

using Doorbell = BasicDoorbell<BellDescriptor>;

}  // namespace mlt::io
