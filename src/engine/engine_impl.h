// Implementation of Engine: the event loop, and the checks of every post on the caller's thread.
#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "engine/error_text.h"
#include "engine/event_loop.h"
#include "engine/public_enums.h"
#include "mlt.h"
#include "wire/element.h"

namespace mlt {

class Engine::Impl {
 public:
  explicit Impl(const Options& options) : loop(options) {}

  [[noreturn]] void fail(ErrorCode code, const std::string& text, int peer = -1) const {
    throw Error(code, "rank " + std::to_string(loop.options().rank) + ": " + text, peer);
  }

  // Composes the operation's name here, because only a rejection needs it.
  [[noreturn]] void refuse(const engine::Operation& operation, ErrorCode code, const std::string& why,
                           int peer = -1) const {
    fail(code, operation.name() + " was refused: " + why, peer);
  }

  // `absent` states the effect on the operation of `peer` being down; the cause follows if known.
  void check_connected(const engine::Operation& operation, std::uint16_t peer, const std::string& absent) {
    if (loop.peers().state(peer) == engine::PeerState::kUp) return;
    // close() takes the peers down: a post that started while the engine was open reports the close, not a peer
    // failure.
    if (closed) refuse(operation, ErrorCode::kClosed, "the context is closed");
    const std::string cause = loop.peers().error(peer);
    refuse(operation, ErrorCode::kPeerFailed, absent + (cause.empty() ? "" : " (" + cause + ")"), peer);
  }

  // Validates what can be checked before the event loop takes the transfer.
  void check(const engine::Operation& operation) {
    const std::uint16_t peer = operation.peer;
    if (peer >= loop.options().ranks || peer == loop.options().rank) {
      refuse(operation, ErrorCode::kUnknownPeer,
             "the job has ranks 0 to " + std::to_string(loop.options().ranks - 1) +
                 ", and a rank has no transfers with itself",
             peer);
    }
    if (closed) refuse(operation, ErrorCode::kClosed, "the context is closed");
    check_connected(operation, peer, "the peer is not connected");
    if (operation.tag >= collective::kCollectiveTagBit) {
      refuse(operation, ErrorCode::kConfig, "a tag is below 2^63");
    }
    const auto refuse_post = [&](core::PostStatus status) {
      refuse(operation, ErrorCode::kBuffer, engine::refusal_text(status, "", loop.options()));
    };
    if (operation.total_bytes > 0xFFFF'FFFFULL) refuse_post(core::PostStatus::kTooLarge);
    if (operation.total_bytes % wire::element_bytes(engine::wire_element(operation.element)) != 0) {
      refuse_post(core::PostStatus::kBadElementCount);
    }
  }

  engine::OperationTable::Begun begin(engine::Operation&& operation) {
    const engine::OperationTable::Begun begun = loop.operations().begin(std::move(operation));
    if (begun.operation == nullptr) {
      if (closed) refuse(operation, ErrorCode::kClosed, "the context is closed");
      refuse(operation, ErrorCode::kLimit,
             std::to_string(loop.options().max_operations) +
                 " operations are in progress or done and not taken: poll or wait for some, or raise max_operations "
                 "(MLT_MAX_OPERATIONS)");
    }
    return begun;
  }

  template <typename Command>
  void submit(OperationId id, Command&& command) {
    if (loop.run_command(std::forward<Command>(command))) return;
    const std::string name = loop.operations().forget(id);
    if (closed) fail(ErrorCode::kClosed, name + " was refused: the context is closed");
    fail(ErrorCode::kLimit, name + " was refused: the event loop does not keep up with the commands that wait for it");
  }

  engine::EventLoop loop;
  std::atomic<bool> closed{false};
  std::vector<std::uint16_t> services;
  std::atomic<bool> uses_services{false};
  std::atomic<std::uint16_t> served_workers{0};  // 0: no service
};

}  // namespace mlt
