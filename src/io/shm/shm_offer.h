// Shared memory set-up between two ranks of one host: the connecting side creates the memory and passes it through a
// Unix socket of the listening side, before it confirms the control connection. So when the listening side receives the
// confirm, the offer has arrived or there is none, and neither side ever waits for the other.
//
// Reaching the socket proves the same host and network namespace. The kernel reports the peer's user to each side;
// another user is rejected. The cookie in the offer, which the listening side's hello gave to this rank alone,
// identifies the rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/counters.h"
#include "io/os/os_error.h"
#include "io/os/unique_fd.h"
#include "io/shm/shm_segment.h"

namespace mlt::io {

struct ShmOffer {
  std::uint16_t rank = 0;    // the connecting side's
  std::uint64_t cookie = 0;  // assigned by the listening side
  std::uint32_t ring_bytes = 0;
  std::uint32_t segment_bytes = 0;  // segment size of the packets sent through it
};

// The name in the abstract namespace at which the rank of that incarnation takes offers.
std::string shm_address(std::uint64_t job_id, std::uint64_t incarnation);

// True: the listening side has the offer or will find it. False if there is no listener or it is of another user;
// `error` is then the reason, and empty without a listener, as on another host.
bool offer_shm(const std::string& address, const ShmOffer& offer, const ShmDescriptors& give, OsError& error);

// Whether the process at the other end of a Unix socket has this process's effective user.
bool is_same_user(int fd);

class ShmListener {
 public:
  struct Taken {
    ShmOffer offer;
    ShmDescriptors descriptors;
  };

  // Nothing, with `error` filled, if the name is taken or the system has no descriptor left.
  static std::optional<ShmListener> open(const std::string& address, std::uint16_t ranks, OsError& error);

  // The offer of `rank` with this `cookie`, if it has arrived.
  std::optional<Taken> take(std::uint16_t rank, std::uint64_t cookie);
  // Rejected clients: another user's, or without a valid offer.
  std::uint64_t refused() const { return refused_; }

 private:
  explicit ShmListener(UniqueFd fd, std::uint16_t ranks) : fd_(std::move(fd)), ranks_(ranks) {}
  void accept_all();
  void read_offers();

  UniqueFd fd_;
  std::uint16_t ranks_;
  std::vector<UniqueFd> unread_;  // accepted, nothing received yet; at most `ranks_`, the oldest is dropped first
  std::vector<Taken> waiting_;    // of ranks that are not up yet; at most `ranks_`
  std::uint64_t refused_ = 0;
};

}  // namespace mlt::io
