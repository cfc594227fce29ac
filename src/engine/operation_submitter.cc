#include "engine/operation_submitter.h"

#include "collective/verbs.h"
#include "engine/error_text.h"
#include "engine/public_enums.h"
#include "wire/element.h"

namespace mlt::engine {

void OperationSubmitter::fail(ErrorCode code, const std::string& text, int peer) const {
  throw Error(code, "rank " + std::to_string(loop_.options().rank) + ": " + text, peer);
}

void OperationSubmitter::fail_unknown(OperationId operation) const {
  fail(ErrorCode::kUnknownOperation, "operation " + std::to_string(operation) +
                                         " was never posted, or its completion was taken already, or another thread "
                                         "waits for it");
}

void OperationSubmitter::reject(const Operation& operation, ErrorCode code, const std::string& why, int peer) const {
  fail(code, operation.name() + " was rejected: " + why, peer);
}

void OperationSubmitter::check_connected(const Operation& operation, std::uint16_t peer,
                                         std::string_view absent) const {
  const EventLoop& loop = loop_;
  if (loop.peers().state(peer) == PeerState::kUp) return;
  loop_.use_and_wait({&peer, 1});
  if (loop.peers().state(peer) == PeerState::kUp) return;
  // close() takes the peers down: a post that started while the engine was open reports the close, not a peer failure.
  check_open(operation);
  const std::string cause = loop.peers().error(peer);
  reject(operation, ErrorCode::kPeerFailed, std::string(absent) + (cause.empty() ? "" : " (" + cause + ")"), peer);
}

void OperationSubmitter::check_transfer(const Operation& operation) const {
  const Options& options = loop_.options();
  const std::uint16_t peer = operation.peer;
  if (peer >= options.ranks || peer == options.rank) {
    reject(operation, ErrorCode::kUnknownPeer,
           "the job has " + rank_range(0, options.ranks) + ", and a rank has no transfers with itself", peer);
  }
  check_open(operation);
  if (operation.tag >= collective::kCollectiveTagBit) {
    reject(operation, ErrorCode::kConfig, "the tag must be below 2^63");
  }
  const auto reject_post = [&](core::PostStatus status) {
    reject(operation, ErrorCode::kBuffer, refusal_text(status, "", options));
  };
  if (operation.total_bytes > 0xFFFF'FFFFULL) reject_post(core::PostStatus::kTooLarge);
  if (operation.total_bytes % wire::element_bytes(wire_element(operation.element)) != 0) {
    reject_post(core::PostStatus::kBadElementCount);
  }
}

void OperationSubmitter::check_loss_bound(const Operation& operation, double loss_bound) const {
  if (loss_bound >= 0.0 && loss_bound < 1.0) return;
  reject(operation, ErrorCode::kConfig,
         "loss bound " + std::to_string(loss_bound) + ": it must be at least 0 and below 1");
}

void OperationSubmitter::check_layer(const Operation& operation, std::uint32_t layer, std::uint32_t layers) const {
  if (layers > 0 && layer < layers) return;
  reject(operation, ErrorCode::kConfig, "layer must be below layers, and layers positive");
}

OperationTable::Begun OperationSubmitter::begin(Operation&& operation) {
  const OperationTable::Begun begun = loop_.operations().begin(std::move(operation));
  if (begun.operation != nullptr) return begun;
  check_open(operation);
  reject(operation, ErrorCode::kLimit,
         std::to_string(loop_.options().max_operations) +
             " operations are in progress or done and not taken: poll or wait for some, or raise max_operations "
             "(MLT_MAX_OPERATIONS)");
}

std::vector<OperationTable::Begun> OperationSubmitter::begin_all(std::span<Operation> operations) {
  std::vector<OperationTable::Begun> begun(operations.size());
  if (loop_.operations().begin_all(operations, begun)) return begun;
  check_open(operations.front());
  const std::size_t limit = loop_.options().max_operations;
  fail(ErrorCode::kLimit, "a list of " + std::to_string(operations.size()) + " transfers was rejected: with " +
                              std::to_string(loop_.operations().size()) +
                              " operations that are in progress or done and not taken they " +
                              "exceed max_operations (MLT_MAX_OPERATIONS), which is " + std::to_string(limit) +
                              ": poll or wait for some, post fewer at once, or raise it");
}

// The loop did not take the command.
void OperationSubmitter::withdraw(std::span<const OperationId> ids) {
  std::string name;
  for (const OperationId id : ids) {
    std::string own = loop_.operations().forget(id);
    if (name.empty()) name = std::move(own);
  }
  if (ids.size() > 1) name += " and " + std::to_string(ids.size() - 1) + " more";
  if (closed_) fail(ErrorCode::kClosed, name + " was rejected: the context is closed");
  fail(ErrorCode::kLimit,
       name + " was rejected: the event loop's command queue is full: post fewer operations at once");
}

}  // namespace mlt::engine
