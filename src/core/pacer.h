// Turns a rate into the time of the next batch. A driver that wakes late gets a credit of at most `kCreditNs` of unused
// time: the mean rate holds without longer bursts.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace mlt::core {

class Pacer {
 public:
  // Waking a thread takes tens of microseconds; twice the length of a batch covers it.
  static constexpr base::DurationNs kCreditNs = 200 * base::kMicrosecond;
  // Min credit, since kCreditNs at low rates is less than one packet's time. A thread that waits for its core wakes
  // milliseconds late, and a port that queues a few packets per flow must not become idle meanwhile.
  static constexpr std::uint64_t kCreditBytes = 7'500;
  // Max length of a batch, in time at the current rate (6.2.2 of PROTOCOL.md).
  static constexpr base::DurationNs kRunNs = 100 * base::kMicrosecond;
  // The same of a batch of two packets. Every batch costs its sender a wake-up and a system call, and at 200 Mbit/s one
  // packet takes 60 us. Two are as short a batch as saves any; four lost packets in ports that hold 64 KiB.
  static constexpr base::DurationNs kPairNs = base::kMillisecond;

  base::TimeNs next_ns() const { return next_ns_; }
  bool may_send(base::TimeNs now) const { return now >= next_ns_; }

  // RECOVERY R1.3.2: A sender that is late MUST take back its unused time, but at most 200 us of it, or that of 7,500
  //     bytes if it is more, so that the mean rate holds and no burst grows.
  void on_sent(base::TimeNs now, std::uint64_t bytes, double rate_bytes_per_second) {
    const base::DurationNs credit_ns = std::max(kCreditNs, base::serialisation_ns(kCreditBytes, rate_bytes_per_second));
    // RECOVERY R1.3.1: After a batch of n bytes the next MUST NOT leave before n / rate later, over all transfers to
    //     the peer, except for the credit of R1.3.2.
    next_ns_ = std::max(next_ns_, now - credit_ns) + base::serialisation_ns(bytes, rate_bytes_per_second);
  }

  // Max length of a batch in bytes at this rate, of datagrams that are so long; the caller rounds to whole datagrams,
  // one at least. `pairs`: two of them may be longer than kRunNs.
  static std::uint64_t run_bytes(double rate_bytes_per_second, std::uint32_t datagram_bytes, bool pairs) {
    const std::uint64_t run = bytes_in(kRunNs, rate_bytes_per_second);
    const std::uint64_t two = std::uint64_t{2} * datagram_bytes;
    // Two long packets at once are no longer a short batch for a port that holds 64 KiB.
    if (!pairs || two > kCreditBytes) return run;
    return std::max(run, std::min(bytes_in(kPairNs, rate_bytes_per_second), two));
  }

 private:
  static std::uint64_t bytes_in(base::DurationNs duration_ns, double rate_bytes_per_second) {
    return static_cast<std::uint64_t>(rate_bytes_per_second * static_cast<double>(duration_ns) * 1e-9);
  }

  base::TimeNs next_ns_ = 0;
};

}  // namespace mlt::core
