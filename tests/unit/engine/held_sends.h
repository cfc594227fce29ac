// Stops threads of this process inside sendmsg(), as a kernel does that has much to copy: this test binary's sendmsg()
// stands before the C library's. Only calls of I/O threads ("mlt-io-...") with more than one piece, that is with data,
// are held.
#pragma once

namespace mlt::engine_test {

class HeldSends {
 public:
  HeldSends();
  ~HeldSends();  // lets them go
  HeldSends(const HeldSends&) = delete;
  HeldSends& operator=(const HeldSends&) = delete;

  // Waits for a thread to be stopped; false if none is within ten seconds.
  bool wait_for_one();
  void release();
};

}  // namespace mlt::engine_test
