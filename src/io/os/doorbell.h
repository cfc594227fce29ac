// Wakes a thread that sleeps on a descriptor, and costs one load while it does not sleep.
//
// The sleeper calls arm(), looks once more whether there is something to do, and if not waits until fd() is readable.
// Whoever gives it something to do publishes that first (sequentially consistent, as everything here) and then calls
// ring(), which writes the descriptor only if the bell is armed. So either the sleeper's second look finds it, or the
// descriptor is written: no wake-up is lost. The bell stays rung, and the descriptor readable, until arm(). The sleeper
// never waits for whoever rings: that thread may lose its CPU to it in the middle of ring().
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "base/check.h"
#include "io/os/unique_fd.h"

namespace mlt::io {

// The descriptor of a bell: a count that writes add to and a read takes whole. A type of its own, so that a test can
// put another thread's steps between a bell's.
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
  // False where the system had no descriptor left; errno says why.
  bool is_open() const { return descriptor_.is_open(); }
  int fd() const { return descriptor_.fd(); }

  // The sleeper's thread.
  void arm() {
    if (writes_due_ == 0 && armed_.load()) return;
    // First the read, then the exchange: whatever is read belongs to a ring that the exchange counts, if none before
    // did, and the bell is armed in any case. A write that is still on its way, from one of several ringers, ends one
    // sleep for nothing, and is read then.
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
  std::int64_t writes_due_ = 0;  // the sleeper's: rings that it has seen, less writes that it has read
};

using Doorbell = BasicDoorbell<BellDescriptor>;

}  // namespace mlt::io
