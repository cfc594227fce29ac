#include "engine/error_text.h"

#include "base/time.h"
#include "wire/element.h"

namespace mlt::engine {

namespace {

// Why a receive was cancelled: here, or what its sender says.
std::string cancel_text(const core::Completion& receive, const std::string& sender, const std::string& path_error) {
  switch (receive.aborted.cause) {
    case wire::AbortCause::kNone:
      return "cancelled by this rank";
    case wire::AbortCause::kCancelled:
      return "cancelled by " + sender + ", which cancelled its send";
    case wire::AbortCause::kTimedOut:
      return "cancelled by " + sender + ", whose send timed out: post this receive earlier, or raise the timeout there";
    case wire::AbortCause::kPathTooSmall:
      return path_error;
  }
  return "internal error: unexpected cause";
}

}  // namespace

std::string failure_text(std::uint16_t rank, const std::string& what, const core::Completion& completion,
                         const std::string& peer_error) {
  std::string text = "rank " + std::to_string(rank) + ": " + what + " failed: ";
  const std::string other = "rank " + std::to_string(completion.peer);
  const bool is_send = completion.kind == core::CompletionKind::kSend;
  switch (completion.status) {
    case core::CompletionStatus::kSizeMismatch:
      return text + other + (is_send ? " receives " : " sends ") + std::to_string(completion.remote_total_bytes) +
             " bytes; both sides must name the same size, or the receive a maximum that is not smaller (up_to)";
    case core::CompletionStatus::kTypeMismatch:
      return text + other + (is_send ? " receives " : " sends ") + wire::element_name(completion.remote_element) +
             "; both sides must name the same element type";
    case core::CompletionStatus::kPeerFailed:
      return text + (peer_error.empty() ? other + " is down: its process failed or left the job" : peer_error);
    case core::CompletionStatus::kTimedOut:
      text += "timed out after " + std::to_string(completion.elapsed_ns / base::kMillisecond) + " ms: ";
      if (!peer_error.empty()) return text + peer_error;
      return text + "check that " + other + " posted the matching " + (is_send ? "receive" : "send") +
             ", or raise the timeout";
    case core::CompletionStatus::kCancelled:
      if (!is_send) return text + cancel_text(completion, other, peer_error);
      return text + "cancelled by this rank, or by " + other +
             ", whose receive was cancelled, timed out or failed: the error there has the cause";
    case core::CompletionStatus::kComplete:
    case core::CompletionStatus::kWithinBound:
    case core::CompletionStatus::kDeadline:
      break;
  }
  return text + "internal error: unexpected status";
}

std::string refusal_text(core::PostStatus status, const std::string& peer_error, const Options& options) {
  switch (status) {
    case core::PostStatus::kPosted:
      return "posted";
    case core::PostStatus::kUnknownPeer:
      return "the peer is not another rank of the job";
    case core::PostStatus::kPeerNotConnected:
      return peer_error.empty() ? "the peer is not connected" : peer_error;
    case core::PostStatus::kTooLarge:
      return "a transfer carries less than 4 GiB: split the tensor";
    case core::PostStatus::kBadElementCount:
      return "its size is not a multiple of the element size";
    case core::PostStatus::kBadPriorityCount:
      return "the priority function must return one value per segment";
    case core::PostStatus::kBadLossBound:
      return "the loss bound must be at least 0 and below 1";
    case core::PostStatus::kLossyInteger:
      return "only floating-point tensors may be lossy: use a loss bound of 0";
    case core::PostStatus::kTooManyOperations:
      return "more operations are in progress than the endpoint has slots for (" +
             std::to_string(options.max_operations) +
             " of the caller's own; cancelled sends count until their receiver replies): take completions, or "
             "raise max_operations (MLT_MAX_OPERATIONS)";
    case core::PostStatus::kOutOfBitmaps:
      return "the tensors in progress have more segments than can be tracked: take completions, use larger segments, "
             "or raise max_operations (MLT_MAX_OPERATIONS, now " +
             std::to_string(options.max_operations) + "), which raises this limit";
    case core::PostStatus::kTooManyTags:
      return "more than " + std::to_string(options.max_tags) +
             " tags are in use, or were until recently and are not yet released by their ranks: take completions, use "
             "fewer at once, or raise max_tags (MLT_MAX_TAGS)";
  }
  return "internal error: unexpected status";
}

std::string rank_range(std::size_t first, std::size_t end) {
  if (first >= end) return "none";
  if (first + 1 == end) return "rank " + std::to_string(first) + " only";
  return "ranks " + std::to_string(first) + " to " + std::to_string(end - 1);
}

void throw_os_error(const io::OsError& error, std::uint16_t rank) {
  ErrorCode code = ErrorCode::kSystem;
  if (error.code == io::OsErrorCode::kAddressInUse) code = ErrorCode::kPortInUse;
  if (error.code == io::OsErrorCode::kBadArgument || error.code == io::OsErrorCode::kAddressNotAvailable) {
    code = ErrorCode::kConfig;
  }
  throw Error(code, "rank " + std::to_string(rank) + ": " + error.text);
}

}  // namespace mlt::engine
