// Selects the peers to reach through shared memory: those on this host, of this user, that agree while the control
// connection opens (PROTOCOL.md, section 23). All others use the network, without extra waiting.
// Locking: all functions require the loop's lock (engine/driving.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "core/event.h"
#include "io/control/control_channel.h"
#include "io/control/control_frame.h"
#include "io/shm/shm_datapath.h"
#include "io/shm/shm_offer.h"
#include "mlt.h"

namespace mlt::engine {

// Max payload of a packet: two fill a batch.
inline constexpr std::uint32_t kShmSegmentBytes = 32'704;
// Size per direction between two ranks: enough for both to work at once, small enough for a core's cache.
inline constexpr std::uint32_t kShmRingBytes = 1U << 20;
// Max total per rank with many ranks on a host: limits the rings to 64 MiB while possible.
inline constexpr std::uint32_t kShmRingsBytes = 64U << 20;
// Window in bytes: larger than a ring, so that the ring is the limit.
inline constexpr std::uint32_t kShmWindowBytes = 16U << 20;

// Waiting threads of so many ranks on each CPU of a host delay each other if they poll. Fewer may take turns.
inline constexpr std::size_t kCrowdPerCpu = 4;
constexpr bool is_crowd(std::size_t ranks, std::size_t cpus) { return ranks > kCrowdPerCpu * cpus; }

// Whether the options allow shared memory: options for a datapath, paths, faults or the network's sizes and speeds
// select the network.
bool may_share_memory(const Options& options);

class LocalPeers {
 public:
  // From now on peers may offer memory to the rank of this incarnation.
  LocalPeers(const Options& options, std::uint64_t incarnation, io::ShmDatapath& datapath);

  // A peer comes up. If it shares memory with this rank, changes `up`, the result of the hellos, to that; else leaves
  // it as it is. False, with `error` set, if the peer uses memory that is unusable here.
  bool join(const io::Hello& hello, core::PeerUp& up, std::string& error);
  // The peer went down.
  void remove(std::uint16_t peer) { datapath_.remove_peer(peer); }
  // So many peers of this host may connect later.
  void expect(std::size_t peers) { expected_ += peers; }
  // Whether this rank and those that it shares memory with, or may share it with, are too many for the CPUs of this
  // host.
  bool are_crowd() const { return is_crowd(std::max(datapath_.peers(), expected_) + 1, cpus_); }
  // Takes peers down that wrote invalid positions into the shared memory.
  void drop_broken(io::ControlChannel& channel);

 private:
  std::optional<std::uint32_t> agree(const io::Hello& hello, std::uint64_t local_cookie, std::uint32_t segment_bytes,
                                     std::string& error);
  std::uint32_t offer(const io::Hello& hello, std::uint32_t segment_bytes);
  std::optional<std::uint32_t> take(const io::Hello& hello, std::uint64_t local_cookie, std::uint32_t segment_bytes,
                                    std::string& error);

  std::uint16_t rank_;
  std::uint32_t ring_bytes_;
  std::uint64_t job_;
  io::ShmDatapath& datapath_;
  std::size_t expected_ = 0;
  std::size_t cpus_;  // online, whatever the affinity of this process: ranks may be pinned to one each
  std::optional<io::ShmListener> listener_;
};

}  // namespace mlt::engine
