// How two ranks of one host come to share memory: the connecting side makes it and hands it over through a Unix socket
// of the listening side, before it confirms the control connection. So the listening side finds the offer when it hears
// the confirmation, or there is none, and neither ever waits for the other.
//
// That the socket can be reached proves the same host and network namespace. The kernel tells each side the user of the
// other; another user's is refused. The cookie in the offer, which the listening side's hello gave to this rank alone,
// proves whose it is.
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
  std::uint16_t rank = 0;    // whose it is
  std::uint64_t cookie = 0;  // that the listening side gave it
  std::uint32_t ring_bytes = 0;
  std::uint32_t segment_bytes = 0;  // of the packets that go through it
};

// The name in the abstract namespace where the rank of that incarnation takes offers.
std::string shm_address(std::uint64_t job_id, std::uint64_t incarnation);

// True: the other side has it, or will find it. False where there is nobody, or another user; `error` says which, and
// is empty if nobody listens there, as on another host.
bool offer_shm(const std::string& address, const ShmOffer& offer, const ShmDescriptors& give, OsError& error);

// Whether the process at the other end of a Unix socket has this process's effective user.
bool is_same_user(int fd);

class ShmListener {
 public:
  struct Taken {
    ShmOffer offer;
    ShmDescriptors descriptors;
  };

  // Null, with `error` filled, if the name is taken or the system has none.
  static std::optional<ShmListener> open(const std::string& address, std::uint16_t ranks, OsError& error);

  // The offer of `rank` that proves itself by `cookie`, if it came.
  std::optional<Taken> take(std::uint16_t rank, std::uint64_t cookie);
  // Callers that were turned away: another user's, or without a proper offer.
  std::uint64_t refused() const { return refused_; }

 private:
  explicit ShmListener(UniqueFd fd, std::uint16_t ranks) : fd_(std::move(fd)), ranks_(ranks) {}
  void accept_all();
  void read_offers();

  UniqueFd fd_;
  std::uint16_t ranks_;
  std::vector<UniqueFd> unread_;  // accepted, and silent so far; at most `ranks_`, the oldest goes first
  std::vector<Taken> waiting_;    // of ranks that are not up yet; at most `ranks_`
  std::uint64_t refused_ = 0;
};

}  // namespace mlt::io
