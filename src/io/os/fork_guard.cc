#include "io/os/fork_guard.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace mlt::io {

// All guards of this process. Locked during fork, so that the child finds them consistent.
struct ForkGuards {
  static ForkGuards& all() {
    // Never destroyed: a guard may be destroyed later, during process exit.
    static ForkGuards* const guards = new ForkGuards;
    return *guards;
  }
  ForkGuards() { ::pthread_atfork(before, in_parent, in_child); }

  static void before() { all().mutex.lock(); }
  static void in_parent() { all().mutex.unlock(); }
  static void in_child() {
    for (const ForkGuard* guard : all().guards) guard->let_go_();
    all().mutex.unlock();
  }

  std::mutex mutex;
  std::vector<ForkGuard*> guards;
};

ForkGuard::ForkGuard(std::function<void()> let_go) : let_go_(std::move(let_go)) {
  ForkGuards& all = ForkGuards::all();
  const std::lock_guard lock(all.mutex);
  all.guards.push_back(this);
}

ForkGuard::~ForkGuard() {
  ForkGuards& all = ForkGuards::all();
  const std::lock_guard lock(all.mutex);
  std::erase(all.guards, this);
}

}  // namespace mlt::io
