#include "engine/datapath_opening.h"

#include <algorithm>
#include <utility>

#include "core/config.h"
#include "engine/words.h"
#include "io/fault_datapath.h"
#include "io/udp_datapath.h"
#include "wire/packet.h"

namespace mlt::engine {

namespace {

// The socket buffer to ask for: a window of 2 MB and the rest for bursts of others.
constexpr std::uint32_t kReceiveBufferBytes = 8U << 20;
// Ethernet's payload, less IPv4 and UDP headers and ours, in whole 8 bytes: used where the interface has no such limit.
constexpr std::uint32_t kEthernetSegmentBytes = (1'500 - 28 - MLT_DATA_HEADER_BYTES) / 8 * 8;

bool is_data(std::span<const std::byte> first_bytes) {
  return !first_bytes.empty() && (static_cast<std::uint8_t>(first_bytes[0]) & 0x0F) == MLT_TYPE_DATA;
}

io::FaultOptions fault_options(const FaultOptions& faults, std::uint16_t rank) {
  io::FaultOptions options;
  // Every rank has faults of its own, all of them from one seed.
  options.seed = faults.seed * 0x9E3779B97F4A7C15ULL + rank;
  options.drop = faults.drop;
  options.duplicate = faults.duplicate;
  options.reorder = faults.reorder;
  options.corrupt = faults.corrupt;
  // A checksum that failed to catch it is the rare case; what this exercises is our own reading of headers.
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

}  // namespace

std::uint32_t choose_segment_bytes(const Options& options, const io::Capabilities& capabilities) {
  const std::uint32_t room = (capabilities.max_datagram_bytes - MLT_DATA_HEADER_BYTES) / 8 * 8;
  const std::uint32_t limit = std::min(room, core::EndpointConfig{}.max_segment_bytes);
  // PROTOCOL 3.2.7: A rank SHOULD offer the segment bytes that fill its interface's MTU, less IP, UDP and 40 bytes of
  //     header, up to 8,960; on an interface whose MTU leaves room for more, such as loopback, 1,432.
  if (options.segment_bytes == 0) {
    // Jumbo frames are used where the interface has them, not on loopback, whose 64 KB would make loss coarse.
    return room > core::EndpointConfig{}.max_segment_bytes ? kEthernetSegmentBytes : limit;
  }
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

OpenedDatapath open_datapath(const Options& options) {
  const auto address = io::SocketAddress::from_host(options.host, options.udp_port);
  if (!address) {
    throw Error(ErrorCode::kConfig, "rank " + std::to_string(options.rank) + ": host '" + options.host +
                                        "' is not an IPv4 or IPv6 address");
  }
  io::UdpOptions udp;
  udp.socket.bind = *address;
  udp.socket.receive_buffer_bytes = wanted_receive_buffer_bytes(options);
  udp.socket.send_buffer_bytes = udp.socket.receive_buffer_bytes;
  udp.peer_count = options.ranks;
  io::OsError error;
  std::unique_ptr<io::UdpDatapath> network = io::UdpDatapath::open(udp, error);
  if (!network) throw_os_error(error, options.rank);
  OpenedDatapath opened;
  opened.network = network.get();
  opened.outer = std::move(network);
  if (options.faults.any()) {
    opened.outer = io::FaultDatapath::wrap(std::move(opened.outer), fault_options(options.faults, options.rank), error);
    if (!opened.outer) throw_os_error(error, options.rank);
  }
  return opened;
}

}  // namespace mlt::engine
