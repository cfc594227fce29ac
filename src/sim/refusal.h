// Error texts of invalid values in a schedule: the field, the value and what was expected.
//
// Absent on purpose: which values are wrong (sim/transfers.cc, sim/transfer_routes.cc).
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace mlt::sim {

[[noreturn]] inline void refuse(const std::string& what) { throw std::invalid_argument(what); }

inline std::string item(const std::string& list, std::size_t index) { return list + "[" + std::to_string(index) + "]"; }

// The text of an invalid number has its bounds.
template <typename Number>
void demand(bool fine, const std::string& name, const Number& value, const std::string& expected) {
  if (!fine) refuse(name + " is " + std::to_string(value) + "; expected " + expected);
}

}  // namespace mlt::sim
