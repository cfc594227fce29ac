// A state machine as a table: for every phase and every event, what happens. What a table does not name is wrong.
//
// Absent on purpose: actions. What is done about an event that is taken stands where the event is found out; the table
// says whether it may be done at all, and what the phase is afterwards. Constant data, no owner.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace mlt::core {

enum class Outcome : std::uint8_t {
  kWrong,  // excluded: counted under the event's name, and nothing else happens
  kStale,  // repeated or late, as networks do: counted as stale control, and nothing else happens
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
  struct Taken {
    Phase from;
    Event event;
    Phase next;
  };
  struct Stale {
    Phase in;
    Event event;
  };

  // Evaluated by the compiler: naming a cell twice does not compile.
  consteval StateTable(std::initializer_list<Taken> taken, std::initializer_list<Stale> stale) {
    for (const Taken& row : taken) fill(row.from, row.event, {Outcome::kTaken, row.next});
    for (const Stale& row : stale) fill(row.in, row.event, {Outcome::kStale, row.in});
  }

  constexpr const Cell& at(Phase phase, Event event) const {
    return cells_[static_cast<std::size_t>(phase) * kEvents + static_cast<std::size_t>(event)];
  }

 private:
  consteval void fill(Phase phase, Event event, Cell cell) {
    Cell& place = cells_[static_cast<std::size_t>(phase) * kEvents + static_cast<std::size_t>(event)];
    if (place.outcome != Outcome::kWrong) throw "this cell is named twice";
    place = cell;
  }

  std::array<Cell, kPhases * kEvents> cells_{};
};

}  // namespace mlt::core
