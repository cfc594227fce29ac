// Two endpoints and what lies between them, for tests/fuzz/endpoint.cc, which says what must hold.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "core/endpoint.h"
#include "input.h"

namespace mlt::fuzz {

// Bytes between two canaries.
class Guarded {
 public:
  Guarded(std::size_t size, std::byte fill);
  std::span<std::byte> bytes() { return std::span(storage_).subspan(kGuard, storage_.size() - 2 * kGuard); }
  std::span<const std::byte> bytes() const { return std::span(storage_).subspan(kGuard, storage_.size() - 2 * kGuard); }
  bool intact() const;

 private:
  static constexpr std::size_t kGuard = 32;
  std::vector<std::byte> storage_;
};

struct Operation {
  core::OperationId id = 0;
  core::CompletionKind kind = core::CompletionKind::kSend;
  std::uint16_t side = 0;
  std::uint64_t tag = 0;
  std::uint32_t epoch = 0;       // connection, as this side counts them
  std::uint32_t generation = 0;  // of the tag on it
  wire::ElementType element = wire::ElementType::kUint8;
  core::Fill fill = core::Fill::kZero;
  double loss_bound = 0;
  bool places = false;  // placed by the caller's function
  bool ended = false;
  base::TimeNs expires_ns = 0;
  std::vector<core::SegmentPriority> priorities;
  std::vector<core::SegmentPriority>
      later_priorities;  // what these become while the tensor is sent, if it is not empty
  std::unique_ptr<Guarded> buffer;
  std::vector<std::byte> snapshot;  // what the buffer must hold: a send's always, a receive's once it has ended
};

struct Datagram {
  std::vector<std::byte> bytes;
  base::Ecn ecn = base::Ecn::kNotEct;
};

class World {
 public:
  explicit World(Input& input);

  void post_send(std::uint16_t side, Input& input);
  void post_receive(std::uint16_t side, Input& input);
  void cancel(std::uint16_t side, std::uint8_t which, core::CompletionKind kind);
  // What `side` has to send is sent.
  void transmit(std::uint16_t side, std::uint32_t runs);
  // One datagram on its way to `side`, in any order; `input` says whether it will come again.
  void deliver(std::uint16_t side, std::uint8_t which, Input& input);
  // The same with bytes changed; the check may be mended, which no network but a hostile peer does.
  void deliver_damaged(std::uint16_t side, std::uint8_t which, Input& input);
  // A datagram that no endpoint sent, with the right cookie.
  void deliver_made_up(std::uint16_t side, Input& input);
  void lose(std::uint16_t side, std::uint8_t which);
  // Both send all they have and get all that is on its way.
  void exchange(std::uint32_t rounds);
  void pass(base::DurationNs duration);
  void poll_completions(std::uint16_t side);
  // What `side` has to say over the control connection, delivered or lost with it.
  void poll_messages(std::uint16_t side, bool deliver);
  // This side learns that the peer is gone, or says that it is about to go itself.
  void leave(std::uint16_t side);
  void reconnect();
  void finish();

 private:
  struct Side {
    std::unique_ptr<core::Endpoint> endpoint;
    bool up = false;
    std::uint32_t epoch = 0;
    std::uint64_t local_cookie = 0;
    std::deque<Datagram> inbound;
    std::array<std::uint32_t, 16> send_generation{};
    std::array<std::uint32_t, 16> receive_generation{};
  };

  static void place(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload);
  static void classify(void* context, std::uint32_t first, std::uint32_t count);
  Operation* post(std::uint16_t side, core::CompletionKind kind, Input& input);
  void posted(Operation& operation, core::PostStatus status, base::DurationNs timeout_ns);
  void capture(std::uint16_t from, const core::Transmit& run);
  void hand_in(std::uint16_t side, const Datagram& datagram, bool late);
  void take_completion(std::uint16_t side, const core::Completion& completion);
  void check_received(const Operation& receive, const core::Completion& completion) const;
  void check_arrived(const Operation& receive, const core::Completion& completion) const;
  void check();
  void everything_ends();
  void everything_is_free();

  base::TimeNs now_;
  std::uint32_t segment_bytes_;
  std::uint32_t window_bytes_;
  std::uint32_t early_segments_;
  core::TransmitCapabilities capabilities_;
  std::array<Side, 2> sides_;
  std::vector<std::unique_ptr<Operation>> operations_;
  core::Transmit run_;
  core::ControlOutput message_;
  bool honest_ = true;
  std::uint32_t connections_ = 0;
};

}  // namespace mlt::fuzz
