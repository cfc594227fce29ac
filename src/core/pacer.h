// Turns a rate into the time of the next batch. A driver that wakes late gets a credit of unused time, so that the mean
// rate holds.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace mlt::core {

class Pacer {
 public:
  // Waking a thread takes tens of microseconds; twice the length of a batch covers it.
  static constexpr base::DurationNs kCreditNs = 200 * base::kMicrosecond;
  // Min credit, since kCreditNs at low rates is about one packet's time. A thread that waits for its core wakes
  // milliseconds late, and a port that queues a few packets per flow must not become idle meanwhile.
  static constexpr std::uint64_t kCreditBytes = 30'000;
  // The same where nothing waited to be sent: the time was not wanted.
  static constexpr std::uint64_t kIdleCreditBytes = 7'500;
  // Max length of a batch, in time at the current rate (6.2.2 of PROTOCOL.md).
  static constexpr base::DurationNs kRunNs = 100 * base::kMicrosecond;
  // The same of a batch of two packets. Every batch costs its sender a wake-up and a system call, and at 200 Mbit/s one
  // packet takes 60 us. Two are as short a batch as saves any; four lost packets in ports that hold 64 KiB.
  static constexpr base::DurationNs kPairNs = base::kMillisecond;
  // Two longer packets at once are no short batch for a port that holds 64 KiB.
  static constexpr std::uint64_t kPairBytes = 7'500;

  base::TimeNs next_ns() const { return next_ns_; }
  bool may_send(base::TimeNs now) const { return now >= next_ns_; }

  // Something waits for next_ns(); nothing does any more.
  void on_refused() { is_awaited_ = true; }
  void on_idle() { is_awaited_ = false; }

  void on_sent(base::TimeNs now, std::uint64_t bytes, double rate_bytes_per_second) {
    // RECOVERY R1.3.2: A sender that is late MUST take back its unused time, but at most 200 us of it, or that of
    //     30,000 bytes if it is more, and of 7,500 where nothing waited for it.
    const std::uint64_t credit_bytes = is_awaited_ ? kCreditBytes : kIdleCreditBytes;
    const base::DurationNs credit_ns = std::max(kCreditNs, base::serialisation_ns(credit_bytes, rate_bytes_per_second));
    // RECOVERY R1.3.1: After a batch of n bytes the next MUST NOT leave before n / rate later, over all transfers to
    //     the peer, except for the credit of R1.3.2.
    next_ns_ = std::max(next_ns_, now - credit_ns) + base::serialisation_ns(bytes, rate_bytes_per_second);
    if (next_ns_ > now) is_awaited_ = false;
  }

  // Max length of a batch in bytes at this rate, of datagrams that are so long; the caller rounds to whole datagrams,
  // one at least. `pairs`: two of them may be longer than kRunNs.
  static std::uint64_t run_bytes(double rate_bytes_per_second, std::uint32_t datagram_bytes, bool pairs) {
    const std::uint64_t run = bytes_in(kRunNs, rate_bytes_per_second);
    const std::uint64_t two = std::uint64_t{2} * datagram_bytes;
    if (!pairs || two > kPairBytes) return run;
    return std::max(run, std::min(bytes_in(kPairNs, rate_bytes_per_second), two));
  }

 private:
  static std::uint64_t bytes_in(base::DurationNs duration_ns, double rate_bytes_per_second) {
    return static_cast<std::uint64_t>(rate_bytes_per_second * static_cast<double>(duration_ns) * 1e-9);
  }

  base::TimeNs next_ns_ = 0;
  bool is_awaited_ = false;  // something waits for next_ns_, or has waited and is being made up for
};

}  // namespace mlt::core
