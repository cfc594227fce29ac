#include "collective/shares.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace mlt::collective {

namespace {

// 256 * 2^(i / 8).
constexpr std::array<std::uint64_t, kCodesPerOctave> kOctave = {256, 279, 304, 332, 362, 395, 431, 470};
// A link that is slower yet counts as so many octaves slower than the fastest.
constexpr std::uint32_t kMaxOctaves = 16;

// Time that a link takes for a unit, in units of its own; nothing where there is no limit.
std::vector<std::uint64_t> costs_of(std::span<const std::uint8_t> codes) {
  std::uint32_t fastest = 0;
  for (const std::uint8_t code : codes) {
    if (code != kNoLimit) fastest = std::max<std::uint32_t>(fastest, code);
  }
  std::vector<std::uint64_t> costs;
  for (const std::uint8_t code : codes) {
    if (code == kNoLimit) {
      costs.push_back(0);
      continue;
    }
    const std::uint32_t slower = std::min(fastest - code, kMaxOctaves * kCodesPerOctave);
    costs.push_back(kOctave[slower % kCodesPerOctave] << (slower / kCodesPerOctave));
  }
  return costs;
}

// The times of all links, as chunks are given units.
class Links {
 public:
  explicit Links(std::vector<std::uint64_t> costs) : costs_(std::move(costs)) {
    for (const std::uint64_t cost : costs_) times_.push_back(2 * kShareUnits * cost);
  }
  // PROTOCOL 22.8.4: Each unit goes to a chunk that spares the slowest link, of several the first in the group's order:
  //     to that of the member after its receiver if the next link takes longer than the one before, else to its
  //     receiver's.
  std::size_t next() const {
    const std::size_t n = costs_.size(), slowest = slowest_link();
    const std::size_t before = (slowest + n - 1) % n, after = (slowest + 1) % n;
    return (slowest + (times_[after] > times_[before] ? 2 : 1)) % n;
  }
  void give(std::size_t chunk) {
    const std::size_t n = costs_.size();
    for (const std::size_t link : {(chunk + n - 1) % n, (chunk + n - 2) % n}) times_[link] -= costs_[link];
  }
  std::uint64_t slowest_time() const { return times_[slowest_link()]; }

 private:
  std::size_t slowest_link() const {
    return static_cast<std::size_t>(std::ranges::max_element(times_) - times_.begin());
  }

  std::vector<std::uint64_t> costs_;
  std::vector<std::uint64_t> times_;
};

}  // namespace

// PROTOCOL 22.8.1: A member that takes shares by rate MUST announce the rate of the link to the next member of the
//     group as 2^(8 + rate / 8) bytes per second, rounded to the nearest, at least 1 and at most 254; one that nothing
//     limits as 255.
std::uint8_t rate_code(double bytes_per_second) {
  if (!(bytes_per_second > 0)) return kNoLimit;
  const double code = kCodesPerOctave * (std::log2(bytes_per_second) - 8);
  return static_cast<std::uint8_t>(std::clamp(std::round(code), 1.0, 254.0));
}

std::vector<std::uint16_t> shares_by_rate(std::span<const std::uint8_t> codes) {
  const std::size_t n = codes.size();
  // Between two members every link carries the tensor once, however it is cut.
  if (n < 3 || std::ranges::find(codes, kNoShares) != codes.end()) return {};
  if (std::ranges::all_of(codes, [&](std::uint8_t code) { return code == codes[0]; })) return {};
  const std::vector<std::uint64_t> costs = costs_of(codes);
  Links links(costs);
  std::vector<std::uint16_t> units(n);
  for (std::uint32_t i = 0; i < kShareUnits; ++i) {
    const std::size_t chunk = links.next();
    ++units[chunk];
    links.give(chunk);
  }
  // PROTOCOL 22.8.4: Chunks MUST stay equal unless the slowest link then takes at most seven eighths of the time that
  //     equal chunks take: the highest cost times 8,192 (n - 1) / n, rounded down.
  const std::uint64_t equal = std::ranges::max(costs) * 2 * kShareUnits * (n - 1) / n;
  return equal > 0 && links.slowest_time() * 8 <= equal * 7 ? units : std::vector<std::uint16_t>();
}

std::uint16_t cut_id(std::span<const std::uint16_t> shares) {
  if (shares.empty()) return 0;
  std::uint32_t hash = 0x811C9DC5U;
  for (const std::uint16_t units : shares) {
    for (const std::uint32_t byte : {units & 0xFFU, static_cast<unsigned>(units) >> 8})
      hash = (hash ^ byte) * 0x01000193U;
  }
  return std::max<std::uint16_t>(1, static_cast<std::uint16_t>(hash ^ (hash >> 16)));
}

}  // namespace mlt::collective
