// The connection from one node, whose messages it delivers in the order in which they were sent. A thread of its own
// answers the first contact, connects, and receives.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "buffer_pool.h"
#include "frame.h"
#include "mlt.h"
#include "settings.h"
#include "sockets.h"

namespace mlt::van {

class Incoming {
 public:
  // All are called by the connection's thread.
  struct Calls {
    // Where part `index` of the message is to be received; null: in memory of the pool. The parts before it are there,
    // unless they have no data yet.
    std::function<Part(const Message& message, std::size_t index, std::uint64_t bytes)> place;
    std::function<void(Message message)> deliver;
    // What arrived within a loss bound.
    std::function<void(std::uint64_t bytes, std::uint64_t missing)> count;
    // The connection, which was up, failed. `sender`: id in the last message.
    std::function<void(std::int32_t sender, const std::string& text)> fail;
  };

  Incoming(const Settings& settings, io::UniqueFd socket, std::shared_ptr<BufferPool> pool, Calls calls);
  ~Incoming();
  Incoming(const Incoming&) = delete;
  Incoming& operator=(const Incoming&) = delete;

  bool is_up() const { return is_up_.load(); }
  bool is_over() const { return is_over_.load(); }  // its thread has nothing left to do

 private:
  static constexpr std::size_t kHeads = 32;  // receives of heads that wait

  struct Waiting {
    Message message;
    std::size_t missing = 0;  // parts that have not arrived
  };
  // What an operation receives: a head, or a part of the message with that number.
  struct Target {
    bool is_head = false;
    std::uint64_t number = 0;
  };

  void run();
  bool answer();
  bool wait_until_up();
  void receive();
  void post_head(std::size_t slot);
  void on_head(std::size_t slot, std::size_t bytes);
  void on_part(std::uint64_t number, const Completion& done);
  void take_heads(bool is_connected);
  void deliver_complete();

  const Settings settings_;
  io::UniqueFd socket_;
  const std::shared_ptr<BufferPool> pool_;
  const Calls calls_;
  std::int32_t sender_ = 0;
  std::vector<std::array<std::byte, kMaxHeadBytes>> heads_;
  std::array<std::size_t, kHeads> head_bytes_{};  // of those that arrived out of order; 0: not arrived
  std::uint64_t next_head_ = 0;                   // the next to look at; its slot is the number modulo kHeads
  std::uint64_t next_message_ = 0;                // number of the first of waiting_
  std::deque<Waiting> waiting_;
  std::unordered_map<OperationId, Target> operations_;
  std::unique_ptr<Engine> engine_;
  std::atomic<bool> is_up_{false};
  std::atomic<bool> is_over_{false};
  std::atomic<bool> is_closing_{false};
  std::thread thread_;  // declared last
};

}  // namespace mlt::van
