// Replies that wait to be sent, in order. A full queue takes none: the caller drops it, and the sender probes again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/control.h"

namespace mlt::core {

// kAck replies to an ACK_ONLY probe and is queued, unlike other ACKs, of which each peer has at most one due. If two
// transfers probed at the same time, the second would take the first one's reply, and neither could go over TCP.
enum class ReplyKind : std::uint8_t { kBitmap, kNotPosted, kReady, kStop, kAck, kMtuReply };

struct Reply {
  ReplyKind kind = ReplyKind::kBitmap;
  std::uint16_t peer = 0;
  wire::TransferId transfer;
  std::uint8_t round = 0;
  std::uint32_t probe_timestamp_ns = 0;  // echoed only if the reply was not delayed; 0: none
  std::uint32_t next_segment = 0;        // kBitmap: where the next chunk starts
  wire::StopStatus status = wire::StopStatus::kComplete;
  wire::ElementType element = wire::ElementType::kUint8;
  bool is_repeated = false;  // the second of two (7.6.4)
  bool unseen = false;       // kStop: nothing of the transfer had arrived
  std::uint32_t missing_bytes = 0;
  std::uint32_t total_bytes = 0;  // kMtuReply: of the probe
  std::uint8_t path = 0;          // kMtuReply: of the probe
};

class ReplyQueue {
 public:
  // Memory is touched as it is used.
  explicit ReplyQueue(std::uint32_t capacity) : ring_(capacity) {}

  // False if the queue is full.
  [[nodiscard]] bool push(const Reply& reply) {
    if (size_ == ring_.capacity()) return false;
    const std::size_t place = (head_ + size_) % ring_.capacity();
    if (place == ring_.size()) ring_.grow();
    ring_[place] = reply;
    ++size_;
    return true;
  }
  Reply* front() { return size_ == 0 ? nullptr : &ring_[head_]; }
  void pop() { head_ = --size_ == 0 ? 0 : (head_ + 1) % ring_.capacity(); }
  std::size_t size() const { return size_; }
  std::size_t capacity() const { return ring_.capacity(); }
  // Discards replies of an old connection: on the next one the same transfer id names another transfer.
  // PROTOCOL 18.1.2: Replies and aborts of one connection MUST NOT reach the next, where the same transfer names
  //     another tensor.
  void forget(std::uint16_t peer) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      const Reply reply = ring_[(head_ + i) % ring_.capacity()];
      if (reply.peer != peer) ring_[(head_ + kept++) % ring_.capacity()] = reply;
    }
    size_ = kept;
  }

 private:
  base::LazyArray<Reply> ring_;
  std::size_t head_ = 0;
  std::size_t size_ = 0;
};

}  // namespace mlt::core
