// What an Engine is made of: the event loop, and the checks that every post goes through on the caller's thread.
#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "engine/event_loop.h"
#include "engine/words.h"
#include "mlt.h"
#include "wire/element.h"

namespace mlt {

inline wire::ElementType wire_element(Element element) { return static_cast<wire::ElementType>(element); }

class Engine::Impl {
 public:
  explicit Impl(const Options& options) : loop(options) {}

  [[noreturn]] void fail(ErrorCode code, const std::string& text, int peer = -1) const {
    throw Error(code, "rank " + std::to_string(loop.options().rank) + ": " + text, peer);
  }

  // Everything about a transfer that can be judged before it is handed over.
  void check(const std::string& what, std::uint16_t peer, std::uint64_t tag, std::size_t bytes, Element element) {
    if (peer >= loop.options().ranks || peer == loop.options().rank) {
      fail(ErrorCode::kUnknownPeer,
           what + " was refused: the job has ranks 0 to " + std::to_string(loop.options().ranks - 1) +
               ", and a rank has no transfers with itself",
           peer);
    }
    if (closed) fail(ErrorCode::kClosed, what + " was refused: the context is closed");
    if (loop.peer_state(peer) != engine::PeerState::kUp) {
      const std::string cause = loop.peer_error(peer);
      fail(ErrorCode::kPeerFailed, what + " was refused: " + (cause.empty() ? "the peer is not connected" : cause),
           peer);
    }
    if (tag >= collective::kCollectiveTagBit) fail(ErrorCode::kConfig, what + " was refused: a tag is below 2^63");
    if (bytes > 0xFFFF'FFFFULL) {
      fail(ErrorCode::kBuffer,
           what + " was refused: " + engine::refusal_text(core::PostStatus::kTooLarge, "", loop.options()));
    }
    if (bytes % wire::element_bytes(wire_element(element)) != 0) {
      fail(ErrorCode::kBuffer,
           what + " was refused: " + engine::refusal_text(core::PostStatus::kBadElementCount, "", loop.options()));
    }
  }

  template <typename Command>
  void submit(OperationId id, const std::string& what, Command&& command) {
    if (loop.run_command(std::forward<Command>(command))) return;
    loop.operations().forget(id);
    if (closed) fail(ErrorCode::kClosed, what + " was refused: the context is closed");
    fail(ErrorCode::kLimit, what + " was refused: the event loop does not keep up with the commands that wait for it");
  }

  engine::Operation* begin(OperationId id, engine::Operation operation) {
    const std::string what = operation.what;
    engine::Operation* kept = loop.operations().begin(id, std::move(operation));
    if (kept == nullptr) {
      if (closed) fail(ErrorCode::kClosed, what + " was refused: the context is closed");
      fail(ErrorCode::kLimit, what + " was refused: " + std::to_string(loop.options().max_operations) +
                                  " operations are in progress or done and not taken: poll or wait for some, or raise "
                                  "max_operations (MLT_MAX_OPERATIONS)");
    }
    return kept;
  }

  engine::EventLoop loop;
  std::atomic<OperationId> next_operation{1};
  std::atomic<bool> closed{false};
  std::vector<std::uint16_t> services;
  std::atomic<bool> uses_services{false};
  std::atomic<std::uint16_t> served_workers{0};  // 0: no service
};

}  // namespace mlt
