// Everything of the van that does not need ps-lite: a listener, one connection to each node and one from it, and one
// queue of what arrived. Nodes have ps-lite's ids. connect() and close() are called by ps-lite's own threads, send() by
// any.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "buffer_pool.h"
#include "frame.h"
#include "incoming.h"
#include "outgoing.h"
#include "settings.h"
#include "sockets.h"

namespace mlt::van {

class Transport {
 public:
  struct Calls {
    std::function<Part(const Message& message, std::size_t index, std::uint64_t bytes)> place;
    std::function<void(const std::string& text)> warn;
  };
  // Of a receive().
  struct Received {
    std::optional<Message> message;
    std::string failure;  // unless it is empty: why this process cannot continue
  };
  enum class Sent { kDone, kNodeLeft, kNodeLost, kFailed };

  explicit Transport(Calls calls);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // Listens at `host` and `port`, or if `may_change`, at another port if that one is in use. Returns the port. Throws.
  std::uint16_t listen(const std::string& host, std::uint16_t port, bool may_change);
  // Returns when the node is connected; replaces an earlier connection to a node of that id. A node that does not come
  // up is lost if a failed node may be replaced. Throws otherwise.
  void connect(std::int32_t id, const std::string& host, std::uint16_t port, std::int32_t sender);
  // kFailed: there is no connection to that node, or receive() reports why it ended.
  Sent send(std::int32_t id, const Message& message);
  void deliver(Message message);  // to this node itself
  // Blocks for up to `limit`; then there is neither a message nor a failure.
  Received receive(std::chrono::nanoseconds limit);
  // Of what nodes sent with a loss bound: the bytes, and those of them that did not arrive.
  std::uint64_t lossy_bytes() const { return lossy_bytes_.load(); }
  std::uint64_t lost_bytes() const { return lost_bytes_.load(); }
  double push_loss_bound() const { return settings_.push_loss_bound; }
  // Waits until what was sent has arrived, then says goodbye.
  void close();

 private:
  void accept_all();
  void on_failure(std::int32_t id, const std::string& text);
  std::string expired() const;

  const Settings settings_;
  const Calls calls_;
  const std::shared_ptr<BufferPool> pool_ = BufferPool::make();
  std::atomic<bool> is_closing_{false};
  std::atomic<std::uint64_t> lossy_bytes_{0};
  std::atomic<std::uint64_t> lost_bytes_{0};

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable arrived_;
  std::deque<Message> messages_;
  std::string failure_;
  std::map<std::int32_t, std::shared_ptr<Outgoing>> outgoing_;
  std::map<std::int32_t, std::pair<std::chrono::steady_clock::time_point, std::string>> lost_;  // when and why
  std::vector<std::unique_ptr<Incoming>> incoming_;

  io::UniqueFd listener_;
  std::thread accepting_;
};

}  // namespace mlt::van
