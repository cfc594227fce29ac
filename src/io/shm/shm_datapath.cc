#include "io/shm/shm_datapath.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace mlt::io {

namespace {

constexpr std::array<std::string_view, CounterTable<ShmCounter>::kSize> kShmCounterNames = {
    "shm_peers", "shm_runs_sent",       "shm_bytes_sent", "shm_records_received", "shm_bytes_received",
    "shm_full",  "shm_answers_dropped", "shm_wakes_sent", "shm_broken",
};

// Datagrams of at least this length are records of their own: the reader starts on the first while the next is copied.
constexpr std::uint32_t kLongDatagramBytes = 8U << 10;
// The longest control datagram has 1,084 bytes. Records of datagrams up to this length are copied before delivery:
// their fields are read more than once, and the other process could change them in between. Of longer ones only data
// packets pass the length checks; their headers are read once, and their payload is opaque.
constexpr std::uint32_t kShortDatagramBytes = 2'048;
// Reserved in each ring for replies and probes: has_room_for() returns false before they run out of space.
constexpr std::uint32_t kReservedBytes = 64U << 10;
// Space of the longest run, in the maximum number of records.
constexpr std::uint32_t kLongestRunBytes = static_cast<std::uint32_t>(base::kMaxRunBytes) + 9 * 128;
static_assert(kLongestRunBytes + kReservedBytes <= kMinShmRingBytes);
// Calls that skip the network while no peer is known to be there: datagrams of unknown senders are still read and
// counted.
constexpr std::uint32_t kTurnsWithoutNetwork = 64;
// The rings of so many peers cost less to look at than the bells: in such jobs no peer rests.
constexpr std::size_t kFewPeers = 8;
// Looks at an empty ring until its peer rests; a sleep of this side counts as half of them.
constexpr std::uint32_t kLooksUntilRest = 64;
constexpr std::uint64_t kNetworkEvent = ~std::uint64_t{0};

// Bytes of each record of a run.
std::uint32_t record_bytes(const base::DatagramRun& run) {
  return run.datagram_bytes >= kLongDatagramBytes ? run.datagram_bytes : run.total_bytes;
}

std::uint32_t footprint(const base::DatagramRun& run) {
  const std::uint32_t each = record_bytes(run);
  const std::uint32_t whole = run.total_bytes / each;
  const std::uint32_t rest = run.total_bytes % each;
  return whole * shm_footprint(each) + (rest > 0 ? shm_footprint(rest) : 0);
}

bool watch(int epoll, int fd, std::uint64_t name) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = name;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

std::unique_ptr<ShmDatapath> ShmDatapath::wrap(std::unique_ptr<Datapath> network, std::uint16_t ranks, OsError& error) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll || (network->readable_fd() >= 0 && !watch(epoll.get(), network->readable_fd(), kNetworkEvent))) {
    error = os_error(errno, "open", "an epoll descriptor");
    return nullptr;
  }
  return std::unique_ptr<ShmDatapath>(new ShmDatapath(std::move(network), ranks, std::move(epoll)));
}

ShmDatapath::ShmDatapath(std::unique_ptr<Datapath> network, std::uint16_t ranks, UniqueFd epoll)
    : network_(std::move(network)),
      epoll_(std::move(epoll)),
      capabilities_(network_->capabilities()),
      peers_(ranks),
      copy_(std::make_unique<std::array<std::byte, base::kMaxRunBytes>>()),
      counters_(kShmCounterNames) {
  capabilities_.name = "shm(" + capabilities_.name + ")";
  ranks_.reserve(ranks);
  active_.reserve(ranks);
}

bool ShmDatapath::add_peer(std::uint16_t rank, ShmSegment segment, OsError& error) {
  if (rank >= peers_.size() || peers_[rank]) {
    error =
        bad_argument("rank " + std::to_string(rank) + " cannot use shared memory: it is this rank, or not in the job");
    return false;
  }
  auto peer = std::make_unique<Peer>(std::move(segment));
  if (!watch(epoll_.get(), peer->segment.own_bell(), rank)) {
    error = os_error(errno, "watch", "the bell of shared memory");
    return false;
  }
  peers_[rank] = std::move(peer);
  ranks_.push_back(rank);
  active_.push_back(rank);
  counters_.add(ShmCounter::kPeers);
  return true;
}

void ShmDatapath::remove_peer(std::uint16_t rank) {
  if (!has_peer(rank)) return;
  // By descriptor number: a copy of the descriptor may be open elsewhere, and would keep it in the set.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peers_[rank]->segment.own_bell(), nullptr);
  peers_[rank].reset();
  std::erase(ranks_, rank);
  std::erase(active_, rank);
  next_ = 0;
  counters_.add(ShmCounter::kPeers, ~std::uint64_t{0});  // decrements
}

bool ShmDatapath::poll_broken(std::uint16_t& rank) {
  if (!broken_seen_) return false;
  for (const std::uint16_t candidate : ranks_) {
    Peer& peer = *peers_[candidate];
    if (peer.told_broken || !(peer.segment.in().is_broken() || peer.segment.out().is_broken())) continue;
    peer.told_broken = true;
    counters_.add(ShmCounter::kBroken);
    rank = candidate;
    return true;
  }
  broken_seen_ = false;
  return false;
}

bool ShmDatapath::has_room_for(std::uint16_t rank) {
  if (!has_peer(rank)) return network_->has_room_for(rank);
  Peer& peer = *peers_[rank];
  const bool room = peer.segment.out().has_room(kLongestRunBytes + kReservedBytes);
  if (!room && !peer.full) counters_.add(ShmCounter::kFull);
  peer.full = !room;
  if (!room) activate(rank);  // prepare_to_wait() looks for space at active peers only
  broken_seen_ |= peer.segment.out().is_broken();
  return room;
}

SendStatus ShmDatapath::send(base::TimeNs now, const base::DatagramRun& run) {
  last_error_.clear();
  if (!has_peer(run.peer)) {
    any_network_peer_ = true;
    return network_->send(now, run);
  }
  if (run.path != 0) return SendStatus::kNoPeer;
  if (run.total_bytes > base::kMaxRunBytes || run.datagram_count > base::kMaxRunSegments) return SendStatus::kTooLarge;
  MLT_CHECK(run.total_bytes > 0);
  ShmWriter& out = peers_[run.peer]->segment.out();
  const bool is_short = run.total_bytes <= kShortDatagramBytes || run.datagram_bytes <= base::kMaxGatheredBytes;
  // PROTOCOL 23.3.3: Of each ring 64 KiB are reserved for other datagrams than data; a reply or a probe that finds no
  //     space even there is lost like a datagram.
  if (!out.has_room(footprint(run) + (is_short ? 0 : kReservedBytes))) {
    if (!is_short) return SendStatus::kWouldBlock;
    counters_.add(ShmCounter::kAnswersDropped);
    last_error_ = "rank " + std::to_string(run.peer) +
                  " does not read the shared memory between it and this rank, which is full: its process is stopped or "
                  "hangs";
    return SendStatus::kFailed;
  }
  const std::uint32_t each = record_bytes(run);
  for (std::uint32_t from = 0; from < run.total_bytes; from += each) {
    out.push(run, from, std::min(each, run.total_bytes - from));
    if (out.must_wake_reader()) {
      counters_.add(ShmCounter::kWakesSent);
      peers_[run.peer]->segment.ring_other();
    }
  }
  counters_.add(ShmCounter::kRunsSent);
  counters_.add(ShmCounter::kBytesSent, run.total_bytes);
  return SendStatus::kSent;
}

void ShmDatapath::activate(std::uint16_t rank) {
  Peer& peer = *peers_[rank];
  peer.empty_looks = 0;
  if (std::exchange(peer.active, true)) return;
  if (!waits_) peer.segment.in().stop_sleeping();  // else a thread may sleep on the bells
  active_.push_back(rank);
}

// A peer that rests costs nothing until its bell rings.
void ShmDatapath::rest_idle_peers() {
  if (ranks_.size() <= kFewPeers) return;
  std::erase_if(active_, [&](std::uint16_t rank) {
    Peer& peer = *peers_[rank];
    if (peer.full || peer.empty_looks < kLooksUntilRest) return false;
    // PROTOCOL 23.2.3: A side that is about to sleep MUST first set its word, and then look again.
    peer.segment.in().announce_sleep();
    if (peer.segment.in().has_more()) {
      peer.segment.in().stop_sleeping();
      peer.empty_looks = 0;
      return false;
    }
    peer.active = false;
    return true;
  });
  if (next_ >= active_.size()) next_ = 0;
}

// Clears the bells that rang, which would end every later sleep, and activates their peers.
void ShmDatapath::read_bells() {
  std::array<epoll_event, 32> events;
  for (std::size_t turns = ranks_.size() / events.size() + 1; turns > 0; --turns) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
      const std::uint64_t name = events[static_cast<std::size_t>(i)].data.u64;
      if (name == kNetworkEvent) {
        network_due_ = true;
      } else if (has_peer(static_cast<std::uint16_t>(name))) {
        peers_[static_cast<std::size_t>(name)]->segment.drain_own_bell();
        activate(static_cast<std::uint16_t>(name));
      }
    }
    if (count < static_cast<int>(events.size())) return;
  }
}

// Cancels prepare_to_wait(): from here on this side polls.
void ShmDatapath::stop_waiting() {
  const bool rang = std::exchange(waits_, false);
  if (rang) {
    for (const std::uint16_t rank : active_) {
      peers_[rank]->segment.in().stop_sleeping();
      peers_[rank]->segment.out().stop_waiting();
    }
  }
  if (rang || active_.size() < ranks_.size()) read_bells();
}

std::size_t ShmDatapath::receive_from(Peer& peer, std::size_t budget, ReceiveSink& sink) {
  ShmReader& in = peer.segment.in();
  std::size_t handed_up = 0;
  ShmRecord record;
  while (handed_up < budget && in.front(record)) {
    base::ReceivedRun run;
    run.bytes = record.bytes;
    if (record.datagram_bytes <= kShortDatagramBytes) {
      std::memcpy(copy_->data(), record.bytes.data(), record.bytes.size());
      run.bytes = std::span(*copy_).first(record.bytes.size());
    }
    run.datagram_bytes = record.datagram_bytes;
    run.ecn = static_cast<base::Ecn>(record.traffic_class & 3U);
    counters_.add(ShmCounter::kRecordsReceived);
    counters_.add(ShmCounter::kBytesReceived, run.bytes.size());
    ++handed_up;
    sink.on_run(run);
    in.release();
  }
  broken_seen_ |= in.is_broken();
  peer.empty_looks = handed_up > 0 ? 0 : peer.empty_looks + 1;
  if (handed_up > 0 && in.must_wake_writer()) {
    counters_.add(ShmCounter::kWakesSent);
    peer.segment.ring_other();
  }
  return handed_up;
}

std::size_t ShmDatapath::receive_from_network(base::TimeNs now, std::size_t budget, ReceiveSink& sink) {
  if (!any_network_peer_ && !network_due_ && ++turns_without_network_ < kTurnsWithoutNetwork) return 0;
  turns_without_network_ = 0;
  const std::size_t handed_up = network_->receive(now, budget, sink);
  network_due_ = handed_up > 0;
  return handed_up;
}

std::size_t ShmDatapath::receive(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) {
  stop_waiting();
  std::size_t handed_up = 0;
  const std::size_t count = active_.size();
  for (std::size_t i = 0; i < count && handed_up < budget_runs; ++i) {
    Peer& peer = *peers_[active_[(next_ + i) % count]];
    // An equal share of the remaining budget for each peer, so that one that sends continuously leaves some for the
    // others.
    const std::size_t share = std::max<std::size_t>(1, (budget_runs - handed_up) / (count - i));
    handed_up += receive_from(peer, share, sink);
  }
  if (count > 0) next_ = (next_ + 1) % count;
  rest_idle_peers();
  if (handed_up < budget_runs) handed_up += receive_from_network(now, budget_runs - handed_up, sink);
  return handed_up;
}

// PROTOCOL 23.2.3: A side that is about to sleep MUST first set its word, and then look again.
bool ShmDatapath::prepare_to_wait() {
  waits_ = true;
  for (const std::uint16_t rank : active_) {
    Peer& peer = *peers_[rank];
    peer.empty_looks += kLooksUntilRest / 2;
    peer.segment.in().announce_sleep();
    if (peer.full) peer.segment.out().announce_wait();
  }
  for (const std::uint16_t rank : active_) {
    Peer& peer = *peers_[rank];
    if (peer.segment.in().has_more()) return false;
    // Reported once: the sender checks again, and that check counts.
    if (peer.full && peer.segment.out().has_room(kLongestRunBytes + kReservedBytes)) {
      peer.full = false;
      return false;
    }
  }
  return network_->prepare_to_wait();
}

int ShmDatapath::writable_fd(const base::DatagramRun& run) const {
  return has_peer(run.peer) ? -1 : network_->writable_fd(run);
}

}  // namespace mlt::io
