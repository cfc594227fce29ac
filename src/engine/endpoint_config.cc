#include "engine/endpoint_config.h"

#include <algorithm>
#include <bit>

#include "engine/local_peers.h"
#include "wire/packet.h"

namespace mlt::engine {

namespace {

// The paper's thresholds are for a user-space stack. The kernel also copies a batch out and in, which a first sample of
// one small packet does not include: without this margin, that copying looks like a queue.
constexpr base::DurationNs kKernelRunNs = 50 * base::kMicrosecond;

}  // namespace

core::DscpMap dscp_map(const Options& options) {
  core::DscpMap map;
  map.control = options.control_dscp;
  if (options.data_dscp.empty()) return map;
  map.data_classes = static_cast<std::uint8_t>(std::min<std::size_t>(options.data_dscp.size(), core::kMaxClasses));
  // PROTOCOL 13.1.8: A service whose map lacks a registration's class sends the results in its last one.
  map.data.fill(options.data_dscp[map.data_classes - 1U]);
  std::copy_n(options.data_dscp.begin(), map.data_classes, map.data.begin());
  return map;
}

core::EndpointConfig endpoint_config(const Options& options, const OpenedDatapath& datapath) {
  const io::Capabilities& capabilities = datapath.outer->capabilities();
  core::EndpointConfig config;
  config.rank = options.rank;
  config.peers = options.ranks;
  config.operation_timeout_ns = options.operation_timeout_ns;
  config.dscp = dscp_map(options);
  config.max_sends = config.max_receives = options.max_operations + kSpareOperations;
  config.max_tags = options.max_tags;
  // Per operation, as many words as the segments of an 11 MB tensor at 1,432 bytes need; six times as large at 8,960.
  config.bitmap_words = std::bit_ceil(options.max_operations + kSpareOperations) * 128;
  config.early_segments = options.early_segments;
  config.early_transfers = options.early_transfers;
  config.max_window_bytes = std::uint64_t{options.max_window_mib} << 20;
  // They blur what each link carries, as reports that leave late do (EventLoop::datagrams_may_wait).
  config.pairs = !options.shares_by_rate;
  config.erasure_correction = options.erasure_correction;
  config.paths = datapath.network->paths();
  if (datapath.shared != nullptr) config.max_segment_bytes = kShmSegmentBytes;
  config.timely.line_rate_bytes_per_second = line_rate_bits_per_second(options, *datapath.network) / 8;
  config.timely.packet_bytes = choose_segment_bytes(options, capabilities) + MLT_DATA_HEADER_BYTES;
  config.timely.run_bytes = capabilities.max_run_bytes;
  // RECOVERY R1.2.3: Where the kernel moves the data, both offsets are 50 us longer, for its copying.
  config.timely.low_offset_ns += kKernelRunNs;
  config.timely.high_offset_ns += kKernelRunNs;
  return config;
}

}  // namespace mlt::engine
