// Opens the control channel that the options select, and checks where connections may go without a job secret.
#pragma once

#include <memory>
#include <vector>

#include "core/config.h"
#include "engine/hello_negotiation.h"
#include "io/control/control_channel.h"
#include "io/control/control_frame.h"
#include "io/net/socket_address.h"
#include "mlt.h"

namespace mlt::engine {

// `paths`: where this rank receives datagrams. Throws mlt::Error.
std::unique_ptr<io::ControlChannel> open_control_channel(const Options& options, const core::EndpointConfig& config,
                                                         const HelloNegotiation& hello,
                                                         std::vector<io::HelloPath> paths);

// Where a peer's control channel listens. Resolves names, which may block. Throws mlt::Error.
io::SocketAddress resolve_peer(const Options& options, const PeerAddress& peer);

}  // namespace mlt::engine
