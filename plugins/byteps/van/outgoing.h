// The connection to one node, which carries this node's messages to it. Behind it is a context of two ranks: the
// receiver is rank 0, the sender rank 1. Any thread may send; a thread of its own takes the completions.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "frame.h"
#include "mlt.h"
#include "settings.h"

namespace mlt::van {

class Outgoing {
 public:
  // Called once, by a thread of the connection, if it fails. Not for a node that left.
  using OnFailure = std::function<void(const std::string& text)>;

  // Connects to the node that listens at `host` and `port`, which may start later, and returns when it is up. `name` is
  // the node in errors, `sender` this node's id. Throws mlt::Error, also if `stopping` became true.
  Outgoing(const Settings& settings, const std::string& name, const std::string& host, std::uint16_t port,
           std::int32_t sender, const std::atomic<bool>& stopping, OnFailure on_failure);
  // Waits until what was sent has arrived, for up to 10 s; then says goodbye.
  ~Outgoing();
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;

  // Blocks while kMaxInProgress transfers are in progress. False if the node failed or left.
  bool send(const Message& message);
  bool has_left() const { return has_left_.load(); }
  const std::string& name() const { return name_; }

 private:
  static constexpr std::size_t kMaxInProgress = 1'024;

  void take_completions();
  bool is_over() const { return has_failed_.load() || has_left_.load(); }
  void fail(const std::string& text);
  void post(std::uint64_t tag, std::span<const std::byte> data, std::shared_ptr<void> owner,
            Element element = Element::kUint8);

  const std::string name_;
  const OnFailure on_failure_;
  std::mutex order_;  // head and parts of a message follow each other
  std::mutex mutex_;  // of in_progress_
  std::condition_variable changed_;
  std::size_t in_progress_ = 0;
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> has_left_{false};
  std::atomic<bool> is_closing_{false};
  std::unique_ptr<Engine> engine_;
  std::thread thread_;
};

}  // namespace mlt::van
