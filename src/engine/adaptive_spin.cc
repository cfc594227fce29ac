#include "engine/adaptive_spin.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace mlt::engine {

bool Crowd::is_there(base::TimeNs now) {
  if (now >= next_look_) {
    next_look_ = now + kLookNs;
    rusage used{};
    ::getrusage(RUSAGE_THREAD, &used);
    const long thread = ::syscall(SYS_gettid);
    if (thread == thread_ && used.ru_nivcsw > switches_) rests_until_ = now + kRestNs;
    thread_ = thread;
    switches_ = used.ru_nivcsw;
  }
  return now < rests_until_;
}

}  // namespace mlt::engine
