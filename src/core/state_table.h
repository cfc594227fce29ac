// A state machine as a table: the outcome of every event in every phase. Combinations that the table does not name are
// wrong.
//
// Absent on purpose: actions. The code that detects an event performs its action; the table states whether the event is
// allowed and the next phase. Constant data, no owner.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace mlt::core {

enum class Outcome : std::uint8_t {
  kWrong,  // excluded: counted under the event's name, otherwise ignored
  kStale,  // repeated or late, as happens in networks: counted as stale control, otherwise ignored
  kTaken,  // allowed: the phase becomes `next`
};

// `Phase` and `Event` count from 0; their last enumerator is kCount.
template <typename Phase, typename Event>
class StateTable {
 public:
  static constexpr std::size_t kPhases = static_cast<std::size_t>(Phase::kCount);
  static constexpr std::size_t kEvents = static_cast<std::size_t>(Event::kCount);

  struct Cell {
    Outcome outcome = Outcome::kWrong;
    Phase next{};
  };
  // One or several phases.
  struct Phases {
    consteval Phases(Phase phase) : bits(1U << static_cast<unsigned>(phase)) {}
    consteval Phases(std::initializer_list<Phase> phases) {
      for (const Phase phase : phases) bits |= 1U << static_cast<unsigned>(phase);
    }
    consteval bool contains(std::size_t phase) const { return ((bits >> phase) & 1U) != 0; }
    std::uint32_t bits = 0;
  };
  static_assert(kPhases <= 32);
  struct Taken {
    Phases from;
    Event event;
    Phase next = Phase::kCount;  // kCount: the phase does not change
  };
  struct Stale {
    Phases in;
    Event event;
  };

  // Evaluated at compile time: naming a cell twice does not compile.
  consteval StateTable(std::initializer_list<Taken> taken, std::initializer_list<Stale> stale) {
    for (const Taken& row : taken) fill(row.from, row.event, Outcome::kTaken, row.next);
    for (const Stale& row : stale) fill(row.in, row.event, Outcome::kStale, Phase::kCount);
  }

  constexpr const Cell& at(Phase phase, Event event) const {
    return cells_[static_cast<std::size_t>(phase) * kEvents + static_cast<std::size_t>(event)];
  }

 private:
  consteval void fill(Phases phases, Event event, Outcome outcome, Phase next) {
    for (std::size_t phase = 0; phase < kPhases; ++phase) {
      if (!phases.contains(phase)) continue;
      Cell& place = cells_[phase * kEvents + static_cast<std::size_t>(event)];
      if (place.outcome != Outcome::kWrong) throw "this cell is named twice";
      place = {outcome, next == Phase::kCount ? static_cast<Phase>(phase) : next};
    }
  }

  std::array<Cell, kPhases * kEvents> cells_{};
};

}  // namespace mlt::core
