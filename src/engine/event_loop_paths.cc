// State of the paths to a peer, as the event loop reports it.
#include <condition_variable>
#include <mutex>
#include <utility>

#include "engine/event_loop.h"

namespace mlt::engine {

// The holder of the loop's lock fills them in: this thread if the lock is free. Before connect() they stay zero.
std::vector<PathStatus> EventLoop::paths(std::uint16_t peer) {
  std::vector<PathStatus> found(path_addresses_.size());
  const auto fill = [&](TimeNs) {
    std::uint64_t weights = 0;
    for (const PathStatus& one : found) {
      const core::PathView view = endpoint_->path_view(peer, one.path);
      if (!view.silent) weights += view.weight;
    }
    for (PathStatus& one : found) {
      const core::PathView view = endpoint_->path_view(peer, one.path);
      const io::NetworkDatapath::PathCount count = network_->path_count(one.path);
      if (shared_ != nullptr && shared_->has_peer(peer)) one.local = "shared memory";
      one.packets_sent = view.packets_sent;
      one.packets_reported = view.packets_reported;
      one.loss = view.loss;
      one.rtt_ns = view.rtt_ns;
      one.share = weights > 0 && !view.silent ? static_cast<double>(view.weight) / static_cast<double>(weights) : 0;
      one.silent = view.silent;
      one.runs_sent = count.runs_sent;
      one.runs_failed = count.runs_failed;
    }
  };
  for (std::size_t path = 0; path < found.size(); ++path) {
    found[path].path = static_cast<std::uint8_t>(path);
    found[path].local = path_addresses_[path].format();
  }
  std::mutex mutex;
  std::condition_variable ready;
  bool done = false;
  const bool queued = started_ && run_command([&](TimeNs now) {
                        const std::lock_guard lock(mutex);
                        fill(now);
                        done = true;
                        ready.notify_all();
                      });
  if (queued) {
    std::unique_lock lock(mutex);
    ready.wait(lock, [&] { return done; });
  }
  return found;
}

}  // namespace mlt::engine
