#include "collective/gone_workers.h"

#include <string>
#include <utility>

#include "collective/messages.h"

namespace mlt::collective {

bool GoneWorkers::may_lose(std::size_t workers) const {
  return count_ + workers <= max_dead_ && count_ + workers < gone_.size();
}

bool GoneWorkers::add(std::uint16_t worker) {
  gone_[worker] = true;
  ++count_;
  if (count_ > max_dead_ || count_ == gone_.size()) {
    if (breaking_ < 0) breaking_ = worker;
    return false;
  }
  unreported_.push_back(worker);
  return true;
}

void GoneWorkers::inform(std::uint16_t worker, std::uint16_t gone) {
  encode(Gone{gone, max_dead_}, scratch_);
  verbs_.send_message(worker, scratch_);
}

void GoneWorkers::report() {
  for (const std::uint16_t worker : std::exchange(unreported_, {})) {
    const std::string error = verbs_.peer_error(worker);
    const std::string cause = survivors_.is_lost(worker) ? " failed or left the job" : " was excluded by the others";
    verbs_.notice((error.empty() ? "worker rank " + std::to_string(worker) + cause : error) +
                  ": the sums continue without it (" + std::to_string(count_) + " of at most " +
                  std::to_string(max_dead_) + " workers gone)");
  }
}

}  // namespace mlt::collective
