// At a service: by which loads each worker cuts its tensors. All workers must have the same.
//
// Absent on purpose: messages, and what ends where they differ (summation.h). Owned by the driver's thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collective/service_loads.h"

namespace mlt::collective {

class AgreedLoads {
 public:
  AgreedLoads(std::uint16_t workers, std::uint16_t services) : has_(workers), loads_(services) {}

  bool has(std::uint16_t worker) const { return has_[worker]; }
  // The units of a worker's message, none for equal loads. Only the first of a worker counts.
  void add(std::uint16_t worker, const std::vector<std::uint32_t>& units);
  // Those of the first worker.
  const ServiceLoads& loads() const { return loads_; }
  // How a worker's differ from the first one's, and which worker; empty if all are alike.
  const std::string& difference() const { return difference_; }

 private:
  std::vector<bool> has_;  // per worker
  int first_ = -1;         // the worker that was first; -1: none yet
  ServiceLoads loads_;
  std::string difference_;
};

}  // namespace mlt::collective
