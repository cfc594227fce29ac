// Error texts of operations: what each names.
#include "engine/error_text.h"

#include <doctest/doctest.h>

#include <string>

#include "base/time.h"

using namespace mlt;

namespace {

core::Completion failed(core::CompletionStatus status, core::CompletionKind kind) {
  core::Completion completion;
  completion.status = status;
  completion.kind = kind;
  completion.peer = 1;
  completion.remote_total_bytes = 8;
  completion.elapsed_ns = 3 * base::kSecond;
  return completion;
}

ErrorCode thrown_code(io::OsErrorCode code) {
  io::OsError error;
  error.code = code;
  error.text = "bind() failed";
  try {
    engine::throw_os_error(error, 4);
  } catch (const Error& thrown) {
    CHECK(std::string(thrown.what()) == "rank 4: bind() failed");
    return thrown.code();
  }
  return ErrorCode::kCancelled;
}

}  // namespace

TEST_CASE("failure_text__names_ranks_operation_and_cause") {
  using core::CompletionKind;
  using core::CompletionStatus;
  const std::string what = "send of tag 7 (16 bytes of float32) to rank 1";
  CHECK(engine::failure_text(0, what, failed(CompletionStatus::kSizeMismatch, CompletionKind::kSend), "") ==
        "rank 0: " + what +
            " failed: rank 1 receives 8 bytes; both sides must name the same size, or the receive "
            "a maximum that is not smaller (up_to)");
  CHECK(engine::failure_text(0, what, failed(CompletionStatus::kPeerFailed, CompletionKind::kSend), "it died") ==
        "rank 0: " + what + " failed: it died");
  CHECK(engine::failure_text(0, what, failed(CompletionStatus::kPeerFailed, CompletionKind::kSend), "") ==
        "rank 0: " + what + " failed: rank 1 is down: its process failed or left the job");
  CHECK(engine::failure_text(0, "receive", failed(CompletionStatus::kTimedOut, CompletionKind::kReceive), "") ==
        "rank 0: receive failed: timed out after 3000 ms: check that rank 1 posted the matching send, or raise the "
        "timeout");
  CHECK(engine::failure_text(0, "receive", failed(CompletionStatus::kTimedOut, CompletionKind::kReceive), "MTU") ==
        "rank 0: receive failed: timed out after 3000 ms: MTU");
}

TEST_CASE("failure_text__of_a_cancelled_receive_says_who_and_why") {
  using core::CompletionKind;
  core::Completion receive = failed(core::CompletionStatus::kCancelled, CompletionKind::kReceive);
  const auto text = [&](wire::AbortCause cause) {
    receive.aborted.cause = cause;
    return engine::failure_text(0, "receive", receive, "MTU mismatch");
  };
  CHECK(text(wire::AbortCause::kNone) == "rank 0: receive failed: cancelled by this rank");
  CHECK(text(wire::AbortCause::kCancelled) == "rank 0: receive failed: cancelled by rank 1, which cancelled its send");
  CHECK(text(wire::AbortCause::kTimedOut) ==
        "rank 0: receive failed: cancelled by rank 1, whose send timed out: post this receive earlier, or raise the "
        "timeout there");
  CHECK(text(wire::AbortCause::kPathTooSmall) == "rank 0: receive failed: MTU mismatch");
  const core::Completion send = failed(core::CompletionStatus::kCancelled, CompletionKind::kSend);
  CHECK(engine::failure_text(0, "send", send, "") ==
        "rank 0: send failed: cancelled by this rank, or by rank 1, whose receive was cancelled, timed out or failed: "
        "the error there has the cause");
}

TEST_CASE("refusal_text__names_the_limit_and_its_option") {
  Options options;
  options.max_operations = 77;
  options.max_tags = 88;
  const auto text = [&](core::PostStatus status) { return engine::refusal_text(status, "", options); };
  CHECK(text(core::PostStatus::kTooManyOperations).find("77") != std::string::npos);
  CHECK(text(core::PostStatus::kTooManyOperations).find("MLT_MAX_OPERATIONS") != std::string::npos);
  CHECK(text(core::PostStatus::kTooManyTags).find("more than 88 tags") != std::string::npos);
  CHECK(engine::refusal_text(core::PostStatus::kPeerNotConnected, "rank 1 left", options) == "rank 1 left");
}

TEST_CASE("rank_range__of_one_rank_or_none_is_no_range") {
  CHECK(engine::rank_range(0, 1) == "rank 0 only");
  CHECK(engine::rank_range(0, 3) == "ranks 0 to 2");
  CHECK(engine::rank_range(4, 5) == "rank 4 only");
  CHECK(engine::rank_range(4, 65'535) == "ranks 4 to 65534");
  CHECK(engine::rank_range(2, 2) == "none");
}

TEST_CASE("throw_os_error__maps_what_the_caller_can_mend_to_codes_of_its_own") {
  CHECK(thrown_code(io::OsErrorCode::kAddressInUse) == ErrorCode::kPortInUse);
  CHECK(thrown_code(io::OsErrorCode::kBadArgument) == ErrorCode::kConfig);
  CHECK(thrown_code(io::OsErrorCode::kAddressNotAvailable) == ErrorCode::kConfig);
  CHECK(thrown_code(io::OsErrorCode::kSystem) == ErrorCode::kSystem);
}
