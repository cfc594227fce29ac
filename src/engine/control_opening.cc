#include "engine/control_opening.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/error_text.h"
#include "wire/packet.h"

namespace mlt::engine {

namespace {

// PROTOCOL 3.8.10: A process without a job secret MUST listen on loopback addresses and connect to them only, unless
//     its user says otherwise.
void require_secret(const Options& options, const io::SocketAddress& address, const std::string& purpose) {
  if (!options.secret.empty() || options.insecure || options.ranks == 1 || address.is_loopback()) return;
  throw Error(ErrorCode::kConfig,
              "rank " + std::to_string(options.rank) + " would " + purpose + " " + address.host() +
                  ", which is not a loopback address, without a job secret: anybody there could join the job. Give all "
                  "processes of the job the same secret (MLT_JOB_SECRET or MLT_JOB_SECRET_FILE; docs/security.md), or "
                  "allow it with MLT_INSECURE=1.");
}

}  // namespace

std::unique_ptr<io::ControlChannel> open_control_channel(const Options& options, const core::EndpointConfig& config,
                                                         const HelloNegotiation& hello,
                                                         std::vector<io::HelloPath> paths) {
  io::ControlOptions control;
  control.version = MLT_PROTOCOL_VERSION;
  control.rank = options.rank;
  control.world_size = options.ranks;
  control.job_id = options.job;
  control.secret = options.secret;
  control.listen = *io::SocketAddress::from_host(options.host, options.control_port);
  require_secret(options, control.listen, "listen on");
  control.dead_after_ns = options.peer_timeout_ns;
  control.suspended_after_ns = options.suspended_timeout_ns;
  // PROTOCOL 3.5.4: The connecting side MUST close a connection that is not up 5 s after it opened it, or 100 ms for
  //     each rank of the job if that is longer, but at most 60 s.
  control.hello_timeout_ns = io::hello_timeout_of(options.ranks);
  control.dscp = config.dscp.control;
  // PROTOCOL 3.6.1: The period MUST be 500 ms, or a quarter of the limit of 3.6.2 if that is shorter.
  control.heartbeat_ns = std::min(control.heartbeat_ns, options.peer_timeout_ns / 4);
  control.incarnation = hello.incarnation();
  control.cookies = hello.cookies();
  control.paths = std::move(paths);
  control.segment_bytes = hello.segment_bytes();
  control.window_bytes = hello.window_bytes();
  control.early_segments = config.early_segments_per_peer();
  control.early_transfers = config.early_transfers_per_peer();
  io::OsError error;
  auto channel = io::ControlChannel::open(control, error);
  if (!channel) throw_os_error(error, options.rank);
  return channel;
}

io::SocketAddress resolve_peer(const Options& options, const PeerAddress& peer) {
  if (peer.rank >= options.ranks || peer.rank == options.rank) {
    throw Error(ErrorCode::kConfig, "connect: rank " + std::to_string(peer.rank) + " is not a peer of rank " +
                                        std::to_string(options.rank));
  }
  io::OsError error;
  const auto address = io::SocketAddress::resolve(peer.host, peer.control_port, error);
  if (!address) throw_os_error(error, options.rank);
  require_secret(options, *address, "connect to rank " + std::to_string(peer.rank) + " at");
  return *address;
}

}  // namespace mlt::engine
