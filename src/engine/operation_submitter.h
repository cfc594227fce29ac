// Validates operations of user threads, registers them in the operation table, and submits their commands to the loop.
//
// Any thread; it has no state but an atomic flag. Invariant: submit() either passes the command of a registered
// operation to the loop, or withdraws the operation before it throws. Absent on purpose: the arguments of single verbs
// (engine.cc), and errors that the endpoint finds later (user_operations.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/event.h"
#include "engine/event_loop.h"
#include "engine/operation_table.h"
#include "mlt.h"

namespace mlt::engine {

class OperationSubmitter {
 public:
  // `loop` must outlive this.
  explicit OperationSubmitter(EventLoop& loop) : loop_(loop) {}

  // To be called before the loop stops: later errors report the close, not its consequences.
  void close() { closed_ = true; }

  // Throws mlt::Error with this rank's number.
  [[noreturn]] void fail(ErrorCode code, const std::string& text, int peer = -1) const;
  [[noreturn]] void fail_unknown(OperationId operation) const;
  // The same as fail(), with the operation's name, which is composed here because only a rejection needs it.
  [[noreturn]] void reject(const Operation& operation, ErrorCode code, const std::string& why, int peer = -1) const;

  void check_open(const Operation& operation) const {
    if (closed_) reject(operation, ErrorCode::kClosed, "the context is closed");
  }
  // `absent` states the effect on the operation of `peer` being down; the cause follows if known.
  void check_connected(const Operation& operation, std::uint16_t peer, std::string_view absent) const;
  // What can be checked of a send or receive without a connection, and before the loop has it.
  void check_transfer(const Operation& operation) const;
  // Its connection, which it waits for on first use.
  void check_peer(const Operation& operation) const {
    check_connected(operation, operation.peer, "the peer is not connected");
  }
  void check_loss_bound(const Operation& operation, double loss_bound) const;
  void check_layer(const Operation& operation, std::uint32_t layer, std::uint32_t layers) const;

  OperationTable::Begun begin(Operation&& operation);
  // Registers all or none. They are of one verb.
  std::vector<OperationTable::Begun> begin_all(std::span<Operation> operations);
  // Passes the command of an operation that begin() registered to the loop.
  template <typename Command>
  void submit(OperationId id, Command&& command) {
    if (!loop_.run_command(std::forward<Command>(command))) withdraw({&id, 1});
  }
  // The same for several with one command.
  template <typename Command>
  void submit_all(std::span<const OperationId> ids, Command&& command) {
    if (!loop_.run_command(std::forward<Command>(command))) withdraw(ids);
  }

 private:
  [[noreturn]] void withdraw(std::span<const OperationId> ids);

  EventLoop& loop_;
  std::atomic<bool> closed_{false};
};

}  // namespace mlt::engine
