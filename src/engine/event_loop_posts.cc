// Operations of user threads: posted, deferred while the endpoint has no room for them, and finished.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "engine/event_loop.h"
#include "engine/words.h"

namespace mlt::engine {

void EventLoop::finish_user(const core::Completion& completion) {
  Completion done;
  done.operation = completion.operation;
  done.is_send = completion.kind == core::CompletionKind::kSend;
  done.verb = done.is_send ? Verb::kSend : Verb::kReceive;
  done.status = static_cast<Status>(completion.status);
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
    done.error =
        failure_text(options_.rank, operations_.what(completion.operation), completion, trouble_with(completion.peer));
    explain_failure(completion, done.error);
  }
  operations_.finish(std::move(done));
}

void EventLoop::finish_refused(OperationId operation, bool is_send, std::uint16_t peer, std::uint64_t tag,
                               core::PostStatus status) {
  Completion done;
  done.operation = operation;
  done.is_send = is_send;
  done.verb = is_send ? Verb::kSend : Verb::kReceive;
  done.peer = peer;
  done.tag = tag;
  done.status = status == core::PostStatus::kPeerNotConnected ? Status::kPeerFailed : Status::kCancelled;
  done.error = "rank " + std::to_string(options_.rank) + ": " + operations_.what(operation) +
               " was refused: " + refusal_text(status, peer_error(peer));
  operations_.finish(std::move(done));
}

bool EventLoop::try_post(TimeNs now, const core::SendRequest& request) {
  const core::PostStatus status = endpoint_->post_send(now, request);
  if (status == core::PostStatus::kTooManyOperations || status == core::PostStatus::kOutOfBitmaps) return false;
  const bool refused = status != core::PostStatus::kPosted && request.operation != kEndedOperation;
  if (refused) finish_refused(request.operation, true, request.peer, request.tag, status);
  return true;
}

bool EventLoop::try_post(TimeNs now, const core::ReceiveRequest& request) {
  const core::PostStatus status = endpoint_->post_recv(now, request);
  if (status == core::PostStatus::kTooManyOperations || status == core::PostStatus::kOutOfBitmaps) return false;
  const bool refused = status != core::PostStatus::kPosted && request.operation != kEndedOperation;
  if (refused) finish_refused(request.operation, false, request.peer, request.tag, status);
  return true;
}

// Sends stay in order, and receives do: behind one that waits for room, all of its kind wait.
template <typename Request>
void EventLoop::post_or_defer(TimeNs now, DeferredQueue<Request>& queue, const Request& request) {
  // To a peer that is gone there is nothing to wait for: the endpoint refuses it.
  if ((queue.empty() || peer_state(request.peer) != PeerState::kUp) && try_post(now, request)) return;
  const base::DurationNs timeout = request.timeout_ns > 0 ? request.timeout_ns : options_.operation_timeout_ns;
  queue.push_back({request, now, base::after(now, timeout)});
  deferred_expires_ns_ = std::min(deferred_expires_ns_, queue.back().expires_ns);
}

void EventLoop::post(TimeNs now, const core::SendRequest& request) { post_or_defer(now, deferred_sends_, request); }
void EventLoop::post(TimeNs now, const core::ReceiveRequest& request) {
  post_or_defer(now, deferred_receives_, request);
}

// Of an operation that ended while it waited: the application has its memory back, so nothing of it may be touched.
void EventLoop::forget_memory(core::SendRequest& request) {
  request.operation = kEndedOperation;
  request.tags = {};  // nothing is sent: it is cancelled before the next poll
  request.judge = nullptr;
}
void EventLoop::forget_memory(core::ReceiveRequest& request) {
  request.operation = kEndedOperation;
  request.place = [](void*, std::uint64_t, std::span<const std::byte>) {};
}

template <typename Request>
void EventLoop::retry_queue(TimeNs now, DeferredQueue<Request>& queue) {
  while (!queue.empty()) {
    Request request = queue.front().request;
    const bool ended = queue.front().ended;
    request.timeout_ns = std::max<base::DurationNs>(1, queue.front().expires_ns - now);
    if (ended) forget_memory(request);
    if (!try_post(now, request)) return;
    constexpr bool kIsSend = std::is_same_v<Request, core::SendRequest>;
    const auto kind = kIsSend ? core::CompletionKind::kSend : core::CompletionKind::kReceive;
    if (ended) endpoint_->on_control(now, core::Cancel{kEndedOperation, kind});
    queue.pop_front();
  }
}

void EventLoop::retry_deferred(TimeNs now) {
  retry_queue(now, deferred_sends_);
  retry_queue(now, deferred_receives_);
}

template <typename StatusOf>
void EventLoop::end_deferred(TimeNs now, StatusOf&& status_of) {
  TimeNs expires_ns = base::kNever;
  const auto scan = [&](auto& queue, core::CompletionKind kind) {
    for (auto& deferred : queue) {
      const std::optional<core::CompletionStatus> status = status_of(deferred);
      if (!status) {
        if (!deferred.ended) expires_ns = std::min(expires_ns, deferred.expires_ns);
        continue;
      }
      // Its place in the order of its tag stays taken, or the next of its tag would meet the wrong one of the peer's:
      // retry_queue() posts it and gives it up. To a peer that is gone there is no order any more.
      deferred.dropped = *status == core::CompletionStatus::kPeerFailed;
      if (std::exchange(deferred.ended, true)) continue;
      core::Completion done;
      done.operation = deferred.request.operation;
      done.kind = kind;
      done.status = *status;
      done.peer = deferred.request.peer;
      done.tag = deferred.request.tag;
      done.total_bytes = deferred.request.data.size();
      done.elapsed_ns = now - deferred.posted_ns;
      finish_user(done);
    }
    std::erase_if(queue, [](const auto& deferred) { return deferred.dropped; });
  };
  scan(deferred_sends_, core::CompletionKind::kSend);
  scan(deferred_receives_, core::CompletionKind::kReceive);
  deferred_expires_ns_ = expires_ns;
}

void EventLoop::expire_deferred(TimeNs now) {
  end_deferred(now, [&](const auto& deferred) -> std::optional<core::CompletionStatus> {
    if (deferred.expires_ns > now) return std::nullopt;
    return core::CompletionStatus::kTimedOut;
  });
}

void EventLoop::cancel_user(TimeNs now, OperationId operation) {
  end_deferred(now, [&](const auto& deferred) -> std::optional<core::CompletionStatus> {
    if (deferred.request.operation != operation) return std::nullopt;
    return core::CompletionStatus::kCancelled;
  });
  endpoint_->on_control(now, core::Cancel{operation, core::CompletionKind::kSend});
  endpoint_->on_control(now, core::Cancel{operation, core::CompletionKind::kReceive});
  collectives_->cancel(now, operation);
}

void EventLoop::fail_deferred(TimeNs now, std::uint16_t peer) {
  end_deferred(now, [&](const auto& deferred) -> std::optional<core::CompletionStatus> {
    if (deferred.request.peer != peer) return std::nullopt;
    return core::CompletionStatus::kPeerFailed;
  });
}

}  // namespace mlt::engine
