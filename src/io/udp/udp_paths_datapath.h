// Several paths over kernel UDP: a UdpDatapath per path, and one more for every segment list that only some ranks use,
// because the kernel sets a segment list per socket. A run leaves by its path's socket to the peer's address and port
// of that path, so that both ports differ and every switch's ECMP hash includes the path.
//
// All sockets are read, each within its share of the budget. Counters are summed; runs sent and failed are also counted
// by path ("udp_path0_runs_sent"). A job of one path uses a plain UdpDatapath. One thread owns it; no call but
// construction, counters() and last_error() allocates.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/network_datapath.h"
#include "io/os/unique_fd.h"
#include "io/udp/path_spec.h"
#include "io/udp/udp_datapath.h"

namespace mlt::io {

class UdpPathsDatapath final : public NetworkDatapath {
 public:
  // `common` holds the options that all paths share; address, path, flow label and segments come from the specs. Null
  // on failure, with `error` filled.
  static std::unique_ptr<UdpPathsDatapath> open(const UdpOptions& common, std::span<const PathSpec> specs,
                                                OsError& error);

  bool set_peer(std::uint16_t rank, const SocketAddress& address, OsError& error) override;
  const SocketAddress& local_address() const override { return sockets_.front().udp->local_address(); }
  std::uint8_t paths() const override { return path_count_; }
  const SocketAddress& path_address(std::uint8_t path) const override;
  std::string path_device(std::uint8_t path) const override { return sockets_[own_[path]].udp->path_device(0); }
  bool set_peer_paths(std::uint16_t rank, std::span<const SocketAddress> addresses, OsError& error) override;
  PathCount path_count(std::uint8_t path) const override;

  const Capabilities& capabilities() const override { return capabilities_; }
  SendStatus send(base::TimeNs now, const base::DatagramRun& run) override;
  std::size_t receive(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) override;
  int readable_fd() const override { return epoll_.get(); }
  int writable_fd(const base::DatagramRun& run) const override;
  base::TimeNs next_timeout() const override;
  std::string last_error() const override;
  std::span<const NamedCounter> counters() const override;

 private:
  struct Socket {
    std::unique_ptr<UdpDatapath> udp;
    std::uint8_t path = 0;
  };

  UdpPathsDatapath(std::uint8_t paths, std::uint16_t peers)
      : path_count_(paths), peers_(peers), own_(paths), routes_(std::size_t{paths} * peers) {}

  bool open_path(const UdpOptions& common, const PathSpec& spec, std::uint8_t path, OsError& error);
  bool open_lists(const UdpOptions& path_options, const PathSpec& spec, OsError& error);
  bool watch(OsError& error);
  void combine_capabilities();
  void name_counters();
  UdpDatapath* route(const base::DatagramRun& run) const;

  std::uint8_t path_count_;
  std::uint16_t peers_;
  std::vector<Socket> sockets_;        // the paths' own; then those of lists that only some ranks use
  std::vector<std::uint16_t> own_;     // [path]: its own socket
  std::vector<std::uint16_t> routes_;  // [path * peers + rank]: index of the socket to use
  UniqueFd epoll_;
  std::vector<epoll_event> events_;
  std::size_t turn_ = 0;  // ready socket to read first
  Capabilities capabilities_;
  const UdpDatapath* failed_ = nullptr;  // socket whose last error this datapath reports

  std::vector<std::string> path_names_;         // strings that path_counters point to
  mutable std::vector<NamedCounter> reported_;  // summed on demand
};

}  // namespace mlt::io
