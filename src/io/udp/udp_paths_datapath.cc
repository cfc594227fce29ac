#include "io/udp/udp_paths_datapath.h"

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "wire/packet.h"

namespace mlt::io {

namespace {

// A socket that only sends: its port is sent to no peer.
constexpr std::uint32_t kUnusedReceiveBytes = 64U << 10;

OsError of_path(OsError error, std::uint8_t path) {
  error.text = "path " + std::to_string(path) + ": " + error.text;
  return error;
}

}  // namespace

std::unique_ptr<UdpPathsDatapath> UdpPathsDatapath::open(const UdpOptions& common, std::span<const PathSpec> specs,
                                                         OsError& error) {
  if (specs.empty() || specs.size() > MLT_MAX_PATHS) {
    error = bad_argument("cannot open a UDP datapath with " + std::to_string(specs.size()) + " paths; give 1 to " +
                         std::to_string(MLT_MAX_PATHS) + ".");
    return nullptr;
  }
  const auto paths = static_cast<std::uint8_t>(specs.size());
  std::unique_ptr<UdpPathsDatapath> datapath(new UdpPathsDatapath(paths, common.peer_count));
  // The paths' own sockets first: socket 0 is that of path 0.
  for (std::uint8_t path = 0; path < paths; ++path) {
    if (specs[path].bind.family() != specs[0].bind.family()) {
      error = of_path(bad_argument(specs[path].bind.format() + " is of another IP version than path 0's " +
                                   specs[0].bind.format() + "; all paths have the same."),
                      path);
      return nullptr;
    }
    if (!datapath->open_path(common, specs[path], path, error)) return nullptr;
  }
  for (std::uint8_t path = 0; path < paths; ++path) {
    UdpOptions options = common;
    options.path = path;
    options.flow_label = specs[path].flow_label;
    options.socket.bind = datapath->path_address(path).with_port(0);
    options.socket.device = specs[path].device;
    options.socket.receive_buffer_bytes = kUnusedReceiveBytes;
    if (!datapath->open_lists(options, specs[path], error)) return nullptr;
  }
  if (!datapath->watch(error)) return nullptr;
  datapath->combine_capabilities();
  datapath->name_counters();
  return datapath;
}

bool UdpPathsDatapath::open_path(const UdpOptions& common, const PathSpec& spec, std::uint8_t path, OsError& error) {
  UdpOptions options = common;
  options.socket.bind = spec.bind;
  options.socket.device = spec.device;
  options.path = path;
  options.flow_label = spec.flow_label;
  options.segments = spec.segments;
  auto udp = UdpDatapath::open(options, error);
  if (!udp) {
    error = of_path(error, path);
    return false;
  }
  own_[path] = static_cast<std::uint16_t>(sockets_.size());
  std::fill_n(routes_.begin() + path * peers_, peers_, own_[path]);
  sockets_.push_back({std::move(udp), path});
  return true;
}

// Opens a socket for each distinct list in `spec.segments_to`; the empty list is one of them.
bool UdpPathsDatapath::open_lists(const UdpOptions& path_options, const PathSpec& spec, OsError& error) {
  const std::uint8_t path = path_options.path;
  std::vector<std::pair<SegmentList, std::uint16_t>> known = {{spec.segments, own_[path]}};
  std::vector<bool> named(peers_, false);
  for (const auto& [rank, list] : spec.segments_to) {
    if (rank >= peers_ || named[rank]) {
      error = of_path(bad_argument("a segment list for rank " + std::to_string(rank) +
                                   ": give one to each of the ranks 0 to " + std::to_string(peers_ - 1) + " at most."),
                      path);
      return false;
    }
    named[rank] = true;
    auto found = std::find_if(known.begin(), known.end(), [&](const auto& one) { return one.first == list; });
    if (found == known.end()) {
      UdpOptions options = path_options;
      options.segments = list;
      auto udp = UdpDatapath::open(options, error);
      if (!udp) {
        error = of_path(error, path);
        return false;
      }
      found = known.insert(known.end(), {list, static_cast<std::uint16_t>(sockets_.size())});
      sockets_.push_back({std::move(udp), path});
    }
    routes_[std::size_t{path} * peers_ + rank] = found->second;
  }
  return true;
}

bool UdpPathsDatapath::watch(OsError& error) {
  epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  events_.resize(sockets_.size());
  for (std::size_t i = 0; i < sockets_.size(); ++i) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    if (!epoll_ || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, sockets_[i].udp->readable_fd(), &event) != 0) {
      error = os_error(errno, "watch the sockets of", local_address().format());
      return false;
    }
  }
  return true;
}

void UdpPathsDatapath::combine_capabilities() {
  capabilities_ = sockets_[0].udp->capabilities();
  for (const Socket& socket : sockets_) {
    const Capabilities& can = socket.udp->capabilities();
    capabilities_.max_datagram_bytes = std::min(capabilities_.max_datagram_bytes, can.max_datagram_bytes);
    capabilities_.segmentation_offload &= can.segmentation_offload;
    capabilities_.reads_ecn &= can.reads_ecn;
    capabilities_.stamps_arrivals &= can.stamps_arrivals;
    capabilities_.receive_offload &= can.receive_offload;
    capabilities_.busy_poll &= can.busy_poll;
  }
  // The smallest, not the sum: when the other paths fail, one socket receives a peer's whole window.
  for (const std::uint16_t own : own_) {
    capabilities_.receive_buffer_bytes =
        std::min(capabilities_.receive_buffer_bytes, sockets_[own].udp->capabilities().receive_buffer_bytes);
  }
}

void UdpPathsDatapath::name_counters() {
  for (std::uint8_t path = 0; path < path_count_; ++path) {
    const std::string prefix = "udp_path" + std::to_string(path);
    path_names_.push_back(prefix + "_runs_sent");
    path_names_.push_back(prefix + "_runs_failed");
  }
  for (const NamedCounter& counter : sockets_[0].udp->counters()) reported_.push_back({counter.name, 0});
  for (const std::string& name : path_names_) reported_.push_back({name, 0});
}

bool UdpPathsDatapath::set_peer(std::uint16_t rank, const SocketAddress& address, OsError& error) {
  return set_peer_paths(rank, std::span(&address, 1), error);
}

bool UdpPathsDatapath::set_peer_paths(std::uint16_t rank, std::span<const SocketAddress> addresses, OsError& error) {
  if (addresses.size() != path_count_) {
    error = bad_argument("rank " + std::to_string(rank) + " has " + std::to_string(addresses.size()) +
                         " paths and this rank " + std::to_string(path_count_) + "; give every rank the same number.");
    return false;
  }
  for (const Socket& socket : sockets_) {
    if (socket.udp->set_peer(rank, addresses[socket.path], error)) continue;
    error = of_path(error, socket.path);
    return false;
  }
  return true;
}

UdpDatapath* UdpPathsDatapath::route(const base::DatagramRun& run) const {
  if (run.peer >= peers_ || run.path >= path_count_) return nullptr;
  return sockets_[routes_[std::size_t{run.path} * peers_ + run.peer]].udp.get();
}

SendStatus UdpPathsDatapath::send(base::TimeNs now, const base::DatagramRun& run) {
  UdpDatapath* udp = route(run);
  if (udp == nullptr) return SendStatus::kNoPeer;
  const SendStatus status = udp->send(now, run);
  if (status == SendStatus::kFailed) failed_ = udp;
  return status;
}

int UdpPathsDatapath::writable_fd(const base::DatagramRun& run) const {
  const UdpDatapath* udp = route(run);
  return udp == nullptr ? -1 : udp->readable_fd();
}

const SocketAddress& UdpPathsDatapath::path_address(std::uint8_t path) const {
  MLT_CHECK(path < path_count_);
  return sockets_[own_[path]].udp->local_address();
}

std::size_t UdpPathsDatapath::receive(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) {
  // Queued output is not announced by readability.
  for (const Socket& socket : sockets_) {
    if (socket.udp->next_timeout() <= now) socket.udp->receive(now, 0, sink);
  }
  const int found = ::epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()), 0);
  if (found <= 0) return 0;
  const auto ready = static_cast<std::size_t>(found);
  std::size_t handed_up = 0;
  ++turn_;
  for (std::size_t i = 0; i < ready && handed_up < budget_runs; ++i) {
    // Equal parts of the remaining budget; with fewer runs than sockets the others get their turn next time.
    const std::size_t part = (budget_runs - handed_up + ready - i - 1) / (ready - i);
    const Socket& socket = sockets_[events_[(turn_ + i) % ready].data.u64];
    handed_up += socket.udp->receive(now, part, sink);
  }
  return handed_up;
}

base::TimeNs UdpPathsDatapath::next_timeout() const {
  base::TimeNs next = base::kNever;
  for (const Socket& socket : sockets_) next = std::min(next, socket.udp->next_timeout());
  return next;
}

std::string UdpPathsDatapath::last_error() const { return failed_ == nullptr ? std::string() : failed_->last_error(); }

NetworkDatapath::PathCount UdpPathsDatapath::path_count(std::uint8_t path) const {
  PathCount sum;
  for (const Socket& socket : sockets_) {
    if (socket.path != path) continue;
    const PathCount one = socket.udp->path_count(path);
    sum.runs_sent += one.runs_sent;
    sum.runs_failed += one.runs_failed;
  }
  return sum;
}

std::span<const NamedCounter> UdpPathsDatapath::counters() const {
  for (NamedCounter& counter : reported_) counter.value = 0;
  const std::size_t common = reported_.size() - path_names_.size();
  for (const Socket& socket : sockets_) {
    const auto counted = socket.udp->counters();
    for (std::size_t i = 0; i < common; ++i) reported_[i].value += counted[i].value;
  }
  std::size_t at = common;
  for (std::uint8_t path = 0; path < path_count_; ++path) {
    const PathCount count = path_count(path);
    reported_[at++].value = count.runs_sent;
    reported_[at++].value = count.runs_failed;
  }
  return reported_;
}

}  // namespace mlt::io
