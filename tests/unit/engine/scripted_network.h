// A network datapath without a network: its sends have the outcome that the test chose.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "io/network_datapath.h"

namespace mlt::engine_test {

inline const io::SocketAddress kLoopback = *io::SocketAddress::from_host("127.0.0.1", 5'000);

struct ScriptedNetwork final : io::NetworkDatapath {
  explicit ScriptedNetwork(std::vector<io::SocketAddress> paths) : addresses(std::move(paths)) {}

  const io::Capabilities& capabilities() const override { return capabilities_; }
  io::SendStatus send(base::TimeNs, const base::DatagramRun& run) override {
    Sent one{run.peer, run.total_bytes, run.datagram_count, {}};
    for (std::uint32_t i = 0; i < run.slice_count; ++i) {
      one.content.insert(one.content.end(), run.slices[i].data, run.slices[i].data + run.slices[i].size);
    }
    sent.push_back(std::move(one));
    return status;
  }
  std::size_t receive(base::TimeNs, std::size_t, io::ReceiveSink&) override { return 0; }
  int readable_fd() const override { return -1; }
  std::string last_error() const override { return "sendmsg() failed: EPERM"; }
  bool set_peer(std::uint16_t, const io::SocketAddress&, io::OsError&) override { return true; }
  const io::SocketAddress& local_address() const override { return addresses.front(); }
  std::uint8_t paths() const override { return static_cast<std::uint8_t>(addresses.size()); }
  const io::SocketAddress& path_address(std::uint8_t path) const override { return addresses[path]; }
  PathCount path_count(std::uint8_t path) const override { return {10U + path, path}; }

  struct Sent {
    std::uint16_t peer;
    std::uint32_t bytes;
    std::uint32_t datagrams;
    std::vector<std::byte> content;
  };
  std::vector<io::SocketAddress> addresses;
  std::vector<Sent> sent;
  io::SendStatus status = io::SendStatus::kSent;
  io::Capabilities capabilities_;
};

}  // namespace mlt::engine_test
