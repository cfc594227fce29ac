// Opens what the options ask for: the datapath to the network, and injected faults around it.
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
  std::unique_ptr<io::Datapath> outer;     // what runs are handed to: the network, or faults around it
  io::NetworkDatapath* network = nullptr;  // the one inside, or outer itself: it knows addresses
  io::ShmDatapath* shared = nullptr;       // outer, where peers of this host may share memory; else null
};

// Throws mlt::Error.
OpenedDatapath open_datapath(const Options& options);

// What is asked of the kernel for unread datagrams; Capabilities::receive_buffer_bytes is what it gave.
std::uint32_t wanted_receive_buffer_bytes(const Options& options);

// The payload of a packet that this rank offers in hello. Throws mlt::Error if the options ask for one that is no
// multiple of 8 or does not fit the interface.
std::uint32_t choose_segment_bytes(const Options& options, const io::Capabilities& capabilities);

// What all interfaces under the paths carry together, or what the options say.
double line_rate_bits_per_second(const Options& options, const io::NetworkDatapath& network);

// Where this rank receives, for the hello.
std::vector<io::HelloPath> hello_paths(const Options& options, const io::NetworkDatapath& network);

}  // namespace mlt::engine
