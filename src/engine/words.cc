#include "engine/words.h"

#include "collective/collective.h"
#include "wire/element.h"

namespace mlt::engine {

// Enumerators of the public API must equal those of the core and the wire: values are cast between them.
template <auto kPublic, auto kInner>
constexpr bool kSame = static_cast<int>(kPublic) == static_cast<int>(kInner);
static_assert(kSame<Status::kComplete, core::CompletionStatus::kComplete>);
static_assert(kSame<Status::kWithinBound, core::CompletionStatus::kWithinBound>);
static_assert(kSame<Status::kDeadline, core::CompletionStatus::kDeadline>);
static_assert(kSame<Status::kSizeMismatch, core::CompletionStatus::kSizeMismatch>);
static_assert(kSame<Status::kTypeMismatch, core::CompletionStatus::kTypeMismatch>);
static_assert(kSame<Status::kPeerFailed, core::CompletionStatus::kPeerFailed>);
static_assert(kSame<Status::kTimedOut, core::CompletionStatus::kTimedOut>);
static_assert(kSame<Status::kCancelled, core::CompletionStatus::kCancelled>);
static_assert(kSame<Element::kUint8, wire::ElementType::kUint8>);
static_assert(kSame<Element::kInt8, wire::ElementType::kInt8>);
static_assert(kSame<Element::kInt16, wire::ElementType::kInt16>);
static_assert(kSame<Element::kInt32, wire::ElementType::kInt32>);
static_assert(kSame<Element::kInt64, wire::ElementType::kInt64>);
static_assert(kSame<Element::kFloat16, wire::ElementType::kFloat16>);
static_assert(kSame<Element::kBfloat16, wire::ElementType::kBfloat16>);
static_assert(kSame<Element::kFloat32, wire::ElementType::kFloat32>);
static_assert(kSame<Element::kFloat64, wire::ElementType::kFloat64>);
static_assert(kSame<Element::kUint16, wire::ElementType::kUint16>);
static_assert(kSame<Element::kUint32, wire::ElementType::kUint32>);
static_assert(kSame<Element::kUint64, wire::ElementType::kUint64>);
static_assert(kSame<Element::kBool, wire::ElementType::kBool>);

const char* element_text(Element element) { return wire::element_name(static_cast<wire::ElementType>(element)); }

const char* verb_text(Verb verb) {
  switch (verb) {
    case Verb::kSend:
      return "send";
    case Verb::kReceive:
      return "receive";
    case Verb::kAllReduce:
      return collective::collective_name(collective::CollectiveKind::kAllReduce);
    case Verb::kAllToAll:
      return collective::collective_name(collective::CollectiveKind::kAllToAll);
    case Verb::kGather:
      return collective::collective_name(collective::CollectiveKind::kGather);
    case Verb::kPushPull:
      return "push-pull";
  }
  return "unknown operation";
}

std::string failure_text(std::uint16_t rank, const std::string& what, const core::Completion& completion,
                         const std::string& peer_error) {
  std::string text = "rank " + std::to_string(rank) + ": " + what + " failed: ";
  const std::string other = "rank " + std::to_string(completion.peer);
  const bool is_send = completion.kind == core::CompletionKind::kSend;
  switch (completion.status) {
    case core::CompletionStatus::kSizeMismatch:
      return text + other + (is_send ? " receives " : " sends ") + std::to_string(completion.remote_total_bytes) +
             " bytes; both sides must name the same size";
    case core::CompletionStatus::kTypeMismatch:
      return text + other + (is_send ? " receives " : " sends ") + wire::element_name(completion.remote_element) +
             "; both sides must name the same element type";
    case core::CompletionStatus::kPeerFailed:
      return text + (peer_error.empty() ? other + " is gone" : peer_error);
    case core::CompletionStatus::kTimedOut:
      return text + "not finished within its timeout (" + std::to_string(completion.elapsed_ns / base::kMillisecond) +
             " ms); did " + other + " post the matching " + (is_send ? "receive?" : "send?");
    case core::CompletionStatus::kCancelled:
      return text + "cancelled, here or by " + other + " (whose " + (is_send ? "receive" : "send") +
             " was cancelled or ran out of time)";
    case core::CompletionStatus::kComplete:
    case core::CompletionStatus::kWithinBound:
    case core::CompletionStatus::kDeadline:
      break;
  }
  return text + "for no reason that has a name";
}

std::string path_limit_text(const PathLimitWords& words) {
  const std::string size =
      std::to_string(words.packet_bytes) + " bytes (segments of " + std::to_string(words.segment_bytes) + " bytes)";
  std::string text = "MTU mismatch: ";
  if (words.probed) {
    text += "the path from rank " + std::to_string(words.rank) + " to rank " + std::to_string(words.peer) + " (" +
            words.host + ") drops packets of " + size + " and carries those of " + std::to_string(words.path_bytes) +
            " bytes, by probes of mlt's own; ";
  } else {
    text += "the interface of rank " + std::to_string(words.rank) + " towards rank " + std::to_string(words.peer) +
            " (" + words.host + ") takes packets of " + std::to_string(words.path_bytes) +
            " bytes at most, and no longer those of " + size + "; ";
  }
  if (words.fitting_bytes > 0) {
    text += "give Context(segment_bytes=" + std::to_string(words.fitting_bytes) + ") on every rank, or ";
  }
  return text + "set one MTU on both hosts and every switch between them (`ip link set DEVICE mtu ...`); `mlt doctor " +
         words.host + "` measures it";
}

std::string refusal_text(core::PostStatus status, const std::string& peer_error, const Options& options) {
  switch (status) {
    case core::PostStatus::kPosted:
      return "posted";
    case core::PostStatus::kUnknownPeer:
      return "no such peer";
    case core::PostStatus::kPeerNotConnected:
      return peer_error.empty() ? "the peer is not connected" : peer_error;
    case core::PostStatus::kTooLarge:
      return "a transfer carries less than 4 GiB: split the tensor";
    case core::PostStatus::kBadElementCount:
      return "its size is not a multiple of the element size";
    case core::PostStatus::kBadTagCount:
      return "the priority function gave another number of tags than there are segments";
    case core::PostStatus::kBadLossBound:
      return "the loss bound must be at least 0 and below 1";
    case core::PostStatus::kLossyInteger:
      return "only floating-point tensors may be lossy: use a loss bound of 0";
    case core::PostStatus::kTooManyOperations:
      return "more operations are in progress than the endpoint has slots for (" +
             std::to_string(options.max_operations) +
             " of the caller's own; sends that were cancelled count until their receiver answers): take completions, "
             "or "
             "raise max_operations (MLT_MAX_OPERATIONS)";
    case core::PostStatus::kOutOfBitmaps:
      return "the tensors in progress have more segments than can be tracked: take completions, use larger segments, "
             "or "
             "raise max_operations (MLT_MAX_OPERATIONS, now " +
             std::to_string(options.max_operations) + "), with which their number grows";
    case core::PostStatus::kTooManyTags:
      return "more than " + std::to_string(options.max_tags) +
             " tags are in use, or their ranks have not yet said that they are not: take completions, use fewer at "
             "once, or raise max_tags (MLT_MAX_TAGS)";
  }
  return "refused";
}

ErrorCode down_code(io::PeerDownCause cause) {
  switch (cause) {
    case io::PeerDownCause::kRefused:
      return ErrorCode::kPeerMismatch;
    case io::PeerDownCause::kUnreachable:
      return ErrorCode::kRendezvous;
    default:
      return ErrorCode::kPeerFailed;
  }
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
