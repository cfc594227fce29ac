#include "engine/local_peers.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace mlt::engine {

bool may_share_memory(const Options& options) {
  return options.datapath == "auto" && options.ranks > 1 && options.paths.empty() && !options.faults.any() &&
         options.segment_bytes == 0 && options.line_rate_bits_per_second == 0 && options.busy_poll_us == 0;
}

LocalPeers::LocalPeers(const Options& options, std::uint64_t incarnation, io::ShmDatapath& datapath)
    : rank_(options.rank),
      ring_bytes_(std::clamp(std::bit_floor(kShmRingsBytes / options.ranks), io::kMinShmRingBytes, kShmRingBytes)),
      job_(options.job),
      datapath_(datapath),
      cpus_(static_cast<std::size_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)))) {
  // PROTOCOL 23.1.1: A rank that takes offers MUST listen, with a socket of type SOCK_SEQPACKET, at the abstract Unix
  //     address ... before it listens for connections.
  io::OsError error;  // without shared memory, use the network
  listener_ = io::ShmListener::open(io::shm_address(options.job, incarnation), options.ranks, error);
}

bool LocalPeers::join(const io::Hello& hello, core::PeerUp& up, std::string& error) {
  const auto segment_bytes = agree(hello, up.local_cookie, up.segment_bytes, error);
  if (!segment_bytes) return false;
  if (*segment_bytes == 0) return true;
  up.segment_bytes = *segment_bytes;
  // PROTOCOL 23.3.2: The window, in each direction, MUST be 16 MiB, whatever the hellos say: the ring is what limits.
  up.window_bytes = up.own_window_bytes = kShmWindowBytes;
  up.holds_back = true;
  return true;
}

// Invalid positions in a peer's shared memory mean that the peer is broken: it is down, even if its connection is up.
// PROTOCOL 23.2.4: A side MUST end the use of the ring, and the peer is down, on a position that goes back, or beyond
//     what the ring can hold.
void LocalPeers::drop_broken(io::ControlChannel& channel) {
  std::uint16_t rank = 0;
  while (datapath_.poll_broken(rank)) {
    channel.fail_peer(rank, "rank " + std::to_string(rank) +
                                " wrote invalid positions into the memory that it shares with rank " +
                                std::to_string(rank_) +
                                ": install the same mlt release on every host, or start the job with MLT_DATAPATH=udp");
  }
}

// The segment bytes through shared memory, or 0 if the peer uses the network. Empty, with `error` set, if the peer uses
// memory that is unusable here.
std::optional<std::uint32_t> LocalPeers::agree(const io::Hello& hello, std::uint64_t local_cookie,
                                               std::uint32_t segment_bytes, std::string& error) {
  if (segment_bytes == 0 || segment_bytes > kShmSegmentBytes) return 0;
  // PROTOCOL 23.3.1: The segment bytes of the pair MUST be the largest multiple of those of 3.2.6 that is not above
  //     32,704: two packets fill a batch.
  const std::uint32_t shared_segment = kShmSegmentBytes / segment_bytes * segment_bytes;
  if (hello.rank < rank_) return offer(hello, shared_segment);
  return take(hello, local_cookie, shared_segment, error);
}

// The connecting rank creates the memory and passes it on before it confirms. On any error, the network is used.
std::uint32_t LocalPeers::offer(const io::Hello& hello, std::uint32_t segment_bytes) {
  io::OsError error;
  io::ShmDescriptors give;
  auto segment = io::ShmSegment::create(ring_bytes_, give, error);
  if (!segment || !datapath_.add_peer(hello.rank, std::move(*segment), error)) return 0;
  // PROTOCOL 23.1.2: The connecting side MAY offer memory after it has accepted the hello, and MUST do so before it
  //     sends confirm, without waiting.
  const io::ShmOffer offer{rank_, hello.cookie, ring_bytes_, segment_bytes};
  if (io::offer_shm(io::shm_address(job_, hello.incarnation), offer, give, error)) return segment_bytes;
  datapath_.remove_peer(hello.rank);
  return 0;
}

// The listening rank, after it received the confirmation.
std::optional<std::uint32_t> LocalPeers::take(const io::Hello& hello, std::uint64_t local_cookie,
                                              std::uint32_t segment_bytes, std::string& error) {
  if (!listener_) return 0;
  // PROTOCOL 23.1.5: The listening side MUST look for the rank's offer when it receives confirm: an offer that is not
  //     there then never comes.
  auto taken = listener_->take(hello.rank, local_cookie);
  if (!taken) return 0;
  const std::string pair = "rank " + std::to_string(hello.rank) + " shares memory with rank " + std::to_string(rank_);
  if (taken->offer.segment_bytes != segment_bytes) {
    error = pair + " in segments of " + std::to_string(taken->offer.segment_bytes) + " bytes instead of " +
            std::to_string(segment_bytes) +
            ": install the same mlt release on every host, or start the job with MLT_DATAPATH=udp";
    return std::nullopt;
  }
  io::OsError os_error;
  auto segment = io::ShmSegment::join(taken->offer.ring_bytes, std::move(taken->descriptors), os_error);
  if (!segment || !datapath_.add_peer(hello.rank, std::move(*segment), os_error)) {
    // PROTOCOL 23.1.5: Where it can't use an offer that was made, the peer is down: the other side counts on the offer.
    error =
        pair + ", which cannot use it: " + os_error.text + " Start the job with MLT_DATAPATH=udp to use the network.";
    return std::nullopt;
  }
  return segment_bytes;
}

}  // namespace mlt::engine
