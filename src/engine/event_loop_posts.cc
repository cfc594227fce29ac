// Posts and completions of user threads' operations.
#include <algorithm>
#include <utility>

#include "engine/error_text.h"
#include "engine/event_loop.h"
#include "engine/public_enums.h"

namespace mlt::engine {

void EventLoop::finish_user(const core::Completion& completion) {
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
  if (core::is_failure(completion.status)) {
    done.error = failure_text(options_.rank, operations_.name(completion.operation), completion,
                              path_mtu_errors_->peer_or_path_error(completion.peer));
    explain_failure(completion, done.error);
  }
  operations_.finish(std::move(done));
}

// Adds known conditions that may be the cause of the failure.
void EventLoop::explain_failure(const core::Completion& completion, std::string& error) {
  const std::string& send_error = send_errors_[completion.peer];
  const bool timed_out = completion.status == core::CompletionStatus::kTimedOut;
  if (!send_error.empty() && (timed_out || completion.status == core::CompletionStatus::kPeerFailed)) {
    error += " (the last datagram to it that the system refused: " + send_error + ")";
  }
}

void EventLoop::finish_refused(OperationId operation, std::uint16_t peer, std::uint64_t tag, core::PostStatus status) {
  Completion done;
  done.operation = operation;
  done.peer = peer;
  done.tag = tag;
  done.status = status == core::PostStatus::kPeerNotConnected ? Status::kPeerFailed : Status::kCancelled;
  done.error = "rank " + std::to_string(options_.rank) + ": " + operations_.name(operation) +
               " was refused: " + refusal_text(status, peers_.error(peer), options_);
  operations_.finish(std::move(done));
}

void EventLoop::post(TimeNs now, const core::SendRequest& request) {
  const core::PostStatus status = endpoint_->post_send(now, request);
  if (status != core::PostStatus::kPosted) finish_refused(request.operation, request.peer, request.tag, status);
}

void EventLoop::post(TimeNs now, const core::ReceiveRequest& request) {
  const core::PostStatus status = endpoint_->post_recv(now, request);
  if (status != core::PostStatus::kPosted) finish_refused(request.operation, request.peer, request.tag, status);
}

void EventLoop::cancel_user(TimeNs now, OperationId operation) {
  endpoint_->on_control(now, core::Cancel{operation, core::CompletionKind::kSend});
  endpoint_->on_control(now, core::Cancel{operation, core::CompletionKind::kReceive});
  collectives_->cancel(now, operation);
}

}  // namespace mlt::engine
