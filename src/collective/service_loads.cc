#include "collective/service_loads.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "collective/collective.h"

namespace mlt::collective {

// Rounds the running sums, so that the units always add up, and no service is off by more than one.
ServiceLoads::ServiceLoads(std::span<const double> loads) : count_(loads.size()) {
  const double total = std::accumulate(loads.begin(), loads.end(), 0.0);
  MLT_CHECK(total > 0 && std::isfinite(total));
  double running = 0;
  std::uint32_t before = 0;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    MLT_CHECK(loads[i] >= 0);
    running += loads[i];
    // No rounding error may reach a service without a load.
    const std::uint32_t end =
        loads[i] == 0 ? before : std::max(before, static_cast<std::uint32_t>(std::lround(running / total * kUnits)));
    units_.push_back(end - before);
    ends_.push_back(end);
    before = end;
  }
  const auto [least, most] = std::ranges::minmax(loads);
  if (most - least > 1e-9 * most) return;
  units_.clear();
  ends_.clear();
}

std::optional<ServiceLoads> ServiceLoads::from_units(std::size_t services, const std::vector<std::uint32_t>& units) {
  ServiceLoads loads(services);
  if (units.empty()) return loads;
  if (units.size() != services) return std::nullopt;
  std::uint32_t sum = 0;
  for (const std::uint32_t one : units) {
    if (one > kUnits - sum) return std::nullopt;
    sum += one;
    loads.ends_.push_back(sum);
  }
  if (sum != kUnits) return std::nullopt;
  loads.units_ = units;
  return loads;
}

std::size_t ServiceLoads::loaded() const {
  return are_equal() ? count_ : count_ - static_cast<std::size_t>(std::ranges::count(units_, 0U));
}

std::size_t ServiceLoads::service_at(std::uint32_t position) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(ends_, position) - ends_.begin());
}

std::string ServiceLoads::text() const {
  if (are_equal()) return "equal loads";
  std::string text = "the loads ";
  for (std::size_t i = 0; i < units_.size(); ++i) {
    text += (i > 0 ? ", " : "") + in_short(std::round(units_[i] * 1e4 / kUnits) / 1e2);
  }
  return text + " %";
}

}  // namespace mlt::collective
