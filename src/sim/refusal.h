// How wrong values in a schedule are refused: by name, with the value and what was expected.
//
// Absent on purpose: which values are wrong (sim/transfers.cc, sim/transfer_ways.cc).
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace mlt::sim {

[[noreturn]] inline void refuse(const std::string& what) { throw std::invalid_argument(what); }

inline std::string item(const std::string& list, std::size_t index) { return list + "[" + std::to_string(index) + "]"; }

// What is wrong with a number is said with its bounds.
template <typename Number>
void demand(bool fine, const std::string& name, const Number& value, const std::string& expected) {
  if (!fine) refuse(name + " is " + std::to_string(value) + "; expected " + expected);
}

}  // namespace mlt::sim
