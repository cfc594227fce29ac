#include "collective/service_choice.h"

#include <algorithm>

namespace mlt::collective {

std::string service_text(std::uint16_t service) { return "summation service rank " + std::to_string(service); }

bool ServiceChoice::contains(std::uint16_t rank) const { return std::ranges::find(ranks_, rank) != ranks_.end(); }

bool ServiceChoice::is_worker(std::uint64_t rank) const {
  return !ranks_.empty() && rank < *std::ranges::min_element(ranks_);
}

std::uint16_t ServiceChoice::service_of(std::uint64_t key, std::uint32_t partition) const {
  std::uint16_t service = 0;
  for (std::size_t gone = 0; gone < ranks_.size(); ++gone) {
    service = ranks_[next_index(key, partition, ranks_.size(), gone)];
    if (!dead_.contains(service) || dead_.size() > max_dead_) break;
  }
  return service;
}

}  // namespace mlt::collective
