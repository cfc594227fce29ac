#include "io/fault/fault_dice.h"

#include <algorithm>
#include <array>

namespace mlt::io {

namespace {

// Independent sequences of one seed.
base::Prng sequence(std::uint64_t seed, std::uint64_t which) {
  base::Prng mixer(seed ^ (which * 0xD1342543DE82EF95ULL));
  return base::Prng(mixer.next());
}

}  // namespace

FaultDice::FaultDice(const FaultOptions& options)
    : options_(options),
      drop_(sequence(options.seed, 1)),
      burst_(sequence(options.seed, 2)),
      duplicate_(sequence(options.seed, 3)),
      reorder_(sequence(options.seed, 4)),
      corrupt_(sequence(options.seed, 5)),
      delay_(sequence(options.seed, 6)),
      flip_(sequence(options.seed, 7)) {}

bool FaultDice::drops(bool& in_burst) {
  const double draw = drop_.uniform();
  if (options_.burst_enter > 0) {
    in_burst_ = in_burst_ ? !burst_.chance(options_.burst_leave) : burst_.chance(options_.burst_enter);
  }
  in_burst = in_burst_;
  return draw < (in_burst_ ? options_.burst_drop : options_.drop);
}

Fate FaultDice::next() {
  Fate fate;
  // A fault kind that is off draws nothing, and one that is on draws for every datagram, dropped or not: each sequence
  // depends on the datagrams alone.
  if (options_.drop > 0 || options_.burst_enter > 0) fate.drop = drops(fate.in_burst);
  if (options_.corrupt > 0) fate.corrupt = corrupt_.chance(options_.corrupt);
  if (options_.duplicate > 0) fate.duplicate = duplicate_.chance(options_.duplicate);
  if (options_.reorder > 0) {
    const bool reorders = reorder_.chance(options_.reorder);
    const auto distance = 1 + static_cast<std::uint32_t>(reorder_.below(options_.reorder_distance));
    if (reorders) {
      fate.overtaken_by = distance;
      fate.hold_ns = options_.reorder_hold_ns;
    }
  }
  if (options_.delay > 0) {
    const bool delays = delay_.chance(options_.delay);
    const double jitter = delay_.uniform() * static_cast<double>(options_.delay_jitter_ns);
    if (delays) {
      fate.delay = true;
      fate.overtaken_by = 0;
      fate.hold_ns = options_.delay_ns + static_cast<base::DurationNs>(jitter);
    }
  }
  return fate;
}

void FaultDice::flip_bits(std::byte* bytes, std::size_t size) {
  if (options_.corrupt_first_bytes > 0) size = std::min<std::size_t>(size, options_.corrupt_first_bytes);
  const std::uint64_t bits = size * 8;
  constexpr std::uint64_t kMaxFlips = 3;
  const std::uint64_t flips = 1 + flip_.below(std::min(kMaxFlips, bits));
  std::array<std::uint64_t, kMaxFlips> flipped{};
  for (std::uint64_t i = 0; i < flips; ++i) {
    std::uint64_t bit = flip_.below(bits);
    // Flipping a bit twice would restore it: take the next free one.
    while (std::find(flipped.begin(), flipped.begin() + i, bit) != flipped.begin() + i) bit = (bit + 1) % bits;
    flipped[i] = bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
}

}  // namespace mlt::io
