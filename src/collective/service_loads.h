// The part of all tensors that each summation service sums: equal, or as given. BytePS (OSDI'20) section 4.1 hashes
// parts of tensors into ranges that are in proportion to the loads; so do tensors here that are too small to be cut.
//
// Absent on purpose: which loads are best (the planner), and how a tensor is cut (partition_grid.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mlt::collective {

class ServiceLoads {
 public:
  static constexpr std::uint32_t kUnits = 65'536;  // all services together

  // Equal loads of so many services.
  explicit ServiceLoads(std::size_t services) : count_(services) {}
  // From loads in any unit, of which one is above 0; less than half a unit becomes 0. Loads that are alike are equal.
  explicit ServiceLoads(std::span<const double> loads);
  // From the units of a message, none if the loads are equal. Empty if those are not the loads of so many services.
  static std::optional<ServiceLoads> from_units(std::size_t services, const std::vector<std::uint32_t>& units);

  std::size_t count() const { return count_; }
  bool are_equal() const { return units_.empty(); }
  // None if they are equal.
  const std::vector<std::uint32_t>& units() const { return units_; }
  // Of the services before this one, together; only of loads that are not equal.
  std::uint32_t units_before(std::size_t service) const { return ends_[service] - units_[service]; }
  // Services that sum anything.
  std::size_t loaded() const;
  // The service that a position below kUnits belongs to; only of loads that are not equal.
  std::size_t service_at(std::uint32_t position) const;
  // "equal loads" or "the loads 1, 2.5, 2.5" in percent.
  std::string text() const;

  bool operator==(const ServiceLoads&) const = default;

 private:
  std::size_t count_;
  std::vector<std::uint32_t> units_;
  std::vector<std::uint32_t> ends_;  // running sums of the units
};

}  // namespace mlt::collective
