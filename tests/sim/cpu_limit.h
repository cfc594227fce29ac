// SIGPROF after so many seconds of this process's CPU time: on a busy machine a run may stand still for long.
#pragma once

#include <sys/time.h>

namespace mlt::test {

// 0: never.
inline void signal_after_cpu_time(unsigned seconds) {
  itimerval timer{};
  timer.it_value.tv_sec = seconds;
  setitimer(ITIMER_PROF, &timer, nullptr);
}

}  // namespace mlt::test
