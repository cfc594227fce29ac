// What goes into an endpoint and what comes out of it: requests, completions, peers.
//
// Buffers belong to the caller and stay pinned from a successful post until the completion is polled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bitmap.h"
#include "base/time.h"
#include "core/priority.h"
#include "wire/control.h"

namespace mlt::core {

using base::DurationNs;
using base::TimeNs;
using OperationId = std::uint64_t;  // the caller's name of an operation; returned in its completion

enum class StopPolicy : std::uint8_t {
  kPatient,  // stop when everything missing is known to be lost and the loss is within the bound
  kEager,    // stop the moment 1 - p has arrived (the paper's section 4.2.3)
};

enum class Fill : std::uint8_t {
  kZero,  // missing ranges become zero (gradients)
  kKeep,  // missing ranges keep what the buffer held (parameters)
};

// Writes the tags of `count` segments from `first` on into the memory behind SendRequest::tags.
using ClassifyFunction = void (*)(void* context, std::uint32_t first, std::uint32_t count);

// Segments of a send that have become ready to leave, and that the endpoint has not taken yet. Whoever prepares them
// writes, on the endpoint's thread; the endpoint takes them whenever it is asked for packets.
struct SendFeed {
  std::uint32_t fresh_count = 0;
  base::BitmapView fresh;  // a bit per segment of the send

  // Once for every segment, from the time its bytes stay as they are.
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
  // Earlier first across transfers; front layers get smaller numbers.
  std::uint32_t order = 0;
  // One per segment (segment_count()), or empty: then every segment gets `uniform_tag`.
  std::span<const SegmentTag> tags;
  SegmentTag uniform_tag = SegmentTag::important(0);
  // With it the tags need not be there at the post: it is called for every segment once, in order, shortly before the
  // segment may leave. No segment is critical then: the first packet says whether any of them is.
  ClassifyFunction classify = nullptr;
  void* classify_context = nullptr;
  // With it a segment leaves only once it was added there; it lives as long as the request's other memory. Not together
  // with `classify`.
  SendFeed* feed = nullptr;
  DurationNs timeout_ns = 0;  // 0: the endpoint's default
};

// Called once for every segment that arrives first, with its place in the tensor. Default: copy.
using PlaceFunction = void (*)(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload);

struct ReceiveRequest {
  OperationId operation = 0;
  std::uint16_t peer = 0;
  std::uint64_t tag = 0;
  std::span<std::byte> data;
  wire::ElementType element = wire::ElementType::kUint8;
  double loss_bound = 0.0;  // [0, 1): this fraction of the elements may be missing (loss_bound.h)
  StopPolicy stop = StopPolicy::kPatient;
  Fill fill = Fill::kZero;
  PlaceFunction place = nullptr;  // with it the endpoint writes nothing itself, and `fill` is the caller's business
  void* place_context = nullptr;
  DurationNs deadline_ns = 0;  // after the post; past it the receive completes with what it has. 0: none
  DurationNs timeout_ns = 0;   // after the post; past it the receive fails. 0: the endpoint's default
};

enum class PostStatus : std::uint8_t {
  kPosted,
  kUnknownPeer,        // rank outside the job, or this rank itself
  kPeerNotConnected,   // no hello yet, or the peer said goodbye or failed
  kTooLarge,           // more than 4 GiB - 1: split the tensor
  kBadElementCount,    // size is not a multiple of the element size
  kBadTagCount,        // `tags` or `feed` has another length than the tensor has segments
  kBadLossBound,       // outside [0, 1), or not a number
  kLossyInteger,       // a loss bound above 0 on a type that is not floating point
  kTooManyOperations,  // every slot is taken: poll completions, then post again
  kOutOfBitmaps,       // the arena that tracks segments is full: poll completions, then post again
  kTooManyTags,        // too many (peer, tag) pairs are in use
};

enum class CompletionKind : std::uint8_t { kSend, kReceive };

enum class CompletionStatus : std::uint8_t {
  kComplete,      // everything arrived
  kWithinBound,   // some is missing, no more than the receiver allowed
  kDeadline,      // the receiver's deadline passed first; what is missing may exceed the bound
  kSizeMismatch,  // failed: the two sides named different sizes
  kTypeMismatch,  // failed: the two sides named different element types
  kPeerFailed,    // failed: the peer died or left
  kTimedOut,      // failed: not finished within its timeout
  kCancelled,     // failed: cancelled here, or given up by the peer
};

constexpr bool is_failure(CompletionStatus status) { return status >= CompletionStatus::kSizeMismatch; }

struct Completion {
  OperationId operation = 0;
  CompletionKind kind = CompletionKind::kSend;
  CompletionStatus status = CompletionStatus::kComplete;
  std::uint16_t peer = 0;
  std::uint64_t tag = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t missing_bytes = 0;                               // for a send: as the receiver reported it
  std::uint64_t allowed_missing_bytes = 0;                       // receive only: what the loss bound allowed
  std::uint64_t repaired_segments = 0;                           // sent again (send), or arrived by repair (receive)
  std::uint64_t remote_total_bytes = 0;                          // on a size mismatch: the other side's size
  wire::ElementType remote_element = wire::ElementType::kUint8;  // on a type mismatch: the other side's type
  DurationNs elapsed_ns = 0;                                     // from post to completion
  // Receive only: bit i = segment i arrived. Empty if nothing is missing. Valid until the endpoint's next entry point.
  std::span<const std::uint64_t> received_bitmap;
  std::uint32_t segment_count = 0;
  std::uint32_t segment_bytes = 0;
};

// What hello settled about a peer.
struct PeerUp {
  std::uint16_t peer = 0;
  std::uint64_t local_cookie = 0;      // the peer puts it in every datagram to us; low 16 bits: the peer's rank
  std::uint64_t remote_cookie = 0;     // we put it in every datagram to the peer; low 16 bits: our rank
  std::uint32_t segment_bytes = 0;     // payload of a full packet, the same both ways; a multiple of 8
  std::uint32_t window_bytes = 0;      // unacknowledged bytes that the peer's receive buffer holds
  std::uint32_t own_window_bytes = 0;  // the same that we announced to the peer; 0: as much as it likes
  std::uint32_t early_segments = 0;    // segments the peer keeps for receives that are not posted yet, over all of them
  std::uint32_t early_transfers = 0;   // and how many transfers these may belong to
  // The way to it drops nothing and holds back by itself (shared memory): the rate stays what it is at the start, and
  // no path MTU is searched.
  bool holds_back = false;
};

struct PeerDown {
  std::uint16_t peer = 0;
};

// The network carries no packet with a larger payload to this peer: a send with longer segments can't get there.
struct PathLimit {
  std::uint16_t peer = 0;
  std::uint32_t payload_bytes = 0;
};

// A datagram of the control class that came over the TCP connection instead.
struct PeerMessage {
  std::uint16_t peer = 0;
  std::span<const std::byte> bytes;
};

struct Cancel {
  OperationId operation = 0;
  CompletionKind kind = CompletionKind::kSend;
};

// This endpoint is about to leave: poll_control() then yields what the peers must still learn. The driver sends that
// before its goodbye.
struct Closing {};

// What the endpoint wants sent over the TCP connection (the backstop of unanswered control datagrams).
struct ControlOutput {
  std::uint16_t peer = 0;
  std::size_t size = 0;
  std::byte bytes[wire::kMaxControlBytes];
};

}  // namespace mlt::core
