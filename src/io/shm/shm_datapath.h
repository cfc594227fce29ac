// A datapath that carries runs to ranks of this host through shared memory, and runs to all others through the network
// datapath that it wraps.
//
// A turn looks at the rings of active peers only, and the bell of any other peer makes it active: ranks of large jobs
// have hundreds of peers on their host, and exchange packets with a few at a time.
//
// A ring drops nothing: while one is full, has_room_for() returns false for that peer only, and the sender skips it. A
// descriptor is written only if the other side has announced that it sleeps. Single-threaded, like every datapath;
// allocates only when a peer is added.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/counters.h"
#include "io/datapath.h"
#include "io/os/unique_fd.h"
#include "io/shm/shm_segment.h"

namespace mlt::io {

enum class ShmCounter : std::size_t {
  kPeers,            // ranks reached through shared memory now
  kRunsSent,         //
  kBytesSent,        //
  kRecordsReceived,  // a run of long datagrams is several
  kBytesReceived,    //
  kFull,             // times that a peer was skipped because its ring was full
  kAnswersDropped,   // small runs dropped because even the reserved space was full: the peer does not read
  kWakesSent,        // times that a sleeping peer was woken
  kBroken,           // peers whose ring had invalid control words
  kCount
};

class ShmDatapath final : public Datapath {
 public:
  // Null, with `error` filled, if the system has no descriptor left.
  static std::unique_ptr<ShmDatapath> wrap(std::unique_ptr<Datapath> network, std::uint16_t ranks, OsError& error);

  // From now on runs to `rank` are sent through `segment`, and its runs are received from it.
  bool add_peer(std::uint16_t rank, ShmSegment segment, OsError& error);
  // Releases the memory of a peer that is gone.
  void remove_peer(std::uint16_t rank);
  bool has_peer(std::uint16_t rank) const { return rank < peers_.size() && peers_[rank] != nullptr; }
  std::size_t peers() const { return ranks_.size(); }
  // Returns each peer with a broken ring once; false if there is none.
  bool poll_broken(std::uint16_t& rank);

  const Capabilities& capabilities() const override { return capabilities_; }
  SendStatus send(base::TimeNs now, const base::DatagramRun& run) override;
  bool has_room_for(std::uint16_t peer) override;
  std::size_t receive(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) override;
  bool prepare_to_wait() override;
  int readable_fd() const override { return epoll_.get(); }
  int writable_fd(const base::DatagramRun& run) const override;
  base::TimeNs next_timeout() const override { return network_->next_timeout(); }
  std::string last_error() const override { return last_error_.empty() ? network_->last_error() : last_error_; }
  std::span<const NamedCounter> counters() const override { return counters_.all(); }

 private:
  struct Peer {
    explicit Peer(ShmSegment memory) : segment(std::move(memory)) {}
    ShmSegment segment;
    bool full = false;         // has_room_for() returned false, and not true since
    bool told_broken = false;  // returned by poll_broken()
    bool active = true;        // in active_; else its ring is empty, and this side sleeps there: its bell will ring
    std::uint32_t empty_looks = 0;  // at its ring, since the last record
  };

  ShmDatapath(std::unique_ptr<Datapath> network, std::uint16_t ranks, UniqueFd epoll);
  void activate(std::uint16_t rank);
  void rest_idle_peers();
  void read_bells();
  void stop_waiting();
  std::size_t receive_from(Peer& peer, std::size_t budget, ReceiveSink& sink);
  std::size_t receive_from_network(base::TimeNs now, std::size_t budget, ReceiveSink& sink);

  std::unique_ptr<Datapath> network_;
  UniqueFd epoll_;
  Capabilities capabilities_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null: through the network
  std::vector<std::uint16_t> ranks_;          // those with a peer
  std::vector<std::uint16_t> active_;         // those of ranks_ that receive() looks at
  std::size_t next_ = 0;                      // index in active_ of the peer to read first
  bool waits_ = false;                        // prepare_to_wait() announced a wait
  bool network_due_ = true;                   // its descriptor was readable
  std::uint32_t turns_without_network_ = 0;
  bool any_network_peer_ = false;
  bool broken_seen_ = false;  // a ring broke since poll_broken() last returned false
  std::string last_error_;
  std::unique_ptr<std::array<std::byte, base::kMaxRunBytes>> copy_;  // of records of short datagrams
  CounterTable<ShmCounter> counters_;
};

}  // namespace mlt::io
