// Workers that a service reported as gone: it sums without them. A worker's half of gone_workers.h.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "collective/messages.h"
#include "collective/service_choice.h"
#include "collective/verbs.h"

namespace mlt::collective {

class ReportedGone {
 public:
  ReportedGone(const ServiceChoice& services, Verbs& verbs) : services_(services), verbs_(verbs) {}

  // Logs a rank that no service reported before.
  void on_message(std::uint16_t from, const Gone& gone);
  std::size_t count() const { return ranks_.size(); }
  // The error of a key that cannot be summed without this rank, and who was gone before it.
  std::string abort_text(std::uint64_t key, int failed_rank) const;

 private:
  const ServiceChoice& services_;
  Verbs& verbs_;
  std::set<std::uint16_t> ranks_;
};

}  // namespace mlt::collective
