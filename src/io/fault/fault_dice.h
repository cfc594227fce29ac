// Draws the faults of each datagram: the random part of the fault datapath, without datagrams.
//
// Each kind of fault draws from its own seeded sequence, so that enabling one kind does not change another's faults.
// Bursts: Gilbert, "Capacity of a burst-noise channel", BSTJ 1960; Elliott, BSTJ 1963.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/prng.h"
#include "base/time.h"
#include "io/fault/fault_options.h"

namespace mlt::io {

struct Fate {
  bool drop = false;
  bool in_burst = false;  // the drop happened in the bad state
  bool corrupt = false;
  bool duplicate = false;
  bool delay = false;
  base::DurationNs hold_ns = 0;    // delayed or reordered: maximum time; 0: not held
  std::uint32_t overtaken_by = 0;  // reordered: number of datagrams that go first
};

class FaultDice {
 public:
  explicit FaultDice(const FaultOptions& options);

  // Advances every sequence by one datagram, whatever its faults.
  Fate next();

  // Flips one to three distinct bits among the first `size` bytes (fewer if corrupt_first_bytes is smaller).
  void flip_bits(std::byte* bytes, std::size_t size);

 private:
  bool drops(bool& in_burst);

  FaultOptions options_;
  base::Prng drop_, burst_, duplicate_, reorder_, corrupt_, delay_, flip_;
  bool in_burst_ = false;
};

}  // namespace mlt::io
