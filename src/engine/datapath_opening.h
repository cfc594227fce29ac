// Opens the datapath that the options select, and wraps it with fault injection.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "io/control/control_frame.h"
#include "io/datapath.h"
#include "io/network_datapath.h"
#include "io/shm/shm_datapath.h"
#include "mlt.h"

namespace mlt::engine {

struct OpenedDatapath {
  std::unique_ptr<io::Datapath> outer;     // takes the batches: the network, or fault injection around it
  io::NetworkDatapath* network = nullptr;  // inside `outer`, or `outer` itself: it knows addresses
  io::ShmDatapath* shared = nullptr;       // `outer`, if peers of this host may share memory; else null
};

// Throws mlt::Error.
OpenedDatapath open_datapath(const Options& options);

// Bytes requested from the kernel for unread datagrams; Capabilities::receive_buffer_bytes is the size granted.
std::uint32_t wanted_receive_buffer_bytes(const Options& options);

// The payload of a packet that this rank offers in hello. Throws mlt::Error if the configured one is not a multiple of
// 8 or does not fit the interface.
std::uint32_t choose_segment_bytes(const Options& options, const io::Capabilities& capabilities);

// Total rate of all interfaces under the paths, or the configured one.
double line_rate_bits_per_second(const Options& options, const io::NetworkDatapath& network);

// Addresses at which this rank receives, for the hello.
std::vector<io::HelloPath> hello_paths(const Options& options, const io::NetworkDatapath& network);

}  // namespace mlt::engine
