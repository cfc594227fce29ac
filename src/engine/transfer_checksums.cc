#include "engine/transfer_checksums.h"

#include <algorithm>
#include <iterator>

#include "base/bytes.h"
#include "collective/checksums.h"

namespace mlt::engine {

namespace {

// Of the last four bytes of a report.
constexpr std::uint32_t kOfSend = 1, kHasNone = 2;

}  // namespace

std::string TransferChecksums::refusal(std::uint16_t peer) const {
  if (!differing_.contains(peer)) return "";
  return is_on_ ? collective::checksums_differ_text(rank_, peer) : collective::checksums_differ_text(peer, rank_);
}

void TransferChecksums::on_post(const core::SendRequest& request, std::uint32_t segment_bytes) {
  posted_[request.operation] = {{}, collective::transfer_checksum(request.data, std::max(1U, segment_bytes))};
}

void TransferChecksums::on_post(const core::ReceiveRequest& request) { posted_[request.operation] = {request.data, 0}; }

TransferChecksums::Key TransferChecksums::key_of(const core::Completion& completion) {
  return {completion.peer, completion.kind == core::CompletionKind::kSend, completion.tag, completion.generation};
}

// PROTOCOL 24.1.1: A side with checksums MUST send checksum when a send or receive with a tag below 2^63 ends: its tag
//     and generation, and of one that is complete, with nothing missing, the checksum (22.9.2) of what was in memory
//     when the send was posted, or is there after the receive.
TransferChecksums::Report TransferChecksums::report(const core::Completion& completion) {
  const bool is_send = completion.kind == core::CompletionKind::kSend;
  own_.reset();
  const auto posted = posted_.extract(completion.operation);
  if (!posted.empty() && completion.status == core::CompletionStatus::kComplete && completion.missing_bytes == 0) {
    const Posted& one = posted.mapped();
    const std::span<const std::byte> received = one.received.first(
        std::min<std::size_t>(one.received.size(), static_cast<std::size_t>(completion.total_bytes)));
    own_ = is_send ? one.sent : collective::transfer_checksum(received, std::max(1U, completion.segment_bytes));
  }
  Report report{};
  base::store_le64(report.data(), completion.tag);
  base::store_le64(report.data() + 8, own_.value_or(0));
  base::store_le32(report.data() + 16, completion.generation);
  base::store_le32(report.data() + 20, (is_send ? kOfSend : 0) | (own_ ? 0 : kHasNone));
  return report;
}

// PROTOCOL 24.1.2: An operation with a checksum MUST NOT complete before the other side's checksum of its tag and
//     generation has arrived. It MUST fail as cancelled where both have one and they differ, so on both sides, and
//     complete where the other side has none.
bool TransferChecksums::hold(base::TimeNs now, const core::Completion& completion, Completion& done) {
  const Key key = key_of(completion);
  const auto found = reports_.find(key);
  Found other;
  const bool has_report = found != reports_.end();
  if (has_report) {
    other = found->second;
    std::erase(order_[key.peer], key);
    reports_.erase(found);
  }
  if (!own_) {
    if (done.error.empty()) ++counts_.incomplete;
    return false;
  }
  if (differing_.contains(key.peer)) {
    fail(done, Status::kCancelled, refusal(key.peer));
    return false;
  }
  if (has_report) {
    compare(key, *own_, other, done);
    return false;
  }
  const base::TimeNs due_ns = base::after(now, timeout_ns_);
  held_[key] = {std::move(done), *own_, due_ns};
  deadlines_.emplace(due_ns, key);
  return true;
}

void TransferChecksums::compare(const Key& key, std::uint64_t own, const Found& other, Completion& done) {
  ++(other ? counts_.compared : counts_.incomplete);
  if (!other || *other == own) return;
  ++counts_.different;
  fail(done, Status::kCancelled,
       key.is_send ? collective::damage_text(rank_, key.peer, "", own, *other, "what was received")
                   : collective::damage_text(key.peer, rank_, "", *other, own, "what was received"));
}

// The text follows the operation's name.
void TransferChecksums::fail(Completion& done, Status status, const std::string& text) {
  done.status = status;
  done.error = text;
}

Completion TransferChecksums::release(std::map<Key, Held>::iterator held) {
  Completion done = std::move(held->second.done);
  deadlines_.erase({held->second.due_ns, held->first});
  held_.erase(held);
  return done;
}

void TransferChecksums::fail_held(std::uint16_t peer, Status status, const std::string& text) {
  for (auto held = held_.lower_bound({peer}); held != held_.end() && held->first.peer == peer;) {
    const auto next = std::next(held);
    fail(held->second.done, status, text);
    ended_.push_back(release(held));
    held = next;
  }
}

std::optional<Completion> TransferChecksums::take(OperationId operation) {
  const auto held =
      std::ranges::find_if(held_, [&](const auto& entry) { return entry.second.done.operation == operation; });
  if (held == held_.end()) return std::nullopt;
  return release(held);
}

// PROTOCOL 24.1.3: A side without checksums MUST send an empty checksum in reply to the first of a peer. It and the
//     side that receives an empty one MUST fail their sends to and receives from each other that have not ended, or
//     wait for a checksum, as cancelled, and refuse later ones.
bool TransferChecksums::on_message(std::uint16_t peer, std::span<const std::byte> bytes) {
  if (!is_on_) return !bytes.empty() && differing_.insert(peer).second;
  if (bytes.empty()) {
    differing_.insert(peer);
    fail_held(peer, Status::kCancelled, refusal(peer));
    return false;
  }
  // PROTOCOL 24.1.4: A receiver MUST ignore a checksum of another length.
  if (bytes.size() != kReportBytes) return false;
  const std::uint32_t flags = base::load_le32(bytes.data() + 20);
  const Key key{peer, (flags & kOfSend) == 0, base::load_le64(bytes.data()), base::load_le32(bytes.data() + 16)};
  const Found other = (flags & kHasNone) != 0 ? Found() : Found(base::load_le64(bytes.data() + 8));
  if (const auto held = held_.find(key); held != held_.end()) {
    compare(key, held->second.checksum, other, held->second.done);
    ended_.push_back(release(held));
    return false;
  }
  std::deque<Key>& order = order_[peer];
  if (reports_.insert_or_assign(key, other).second) order.push_back(key);
  if (order.size() <= max_reports_) return false;
  reports_.erase(order.front());
  order.pop_front();
  return false;
}

// PROTOCOL 24.1.5: An operation that has waited for the other side's checksum for the operation timeout MUST fail as
//     timed out, and one whose peer goes down meanwhile as peer failed.
void TransferChecksums::on_peer_down(std::uint16_t peer, const std::string& error) {
  fail_held(peer, Status::kPeerFailed,
            "its data arrived, but the peer ended before its checksum came" + (error.empty() ? "" : ": " + error));
}

void TransferChecksums::on_timeout(base::TimeNs now) {
  while (next_timeout() <= now) {
    const auto held = held_.find(deadlines_.begin()->second);
    fail(held->second.done, Status::kTimedOut,
         "its data arrived, but not the checksum of rank " + std::to_string(held->first.peer));
    ended_.push_back(release(held));
  }
}

std::optional<Completion> TransferChecksums::poll() {
  if (ended_.empty()) return std::nullopt;
  Completion done = std::move(ended_.front());
  ended_.pop_front();
  return done;
}

}  // namespace mlt::engine
