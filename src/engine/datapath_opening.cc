#include "engine/datapath_opening.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "core/config.h"
#include "engine/error_text.h"
#include "engine/local_peers.h"
#include "io/fault/fault_datapath.h"
#include "io/net/interface.h"
#include "io/udp/path_spec.h"
#include "io/udp/udp_datapath.h"
#include "io/udp/udp_paths_datapath.h"
#include "io/vma/vma_datapath.h"
#include "io/xdp/xdp_datapath.h"
#include "wire/packet.h"

namespace mlt::engine {

namespace {

// Requested size of the socket buffer: a window of 2 MB, and space for bursts of other peers.
constexpr std::uint32_t kReceiveBufferBytes = 8U << 20;

// Loopback has no speed of its own; this is more than a core can move, so that only rate control limits it.
constexpr double kNoSpeedBitsPerSecond = 100e9;

bool is_data(std::span<const std::byte> first_bytes) {
  return !first_bytes.empty() &&
         wire::has_payload(static_cast<wire::PacketType>(static_cast<std::uint8_t>(first_bytes[0]) & 0x0F));
}

io::FaultOptions fault_options(const FaultOptions& faults, std::uint16_t rank) {
  io::FaultOptions options;
  // Ranks inject different faults, all derived from one seed.
  options.seed = faults.seed * 0x9E3779B97F4A7C15ULL + rank;
  options.drop = faults.drop;
  options.duplicate = faults.duplicate;
  options.reorder = faults.reorder;
  options.corrupt = faults.corrupt;
  // Corrupts only the header, to test its validation: corruption that passes the UDP checksum is rare.
  options.corrupt_first_bytes = MLT_DATA_HEADER_BYTES;
  if (faults.delay_ns > 0 || faults.jitter_ns > 0) {
    options.delay = 1;
    options.delay_ns = faults.delay_ns;
    options.delay_jitter_ns = faults.jitter_ns;
    options.holding_datagrams = 8'192;
  }
  options.holding_datagram_bytes = core::EndpointConfig{}.max_segment_bytes + MLT_DATA_HEADER_BYTES;
  if (!faults.control) options.eligible = &is_data;
  return options;
}

io::SegmentList segment_list(const std::vector<std::string>& segments, const std::string& where) {
  io::SegmentList list;
  for (const std::string& text : segments) {
    const auto segment = io::SocketAddress::from_host(text, 0);
    if (!segment || segment->family() != AF_INET6) {
      throw Error(ErrorCode::kConfig, where + "segment '" + text + "' is not an IPv6 address");
    }
    list.push_back(*segment);
  }
  return list;
}

io::SocketAddress bind_address(const Options& options, const PathOptions& path, const std::string& where) {
  const auto common = io::SocketAddress::from_host(options.host, path.udp_port);
  if (!common) throw Error(ErrorCode::kConfig, where + "host '" + options.host + "' is not an IPv4 or IPv6 address");
  if (path.host.empty() && path.interface.empty()) return *common;
  if (!path.host.empty()) {
    const auto own = io::SocketAddress::from_host(path.host, path.udp_port);
    // The hello carries no scope, and a link-local address without one is unusable.
    if (own && own->host().starts_with("fe80:") && own->host() != options.host) {
      throw Error(ErrorCode::kConfig,
                  where + "host '" + path.host + "' is link-local, and only the rank's own host may be");
    }
    if (own && own->family() == common->family()) return *own;
    throw Error(ErrorCode::kConfig, where + "host '" + path.host + "' is not an address of the same IP version as '" +
                                        options.host + "', the rank's host");
  }
  io::OsError error;
  const auto found = io::address_of_interface(path.interface, common->family(), error);
  if (!found) throw Error(ErrorCode::kConfig, where + error.text);
  return found->with_port(path.udp_port);
}

std::vector<io::PathSpec> path_specs(const Options& options) {
  std::vector<PathOptions> asked = options.paths;
  if (asked.empty()) {
    asked.emplace_back();
    asked[0].udp_port = options.udp_port;
  }
  std::vector<io::PathSpec> specs;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const std::string where = "rank " + std::to_string(options.rank) + ": " +
                              (options.paths.empty() ? std::string() : "path " + std::to_string(i) + ": ");
    io::PathSpec spec;
    spec.bind = bind_address(options, asked[i], where);
    spec.device = asked[i].interface;
    spec.flow_label = asked[i].flow_label;
    spec.segments = segment_list(asked[i].segments, where);
    for (const auto& [rank, list] : asked[i].segments_to) {
      spec.segments_to.emplace_back(rank, segment_list(list, where));
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

// One path without segment lists for single ranks needs one socket and no wrapper.
std::unique_ptr<io::NetworkDatapath> open_udp(io::UdpOptions udp, const std::vector<io::PathSpec>& specs,
                                              io::OsError& error) {
  if (specs.size() != 1 || !specs[0].segments_to.empty()) return io::UdpPathsDatapath::open(udp, specs, error);
  udp.socket.bind = specs[0].bind;
  udp.socket.device = specs[0].device;
  udp.flow_label = specs[0].flow_label;
  udp.segments = specs[0].segments;
  return io::UdpDatapath::open(udp, error);
}

[[noreturn]] void refuse(const Options& options, const std::string& why) {
  throw Error(ErrorCode::kConfig,
              "rank " + std::to_string(options.rank) + ": datapath (MLT_DATAPATH) '" + options.datapath + "' " + why);
}

// N of "xdp:N".
std::uint32_t queue_number(const Options& options) {
  const std::string_view text = std::string_view(options.datapath).substr(std::string_view("xdp").size());
  if (text.empty()) return 0;
  std::uint32_t queue = 0;
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data() + 1, end, queue);
  constexpr std::uint32_t kMaxQueue = 4'095;
  if (text[0] != ':' || status != std::errc{} || stop != end || queue > kMaxQueue) {
    refuse(options,
           "names no receive queue: it is 'xdp' for queue 0, or 'xdp:1' and so on, up to " + std::to_string(kMaxQueue));
  }
  return queue;
}

std::unique_ptr<io::NetworkDatapath> open_xdp(const Options& options, const io::UdpOptions& udp, io::OsError& error) {
  io::XdpOptions xdp;
  xdp.socket = udp.socket;
  xdp.peer_count = udp.peer_count;
  xdp.queue = queue_number(options);
  return io::XdpDatapath::open(xdp, error);
}

// Libvma and AF_XDP support one path and plain headers only.
void demand_plain_path(const Options& options, const std::vector<io::PathSpec>& specs) {
  const io::PathSpec& first = specs.front();
  if (specs.size() == 1 && first.flow_label == 0 && first.segments.empty() && first.segments_to.empty()) return;
  refuse(options, "has one path to a peer, without flow labels or segment lists, and the job requires more: use 'udp'");
}

std::unique_ptr<io::NetworkDatapath> open_network(const Options& options, io::UdpOptions udp,
                                                  const std::vector<io::PathSpec>& specs, io::OsError& error) {
  udp.socket.bind = specs.front().bind;
  udp.socket.device = specs.front().device;
  const bool under_vma = io::find_vma().present;
  const std::string_view name = options.datapath;
  if (name == "vma" || (name == "auto" && under_vma)) {
    demand_plain_path(options, specs);
    return io::VmaDatapath::open(udp, error);
  }
  if (name == "udp" && under_vma) {
    refuse(options,
           "cannot run under libvma, which ignores UDP_SEGMENT and the TOS byte: use 'vma' or 'auto', or start the "
           "process without LD_PRELOAD=libvma.so");
  }
  if (name == "udp" || name == "auto") return open_udp(udp, specs, error);
  if (name.starts_with("xdp")) {
    demand_plain_path(options, specs);
    return open_xdp(options, udp, error);
  }
  refuse(options, "is not one of 'auto', 'udp', 'vma' and 'xdp'");
}

}  // namespace

double line_rate_bits_per_second(const Options& options, const io::NetworkDatapath& network) {
  if (options.line_rate_bits_per_second > 0) return options.line_rate_bits_per_second;
  std::map<std::string, std::uint64_t> speeds;  // several paths may share an interface
  for (std::uint8_t path = 0; path < network.paths(); ++path) {
    io::OsError error;
    const auto interface = io::find_interface(network.path_address(path), error);
    if (!interface || interface->speed_bits_per_second == 0) return kNoSpeedBitsPerSecond;
    speeds[interface->name] = interface->speed_bits_per_second;
  }
  double sum = 0;
  for (const auto& [name, speed] : speeds) sum += static_cast<double>(speed);
  return sum;
}

std::vector<io::HelloPath> hello_paths(const Options& options, const io::NetworkDatapath& network) {
  std::vector<io::HelloPath> paths;
  const auto host = io::SocketAddress::from_host(options.host, 0);
  for (std::uint8_t path = 0; path < network.paths(); ++path) {
    const io::SocketAddress& address = network.path_address(path);
    io::HelloPath announced;
    announced.port = address.port();
    // Zero if the peer sees the same address itself: it may see another address than this rank, and knows its scope.
    if (!address.is_wildcard() && !(host && address.with_port(0) == *host)) announced.address = address.ip_bytes();
    paths.push_back(announced);
  }
  return paths;
}

std::uint32_t choose_segment_bytes(const Options& options, const io::Capabilities& capabilities) {
  const std::uint32_t room = (capabilities.max_datagram_bytes - MLT_DATA_HEADER_BYTES) / 8 * 8;
  // PROTOCOL 3.2.7: A rank SHOULD offer the segment bytes that fill its interface's MTU, less IP, UDP and 40 bytes of
  //     header, up to 8,960, on loopback as on other interfaces.
  const std::uint32_t limit = std::min(room, core::EndpointConfig{}.max_segment_bytes);
  if (options.segment_bytes == 0) return limit;
  if (options.segment_bytes % 8 != 0 || options.segment_bytes > limit) {
    throw Error(ErrorCode::kConfig,
                "rank " + std::to_string(options.rank) + ": segment_bytes is " + std::to_string(options.segment_bytes) +
                    ": it must be a multiple of 8 and at most " + std::to_string(limit) + " on this interface");
  }
  return options.segment_bytes;
}

std::uint32_t wanted_receive_buffer_bytes(const Options& options) {
  return options.receive_buffer_bytes > 0 ? options.receive_buffer_bytes : kReceiveBufferBytes;
}

namespace {

OpenedDatapath with_faults(const Options& options, std::unique_ptr<io::NetworkDatapath> network) {
  OpenedDatapath opened;
  opened.network = network.get();
  opened.outer = std::move(network);
  if (options.faults.any()) {
    io::OsError error;
    const io::FaultOptions faults = fault_options(options.faults, options.rank);
    opened.outer = io::FaultDatapath::wrap(std::move(opened.outer), faults, error);
    if (!opened.outer) throw_os_error(error, options.rank);
  }
  return opened;
}

// Wraps the network for peers of this host. Under libvma the library owns the sockets' events, and a thread cannot wait
// for both.
OpenedDatapath with_shared_memory(const Options& options, OpenedDatapath opened) {
  if (!may_share_memory(options) || io::find_vma().present) return opened;
  io::OsError error;
  auto shared = io::ShmDatapath::wrap(std::move(opened.outer), options.ranks, error);
  if (!shared) throw_os_error(error, options.rank);
  opened.shared = shared.get();
  opened.outer = std::move(shared);
  return opened;
}

}  // namespace

OpenedDatapath open_datapath(const Options& options) {
  const std::vector<io::PathSpec> specs = path_specs(options);
  io::UdpOptions udp;
  udp.socket.receive_buffer_bytes = wanted_receive_buffer_bytes(options);
  udp.socket.send_buffer_bytes = udp.socket.receive_buffer_bytes;
  udp.socket.busy_poll_us = options.busy_poll_us;
  udp.peer_count = options.ranks;
  io::OsError error;
  std::unique_ptr<io::NetworkDatapath> network = open_network(options, udp, specs, error);
  if (!network) throw_os_error(error, options.rank);
  return with_shared_memory(options, with_faults(options, std::move(network)));
}

}  // namespace mlt::engine
