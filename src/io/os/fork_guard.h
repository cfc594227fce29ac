// Makes every child that this process forks (a data loader, os.fork()) release kernel objects that live until their
// last descriptor is closed: a queue of an interface, a program on it.
//
// Close-on-exec is not enough for a child that never executes another program. Absent on purpose: children made by
// vfork() or posix_spawn(), which do execute one.
#pragma once

#include <functional>

namespace mlt::io {

class ForkGuard {
 public:
  // `let_go` runs in the child, in its only thread, before fork() returns there. It may close descriptors and reset
  // state, but must not change kernel state that the parent uses. It may run again in a child of the child.
  explicit ForkGuard(std::function<void()> let_go);
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  ~ForkGuard();

 private:
  friend struct ForkGuards;
  std::function<void()> let_go_;
};

}  // namespace mlt::io
