// Makes the next socket calls of this process fail as told: this test binary's sendmsg(), sendmmsg() and recvmsg()
// stand before the C library's, and pass on whatever is not scripted. For the errors that loopback never gives.
#pragma once

#include <deque>

namespace mlt::io_test {

struct ScriptedCall {
  int error = 0;     // errno to fail with; 0: do not fail
  int at_most = -1;  // sendmmsg only: pass on so many messages at most
};

struct SocketScript {
  std::deque<ScriptedCall> sendmsg, sendmmsg, recvmsg;
  long long stamps_shift_ns = 0;      // of every arrival stamp: the wall clock was set since it was taken
  int segmented_sends_fail_with = 0;  // errno for every sendmsg() with UDP_SEGMENT; 0: none

  bool empty() const { return sendmsg.empty() && sendmmsg.empty() && recvmsg.empty(); }
};

SocketScript& socket_script();

// Clears the script at both ends of a test.
struct ScriptScope {
  ScriptScope() { socket_script() = {}; }
  ~ScriptScope() { socket_script() = {}; }
  ScriptScope(const ScriptScope&) = delete;
  ScriptScope& operator=(const ScriptScope&) = delete;
};

}  // namespace mlt::io_test
