#include "engine/user_operations.h"

#include <algorithm>
#include <utility>

#include "engine/error_text.h"
#include "engine/public_enums.h"

namespace mlt::engine {

namespace {

// Missing segments as byte ranges, neighbours merged.
void add_missing_ranges(const core::Completion& completion, Completion& done) {
  for (std::uint32_t i = 0; i < completion.segment_count && !completion.received_bitmap.empty(); ++i) {
    if (((completion.received_bitmap[i / 64] >> (i % 64)) & 1U) != 0) continue;
    const std::uint64_t offset = std::uint64_t{i} * completion.segment_bytes;
    const std::uint64_t length = std::min<std::uint64_t>(completion.segment_bytes, done.total_bytes - offset);
    if (!done.missing.empty() && done.missing.back().offset_bytes + done.missing.back().length_bytes == offset) {
      done.missing.back().length_bytes += length;
    } else {
      done.missing.push_back({offset, length});
    }
  }
}

}  // namespace

void UserOperations::post(base::TimeNs now, const core::SendRequest& request) {
  note_size(request.data.size());
  if (!check_checksums(request.operation, request.peer, request.tag)) return;
  if (checksums_.is_on()) checksums_.on_post(request, peers_.segment_bytes(request.peer));
  const core::PostStatus status = endpoint_.post_send(now, request);
  if (status != core::PostStatus::kPosted) reject(request.operation, request.peer, request.tag, status);
}

void UserOperations::post(base::TimeNs now, const core::ReceiveRequest& request) {
  note_size(request.data.size());
  if (!check_checksums(request.operation, request.peer, request.tag)) return;
  if (checksums_.is_on()) checksums_.on_post(request);
  const core::PostStatus status = endpoint_.post_recv(now, request);
  if (status != core::PostStatus::kPosted) reject(request.operation, request.peer, request.tag, status);
}

bool UserOperations::check_checksums(OperationId operation, std::uint16_t peer, std::uint64_t tag) {
  const std::string refusal = checksums_.refusal(peer);
  if (refusal.empty()) return true;
  Completion done;
  done.operation = operation;
  done.peer = peer;
  done.tag = tag;
  done.status = Status::kCancelled;
  done.error =
      "rank " + std::to_string(options_.rank) + ": " + operations_.name(operation) + " was rejected: " + refusal;
  operations_.finish(std::move(done));
  return false;
}

void UserOperations::reject(OperationId operation, std::uint16_t peer, std::uint64_t tag, core::PostStatus status) {
  checksums_.forget(operation);
  Completion done;
  done.operation = operation;
  done.peer = peer;
  done.tag = tag;
  done.status = status == core::PostStatus::kPeerNotConnected ? Status::kPeerFailed : Status::kCancelled;
  done.error = "rank " + std::to_string(options_.rank) + ": " + operations_.name(operation) +
               " was rejected: " + refusal_text(status, peers_.error(peer), options_);
  operations_.finish(std::move(done));
}

void UserOperations::cancel(base::TimeNs now, OperationId operation) {
  if (auto done = checksums_.take(operation)) {
    done->status = Status::kCancelled;
    done->error = "cancelled while it waited for the peer's checksum";
    return finish_compared(std::move(*done));
  }
  cancel_posted(now, operation);
}

void UserOperations::cancel_posted(base::TimeNs now, OperationId operation) {
  endpoint_.on_control(now, core::Cancel{operation, core::CompletionKind::kSend});
  endpoint_.on_control(now, core::Cancel{operation, core::CompletionKind::kReceive});
}

void UserOperations::on_completion(base::TimeNs now, const core::Completion& completion) {
  Completion done;
  done.operation = completion.operation;
  done.status = public_status(completion.status);
  done.peer = completion.peer;
  done.tag = completion.tag;
  done.total_bytes = completion.total_bytes;
  done.missing_bytes = completion.missing_bytes;
  done.allowed_missing_bytes = completion.allowed_missing_bytes;
  done.repaired_segments = completion.repaired_segments;
  done.elapsed_ns = completion.elapsed_ns;
  add_missing_ranges(completion, done);
  if (core::is_failure(completion.status)) done.error = error_text(completion);
  if (done.failed() && !checksums_.refusal(completion.peer).empty()) {
    done.error += ": " + checksums_.refusal(completion.peer);
  }
  if (!checksums_.is_on()) return operations_.finish(std::move(done));
  send_checksum_(completion.peer, checksums_.report(completion));
  const bool has_failed = done.failed();
  if (checksums_.hold(now, completion, done)) {
    if (peers_.state(completion.peer) != PeerState::kUp) on_peer_down(completion.peer);
    return;
  }
  if (has_failed) return operations_.finish(std::move(done));
  finish_compared(std::move(done));
}

void UserOperations::on_checksum(base::TimeNs now, std::uint16_t from, std::span<const std::byte> bytes) {
  const bool was_refused = !checksums_.refusal(from).empty();
  if (checksums_.on_message(from, bytes)) send_checksum_(from, {});
  finish_compared();
  if (was_refused || checksums_.refusal(from).empty()) return;
  // Their other ends are refused at the peer, or will be: nothing else would end them before their timeout. What the
  // loop has not been given yet is refused by check_checksums().
  // on_message() has ended those that waited for a checksum.
  for (const OperationId operation : operations_.transfers_with(from)) cancel_posted(now, operation);
}

void UserOperations::on_peer_down(std::uint16_t peer) {
  checksums_.on_peer_down(peer, peers_.error(peer));
  finish_compared();
}

bool UserOperations::on_timeout(base::TimeNs now) {
  if (next_timeout() > now) return false;
  checksums_.on_timeout(now);
  finish_compared();
  return true;
}

void UserOperations::finish_compared() {
  while (auto done = checksums_.poll()) finish_compared(std::move(*done));
}

void UserOperations::finish_compared(Completion&& done) {
  if (done.failed()) {
    done.error =
        "rank " + std::to_string(options_.rank) + ": " + operations_.name(done.operation) + " failed: " + done.error;
  }
  operations_.finish(std::move(done));
}

// The failure, and known conditions that may be its cause.
std::string UserOperations::error_text(const core::Completion& completion) const {
  const bool is_path = completion.aborted.cause == wire::AbortCause::kPathTooSmall;
  const std::string peer_error = is_path
                                     ? path_mtu_errors_.reported_text(completion.peer, completion.aborted.path_bytes)
                                     : path_mtu_errors_.peer_or_path_error(completion.peer);
  std::string text = failure_text(options_.rank, operations_.name(completion.operation), completion, peer_error);
  const std::string& send_error = transmitter_.last_error(completion.peer);
  const bool timed_out = completion.status == core::CompletionStatus::kTimedOut;
  if (!send_error.empty() && (timed_out || completion.status == core::CompletionStatus::kPeerFailed)) {
    text += " (last error of a datagram to it: " + send_error + ")";
  }
  return text;
}

}  // namespace mlt::engine
