// Options of the fault datapath and their validation.
#pragma once

#include <cstdint>
#include <span>

#include "base/time.h"
#include "io/os/os_error.h"

namespace mlt::io {

enum class FaultSide : std::uint8_t { kSend, kReceive };

// True if faults may hit the datagram that starts with these bytes (its first slice when sending, all of it when
// receiving).
using DatagramPredicate = bool (*)(std::span<const std::byte> first_bytes);

// Probabilities are per eligible datagram, in [0, 1].
struct FaultOptions {
  FaultSide side = FaultSide::kSend;
  std::uint64_t seed = 1;
  double drop = 0;  // in the good state, if there are bursts
  double duplicate = 0;
  double reorder = 0;
  double corrupt = 0;
  double delay = 0;

  // Bursts: a two-state Markov chain that steps once per eligible datagram; 0 keeps it in the good state.
  double burst_enter = 0;  // good to bad
  double burst_leave = 1;  // bad to good; the mean burst is 1 / burst_leave datagrams
  double burst_drop = 1;   // drop probability in the bad state

  std::uint32_t reorder_distance = 3;                     // overtaken by 1 to this many later datagrams of its peer
  base::DurationNs reorder_hold_ns = base::kMillisecond;  // released after this in any case
  base::DurationNs delay_ns = base::kMillisecond;         // fixed part
  base::DurationNs delay_jitter_ns = 0;                   // plus uniform in [0, this)
  std::uint32_t corrupt_first_bytes = 0;                  // flip bits in the first this many bytes only; 0: anywhere
  DatagramPredicate eligible = nullptr;                   // null: every datagram

  std::uint32_t holding_datagrams = 1'024;       // maximum number held at once, delayed and reordered
  std::uint32_t holding_datagram_bytes = 2'048;  // largest datagram that can be held
};

// Names the first invalid option and its valid range; no error if all are valid.
OsError validate(const FaultOptions& options);

}  // namespace mlt::io
