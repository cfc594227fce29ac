#include "engine/peer_table.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/time.h"

namespace mlt::engine {

namespace {

constexpr std::chrono::milliseconds kNowAndThen{100};

ErrorCode error_code_of(io::PeerDownCause cause) {
  switch (cause) {
    case io::PeerDownCause::kRefused:
      return ErrorCode::kPeerMismatch;
    case io::PeerDownCause::kUnreachable:
      return ErrorCode::kRendezvous;
    default:
      return ErrorCode::kPeerFailed;
  }
}

}  // namespace

PeerTable::PeerTable(std::uint16_t rank, std::uint16_t ranks, bool connects_on_use) : rank_(rank), peers_(ranks) {
  if (!connects_on_use) return;
  for (Peer& peer : peers_) peer.state = PeerState::kUnnamed;
}

std::string PeerTable::error(std::uint16_t peer) const {
  const std::lock_guard lock(mutex_);
  return peers_[peer].error;
}

void PeerTable::on_up(std::uint16_t peer, std::vector<io::SocketAddress> addresses, std::uint32_t segment_bytes,
                      std::uint32_t grid_bytes) {
  Peer& record = peers_[peer];
  record.addresses = std::move(addresses);
  record.grid_bytes.store(grid_bytes, std::memory_order_release);
  record.segment_bytes.store(segment_bytes, std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);
    record.state.store(PeerState::kUp, std::memory_order_release);
  }
  changed_.notify_all();
}

void PeerTable::on_down(std::uint16_t peer, io::PeerDownCause cause, const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    Peer& record = peers_[peer];
    record.error = text;
    record.error_code = error_code_of(cause);
    record.down_number.store(++downs_);
    record.state.store(cause == io::PeerDownCause::kGoodbye ? PeerState::kLeft : PeerState::kFailed,
                       std::memory_order_release);
  }
  changed_.notify_all();
}

void PeerTable::advance(std::uint16_t peer, PeerState from, PeerState to) {
  const std::lock_guard lock(mutex_);
  peers_[peer].state.compare_exchange_strong(from, to);
}

void PeerTable::set_sizes(std::uint16_t peer, std::uint32_t segment_bytes) {
  if (peers_[peer].segment_bytes.load() > 0) return;
  peers_[peer].grid_bytes.store(segment_bytes, std::memory_order_release);
  peers_[peer].segment_bytes.store(segment_bytes, std::memory_order_release);
}

bool PeerTable::wait_settled(std::span<const std::uint16_t> peers, std::optional<SteadyTime> until,
                             const std::function<void()>& now_and_then) {
  const auto are_settled = [&] {
    return closed_ || std::ranges::none_of(peers, [&](std::uint16_t peer) { return is_pending(peer); });
  };
  std::unique_lock lock(mutex_);
  while (!are_settled()) {
    if (now_and_then) {
      lock.unlock();
      now_and_then();
      lock.lock();
    }
    const SteadyTime slice = std::chrono::steady_clock::now() + kNowAndThen;
    changed_.wait_until(lock, until ? std::min(slice, *until) : slice, are_settled);
    if (until && std::chrono::steady_clock::now() >= *until) return are_settled();
  }
  return true;
}

void PeerTable::on_client_rejected(const std::string& text) {
  const std::lock_guard lock(mutex_);
  last_rejected_client_ = text;
}

void PeerTable::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

void PeerTable::wait_connected(std::span<const PeerAddress> peers, std::optional<SteadyTime> until,
                               std::int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  const auto settled = [&] { return is_settled(peers); };
  if (until) {
    changed_.wait_until(lock, *until, settled);
  } else {
    changed_.wait(lock, settled);
  }
  throw_if_closed();
  throw_first_error(peers, timeout_ns);
}

bool PeerTable::test_connected(std::span<const PeerAddress> peers) {
  const std::lock_guard lock(mutex_);
  throw_if_closed();
  if (!is_settled(peers)) return false;
  throw_first_error(peers, -1);
  return true;
}

bool PeerTable::is_settled(std::span<const PeerAddress> peers) const {
  if (closed_) return true;
  bool all = true;
  for (const PeerAddress& peer : peers) {
    const PeerState state = peers_[peer.rank].state.load();
    if (state == PeerState::kFailed) return true;
    all = all && (state == PeerState::kUp || state == PeerState::kLeft);
  }
  return all;
}

void PeerTable::throw_if_closed() const {
  if (!closed_) return;
  throw Error(ErrorCode::kClosed, "rank " + std::to_string(rank_) + ": the context was closed while it connected");
}

// With mutex_. Returns if all of `peers` are up or have left.
void PeerTable::throw_first_error(std::span<const PeerAddress> peers, std::int64_t timeout_ns) const {
  std::string missing;
  int first_missing = -1;
  const Peer* failed = nullptr;
  std::uint16_t failed_rank = 0;
  for (const PeerAddress& peer : peers) {
    const Peer& record = peers_[peer.rank];
    const PeerState state = record.state.load();
    // A peer that sent goodbye was up and had no work left: only operations with it need to report that.
    if (state == PeerState::kUp || state == PeerState::kLeft) continue;
    if (state != PeerState::kConnecting) {
      // A peer that was up and ended may have ended because of the connection that this rank misses too.
      const bool is_cause = failed != nullptr && failed->error_code == ErrorCode::kPeerFailed &&
                            record.error_code != ErrorCode::kPeerFailed;
      if (failed == nullptr || is_cause) {
        failed = &record;
        failed_rank = peer.rank;
      }
      continue;
    }
    if (first_missing < 0) first_missing = peer.rank;
    missing += (missing.empty() ? "" : ", ") + std::to_string(peer.rank) + " (" + peer.host + ":" +
               std::to_string(peer.control_port) + ")";
  }
  if (failed != nullptr) {
    // A peer that was up may have ended because of the same missing connection.
    const bool names_missing = failed->error_code == ErrorCode::kPeerFailed && !missing.empty();
    throw Error(failed->error_code,
                "rank " + std::to_string(rank_) + ": " + failed->error +
                    (names_missing ? "; this rank has no TCP connection with rank " + missing + " yet" : ""),
                failed_rank);
  }
  if (missing.empty()) return;
  throw Error(ErrorCode::kRendezvous,
              "rank " + std::to_string(rank_) + ": no connection with rank " + missing + " within " +
                  std::to_string(timeout_ns / base::kMillisecond) +
                  " ms: check that it is running and that no firewall between the hosts blocks TCP to this port." +
                  (last_rejected_client_.empty() ? "" : " Meanwhile: " + last_rejected_client_),
              first_missing);
}

bool PeerTable::wait_gone(std::uint16_t first, std::uint16_t count, std::int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  const auto gone = [&] {
    if (closed_) return true;
    for (std::uint16_t rank = first; rank < first + count; ++rank) {
      if (peers_[rank].state.load() <= PeerState::kUp) return false;
    }
    return true;
  };
  const auto until = deadline_after(timeout_ns);
  if (until) return changed_.wait_until(lock, *until, gone);
  changed_.wait(lock, gone);
  return true;
}

}  // namespace mlt::engine
