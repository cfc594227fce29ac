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
#include "io/unique_fd.h"

namespace mlt::io {

class Doorbell {
 public:
  Doorbell() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

  // False where the system had no descriptor left; errno says why.
  bool is_open() const { return static_cast<bool>(fd_); }
  int fd() const { return fd_.get(); }

  // The sleeper's thread.
  void arm() {
    const bool was_rung = !armed_.load();
    if (was_rung) ++writes_due_;
    // A write that is still on its way ends one sleep for nothing, and is read then. One that belongs to a ring since
    // was_rung may be read ahead.
    std::uint64_t written = 0;
    if (writes_due_ != 0 && ::read(fd_.get(), &written, sizeof written) == sizeof written) {
      writes_due_ -= static_cast<std::int64_t>(written);
    }
    if (was_rung) armed_.store(true);
  }

  // Any thread.
  void ring() {
    if (!armed_.load() || !armed_.exchange(false)) return;
    rings_.fetch_add(1, std::memory_order_relaxed);
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(fd_.get(), &one, sizeof one);
  }

  std::uint64_t rings() const { return rings_.load(std::memory_order_relaxed); }

 private:
  UniqueFd fd_;
  std::atomic<bool> armed_{true};
  std::atomic<std::uint64_t> rings_{0};
  std::int64_t writes_due_ = 0;  // the sleeper's: rings that it has seen, less writes that it has read
};

}  // namespace mlt::io
