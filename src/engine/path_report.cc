#include "engine/path_report.h"

namespace mlt::engine {

namespace {

// Carries retries only.
bool is_out(const core::PathView& view) { return view.suspended || view.resting; }

}  // namespace

PathReport::PathReport(const core::Endpoint& endpoint, const OpenedDatapath& datapath)
    : endpoint_(endpoint), datapath_(datapath) {
  for (std::uint8_t path = 0; path < datapath.network->paths(); ++path) {
    addresses_.push_back(datapath.network->path_address(path));
  }
}

std::vector<PathStatus> PathReport::addresses() const {
  std::vector<PathStatus> paths(addresses_.size());
  for (std::size_t path = 0; path < paths.size(); ++path) {
    paths[path].path = static_cast<std::uint8_t>(path);
    paths[path].local = addresses_[path].format();
  }
  return paths;
}

void PathReport::fill(std::uint16_t peer, std::span<PathStatus> paths) const {
  std::uint64_t weights = 0;
  for (const PathStatus& one : paths) {
    const core::PathView view = endpoint_.path_view(peer, one.path);
    if (!is_out(view)) weights += view.weight;
  }
  for (PathStatus& one : paths) {
    const core::PathView view = endpoint_.path_view(peer, one.path);
    const io::NetworkDatapath::PathCount count = datapath_.network->path_count(one.path);
    if (datapath_.shared != nullptr && datapath_.shared->has_peer(peer)) one.local = "shared memory";
    one.packets_sent = view.packets_sent;
    one.packets_reported = view.packets_reported;
    one.loss = view.loss;
    one.rtt_ns = view.rtt_ns;
    one.share = weights > 0 && !is_out(view) ? static_cast<double>(view.weight) / static_cast<double>(weights) : 0;
    one.silent = view.suspended;
    one.resting = view.resting;
    one.runs_sent = count.runs_sent;
    one.runs_failed = count.runs_failed;
  }
}

}  // namespace mlt::engine
