#include "unit/io/control/control_world.h"

#include <poll.h>

#include <algorithm>

namespace mlt::io_test {

bool serve(const std::vector<Node*>& nodes, const std::function<bool()>& done, base::DurationNs max_time) {
  const base::TimeNs deadline = io::monotonic_now() + max_time;
  for (;;) {
    if (done()) return true;
    base::TimeNs now = io::monotonic_now();
    if (now >= deadline) return false;
    base::TimeNs next = deadline;
    std::vector<pollfd> ready;
    for (const Node* node : nodes) {
      ready.push_back({node->channel->poll_fd(), POLLIN, 0});
      next = std::min(next, node->channel->next_timeout());
    }
    const base::DurationNs wait = std::max<base::DurationNs>(0, next - now);
    timespec timeout{wait / base::kSecond, wait % base::kSecond};
    ::ppoll(ready.data(), ready.size(), &timeout, nullptr);
    now = io::monotonic_now();
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (ready[i].revents == 0 && now < nodes[i]->channel->next_timeout()) continue;
      nodes[i]->channel->service(now, nodes[i]->sink);
    }
  }
}

}  // namespace mlt::io_test
