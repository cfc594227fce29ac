#include "collective/agreed_loads.h"

namespace mlt::collective {

void AgreedLoads::add(std::uint16_t worker, const std::vector<std::uint32_t>& units) {
  if (has_[worker]) return;
  has_[worker] = true;
  const auto loads = ServiceLoads::from_units(loads_.count(), units);
  const auto text_of = [](int rank, const std::string& text) {
    return "rank " + std::to_string(rank) + " cuts its tensors by " + text;
  };
  if (!loads) {
    difference_ = text_of(worker, "loads of " + std::to_string(units.size()) + " services that are not those of the " +
                                      std::to_string(loads_.count()) + " of this job");
  } else if (first_ < 0) {
    first_ = worker;
    loads_ = *loads;
  } else if (*loads != loads_ && difference_.empty()) {
    difference_ = text_of(worker, loads->text()) + "; " + text_of(first_, loads_.text()) +
                  ": give every worker the same loads (PushPull's loads, MLT_PLAN)";
  }
}

}  // namespace mlt::collective
