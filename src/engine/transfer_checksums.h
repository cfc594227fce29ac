// Checksums of a caller's sends and receives, from the sender's memory to the receiver's (section 24 of PROTOCOL.md):
// each side reports its own to the other when an operation ends, and an operation without loss is complete once the two
// are equal. collective/checksums.h has how they are computed, and what UDP's checksum leaves out.
//
// Locking: all functions require the loop's lock (engine/driving.h). Absent on purpose: the operations of collectives
// (collective/collectives.h), and sending the reports.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/time.h"
#include "collective/collectives.h"
#include "core/event.h"
#include "mlt.h"

namespace mlt::engine {

class TransferChecksums {
 public:
  static constexpr std::size_t kReportBytes = 24;
  using Report = std::array<std::byte, kReportBytes>;

  // `max_reports`: kept of each peer for operations that have not ended here; the oldest goes first.
  TransferChecksums(std::uint16_t rank, bool is_on, std::size_t max_reports, base::DurationNs timeout_ns)
      : rank_(rank), is_on_(is_on), max_reports_(max_reports), timeout_ns_(timeout_ns) {}

  bool is_on() const { return is_on_; }
  // Why nothing can be posted to `peer`; empty if it can.
  std::string refusal(std::uint16_t peer) const;

  // Before the endpoint has the post; the data does not change any more.
  void on_post(const core::SendRequest& request, std::uint32_t segment_bytes);
  void on_post(const core::ReceiveRequest& request);
  // The endpoint rejected it.
  void forget(OperationId operation) { posted_.erase(operation); }

  // The report of an operation that ended, for its peer.
  Report report(const core::Completion& completion);
  // After report(): takes `done` if it has to wait for the peer's report, else completes it.
  bool hold(base::TimeNs now, const core::Completion& completion, Completion& done);
  // `done` of a caller that does not wait any longer; nothing if it is not held.
  std::optional<Completion> take(OperationId operation);
  // What the peer sent. True if it must learn that there are no checksums here: an empty message.
  bool on_message(std::uint16_t peer, std::span<const std::byte> bytes);
  void on_peer_down(std::uint16_t peer, const std::string& error);
  void on_timeout(base::TimeNs now);
  base::TimeNs next_timeout() const { return deadlines_.empty() ? base::kNever : deadlines_.begin()->first; }

  // Operations that are held no longer.
  std::optional<Completion> poll();
  const collective::ChecksumCounts& counts() const { return counts_; }

 private:
  struct Key {
    std::uint16_t peer = 0;
    bool is_send = false;  // here
    std::uint64_t tag = 0;
    std::uint32_t generation = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Posted {
    std::span<const std::byte> received;  // of a receive
    std::uint64_t sent = 0;
  };
  struct Held {
    Completion done;
    std::uint64_t checksum = 0;
    base::TimeNs due_ns = base::kNever;
  };
  using Found = std::optional<std::uint64_t>;  // nothing: the operation has no checksum

  static Key key_of(const core::Completion& completion);
  void compare(const Key& key, std::uint64_t own, const Found& other, Completion& done);
  void fail(Completion& done, Status status, const std::string& text);
  // Of all that wait for this peer.
  void fail_held(std::uint16_t peer, Status status, const std::string& text);
  Completion release(std::map<Key, Held>::iterator held);

  const std::uint16_t rank_;
  const bool is_on_;
  const std::size_t max_reports_;
  const base::DurationNs timeout_ns_;
  std::unordered_map<OperationId, Posted> posted_;
  Found own_;  // of the operation that ended last
  std::map<Key, Held> held_;
  std::set<std::pair<base::TimeNs, Key>> deadlines_;  // of held_
  std::map<Key, Found> reports_;                      // of operations that have not ended here
  std::map<std::uint16_t, std::deque<Key>> order_;    // of reports_, of each peer
  std::set<std::uint16_t> differing_;                 // peers whose option is another
  std::deque<Completion> ended_;
  collective::ChecksumCounts counts_;
};

}  // namespace mlt::engine
