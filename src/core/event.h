// Input and output of an endpoint: requests, completions, peer events.
//
// The caller owns the buffers and must keep them valid from a successful post until the completion is polled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bitmap.h"
#include "base/time.h"
#include "core/loss_bound.h"
#include "core/priority.h"
#include "wire/control.h"

namespace mlt::core {

using base::DurationNs;
using base::TimeNs;
using OperationId = std::uint64_t;  // chosen by the caller; returned in the completion

enum class StopPolicy : std::uint8_t {
  kPatient,  // complete once all missing segments are declared lost and the loss is within the bound
  kEager,    // complete as soon as 1 - p has arrived (paper section 4.2.3)
};

enum class Fill : std::uint8_t {
  kZero,  // missing ranges become zero (gradients)
  kKeep,  // missing ranges keep the buffer's old content (parameters)
};

// Writes the priorities of `count` segments from `first` on into the memory behind SendRequest::priorities.
using ClassifyFunction = void (*)(void* context, std::uint32_t first, std::uint32_t count);

// Segments of a send that are ready and that the endpoint has not taken yet. The producer writes on the endpoint's
// thread; the endpoint takes them in poll_transmit().
struct SendFeed {
  std::uint32_t fresh_count = 0;
  base::BitmapView fresh;  // one bit per segment of the send

  // Call once per segment. Its bytes must not change from then on.
  void add(std::uint32_t segment) {
    fresh.set(segment);
    ++fresh_count;
  }
};

struct SendRequest {
  OperationId operation = 0;
  std::uint16_t peer = 0;
  std::uint64_t tag = 0;
  std::span<const std::byte> data;
  wire::ElementType element = wire::ElementType::kUint8;
  // Transfers with smaller numbers leave earlier; front layers get smaller numbers.
  std::uint32_t order = 0;
  // One per segment (segment_count()). If empty, every segment gets `uniform_priority`.
  std::span<const SegmentPriority> priorities;
  SegmentPriority uniform_priority = SegmentPriority::important(0);
  // If set, the priorities need not be valid at the post: the endpoint calls it once per segment, in order, shortly
  // before the segment may leave. No segment may be critical then, because the first packet states whether any is.
  ClassifyFunction classify = nullptr;
  void* classify_context = nullptr;
  // If set, a segment leaves only after add(). It must live as long as the request's other memory. Excludes `classify`.
  SendFeed* feed = nullptr;
  // The receive needs every byte, and leaves it where it arrives: parity packets may follow the first round.
  bool may_have_parity = false;
  DurationNs timeout_ns = 0;  // 0: the endpoint's default
};

// Called once per segment, when it first arrives, with its offset in the tensor. Default: copy.
using PlaceFunction = void (*)(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload);

struct ReceiveRequest {
  OperationId operation = 0;
  std::uint16_t peer = 0;
  std::uint64_t tag = 0;
  std::span<std::byte> data;
  wire::ElementType element = wire::ElementType::kUint8;
  // The sender's tensor may be shorter than `data`: it fills the front of it, and the bound and all of the completion
  // refer to its size.
  bool up_to = false;
  double loss_bound = 0.0;  // [0, 1): this fraction of the elements may be missing (loss_bound.h)
  // If set, receives that name the same one may together miss what it allows; each its own bound, or one segment if
  // that is more and it is patient. It must live until the completion is polled. Requires a floating-point type.
  SharedLossBudget* shared_budget = nullptr;
  StopPolicy stop = StopPolicy::kPatient;
  Fill fill = Fill::kZero;
  PlaceFunction place = nullptr;  // if set, the endpoint does not write the buffer and ignores `fill`
  void* place_context = nullptr;
  // `place` leaves the payload at its offset in `data`, unchanged: lost segments may be restored from the others.
  bool places_in_data = false;
  // After the post; then the receive completes with the data it has, or fails if it has not learned its size. 0: none
  DurationNs deadline_ns = 0;
  DurationNs timeout_ns = 0;  // after the post; then the receive fails. 0: the endpoint's default
};

enum class PostStatus : std::uint8_t {
  kPosted,
  kUnknownPeer,        // rank outside the job, or this rank itself
  kPeerNotConnected,   // no hello yet, or the peer sent goodbye or failed
  kTooLarge,           // more than 4 GiB - 1: split the tensor
  kBadElementCount,    // size is not a multiple of the element size
  kBadPriorityCount,   // `priorities` or `feed` differs in length from the tensor's segments
  kBadLossBound,       // outside [0, 1), or not a number
  kLossyInteger,       // a loss bound above 0 on a type that is not floating point
  kTooManyOperations,  // every slot is in use: poll completions, then post again
  kOutOfBitmaps,       // the arena that tracks segments is full: poll completions, then post again
  kTooManyTags,        // too many (peer, tag) pairs are in use
};

// Whether the same post may succeed once completions have been polled.
constexpr bool may_retry(PostStatus status) {
  return status == PostStatus::kTooManyOperations || status == PostStatus::kOutOfBitmaps;
}

enum class CompletionKind : std::uint8_t { kSend, kReceive };

enum class CompletionStatus : std::uint8_t {
  kComplete,      // everything arrived
  kWithinBound,   // data is missing, within the receiver's bound
  kDeadline,      // the receiver's deadline passed first; the missing data may exceed the bound
  kSizeMismatch,  // failed: sender and receiver specified different sizes
  kTypeMismatch,  // failed: sender and receiver specified different element types
  kPeerFailed,    // failed: the peer died or left
  kTimedOut,      // failed: did not complete within its timeout
  kCancelled,     // failed: cancelled here, or aborted by the peer
};

constexpr bool is_failure(CompletionStatus status) { return status >= CompletionStatus::kSizeMismatch; }

struct Completion {
  OperationId operation = 0;
  CompletionKind kind = CompletionKind::kSend;
  CompletionStatus status = CompletionStatus::kComplete;
  std::uint16_t peer = 0;
  std::uint64_t tag = 0;
  std::uint32_t generation = 0;             // with the tag, the same at both ends
  std::uint64_t total_bytes = 0;            // of an `up_to` receive that failed before it learned it: of `data`
  std::uint64_t missing_bytes = 0;          // for a send: as the receiver reported it
  std::uint64_t allowed_missing_bytes = 0;  // receive only: the max that the bound, and a shared budget, allowed
  std::uint64_t repaired_segments = 0;      // sent again (send), or arrived after a request (receive)
  std::uint64_t remote_total_bytes = 0;     // on a size mismatch: the peer's size
  wire::ElementType remote_element = wire::ElementType::kUint8;  // on a type mismatch: the peer's type
  wire::AbortReason aborted;  // of a receive that the sender's ABORT ended: why; else without a cause
  DurationNs elapsed_ns = 0;  // from post to completion
  // Receive only: bit i = segment i arrived. Empty if nothing is missing. Valid until the endpoint's next entry point.
  std::span<const std::uint64_t> received_bitmap;
  std::uint32_t segment_count = 0;
  std::uint32_t segment_bytes = 0;
};

// Result of the hello exchange with a peer.
struct PeerUp {
  std::uint16_t peer = 0;
  std::uint64_t local_cookie = 0;      // in every datagram from the peer; low 16 bits: the peer's rank
  std::uint64_t remote_cookie = 0;     // in every datagram to the peer; low 16 bits: our rank
  std::uint32_t segment_bytes = 0;     // payload of a full packet, equal in both directions; a multiple of 8
  std::uint32_t window_bytes = 0;      // max bytes in flight to the peer, by its receive buffer
  std::uint32_t own_window_bytes = 0;  // max bytes in flight from the peer, as announced to it; 0: no limit
  std::uint32_t early_segments = 0;    // segments of early data that the peer buffers, over all transfers
  std::uint32_t early_transfers = 0;   // max transfers of this early data
  // The path drops nothing and has flow control of its own (shared memory): the rate stays at its initial value, and no
  // path MTU is searched.
  bool holds_back = false;
};

struct PeerDown {
  std::uint16_t peer = 0;
};

// Larger payloads than this do not reach the peer: a send with longer segments fails.
struct PathLimit {
  std::uint16_t peer = 0;
  std::uint32_t payload_bytes = 0;
};

// A control-class packet that came over the TCP fallback.
struct PeerMessage {
  std::uint16_t peer = 0;
  std::span<const std::byte> bytes;
};

struct Cancel {
  OperationId operation = 0;
  CompletionKind kind = CompletionKind::kSend;
};

// This endpoint is about to leave: poll_control() then returns what the peers still need. The driver must send it
// before its goodbye.
struct Closing {};

// This host dropped datagrams that had arrived before the next one that is passed in: its receive buffer was full.
struct DatagramsDropped {};

// A packet to send over the TCP fallback, after unanswered control-class packets.
struct ControlOutput {
  std::uint16_t peer = 0;
  std::size_t size = 0;
  std::byte bytes[wire::kMaxControlBytes];
};

}  // namespace mlt::core
