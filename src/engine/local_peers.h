// Which peers are reached through shared memory: those on this host, of this user, that agree while the control
// connection opens (PROTOCOL.md, section 23). All others take the network, and nobody waits to find out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/control/control_frame.h"
#include "io/shm/shm_datapath.h"
#include "io/shm/shm_offer.h"
#include "mlt.h"

namespace mlt::engine {

// Of a packet's payload, at most: two fill a run.
inline constexpr std::uint32_t kShmSegmentBytes = 32'704;
// Of each direction between two ranks: enough for both to work at once, little enough to stay in a core's cache.
inline constexpr std::uint32_t kShmRingBytes = 1U << 20;
// Of jobs with many ranks on a host: so that the rings of one rank stay within 64 MiB while they can.
inline constexpr std::uint32_t kShmRingsBytes = 64U << 20;
// Unacknowledged bytes: more than a ring holds, which is what limits.
inline constexpr std::uint32_t kShmWindowBytes = 16U << 20;

// Whether the options leave it to us: whoever asks for a datapath, paths, faults or the network's sizes and speeds
// means the network.
bool may_share_memory(const Options& options);

class LocalPeers {
 public:
  // From now on peers may offer memory to the rank of this incarnation.
  LocalPeers(const Options& options, std::uint64_t incarnation, io::ShmDatapath& datapath);

  // A peer comes up, to which `local_cookie` was given and whose packets of the network have `segment_bytes`. The
  // segment bytes through shared memory, or 0: it takes the network. Nothing, with `error` filled: it counts on memory
  // that can't be used here.
  std::optional<std::uint32_t> join(const io::Hello& hello, std::uint64_t local_cookie, std::uint32_t segment_bytes,
                                    std::string& error);

 private:
  std::uint32_t offer(const io::Hello& hello, std::uint32_t segment_bytes);
  std::optional<std::uint32_t> take(const io::Hello& hello, std::uint64_t local_cookie, std::uint32_t segment_bytes,
                                    std::string& error);

  std::uint16_t rank_;
  std::uint32_t ring_bytes_;
  std::uint64_t job_;
  io::ShmDatapath& datapath_;
  std::optional<io::ShmListener> listener_;
};

}  // namespace mlt::engine
