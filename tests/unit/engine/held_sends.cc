#include "unit/engine/held_sends.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string_view>

namespace {

std::mutex mutex;
std::condition_variable changed;
bool holding = false;  // guarded by mutex
int held = 0;          // guarded by mutex: threads inside

bool is_io_thread() {
  std::array<char, 16> name{};
  ::pthread_getname_np(::pthread_self(), name.data(), name.size());
  return std::string_view(name.data()).starts_with("mlt-io-");
}

}  // namespace

extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  using Function = ssize_t(int, const msghdr*, int);
  static Function* const real = [] {
    void* symbol = dlsym(RTLD_NEXT, "sendmsg");
    Function* function = nullptr;
    std::memcpy(&function, &symbol, sizeof function);
    return function;
  }();
  if (message->msg_iovlen > 1 && is_io_thread()) {
    std::unique_lock lock(mutex);
    ++held;
    changed.notify_all();
    changed.wait(lock, [] { return !holding; });
    --held;
  }
  return real(fd, message, flags);
}

namespace mlt::engine_test {

HeldSends::HeldSends() {
  const std::lock_guard lock(mutex);
  holding = true;
}

HeldSends::~HeldSends() { release(); }

bool HeldSends::wait_for_one() {
  std::unique_lock lock(mutex);
  return changed.wait_for(lock, std::chrono::seconds(10), [] { return held > 0; });
}

void HeldSends::release() {
  const std::lock_guard lock(mutex);
  holding = false;
  changed.notify_all();
}

}  // namespace mlt::engine_test
