// A few control channels in one process, on loopback, driven by one loop: what each sink saw is kept as text and
// values.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/control/control_channel.h"
#include "io/os/clock.h"

namespace mlt::io_test {

class RecordingSink final : public io::ControlSink {
 public:
  struct Down {
    std::uint16_t rank;
    io::PeerDownCause cause;
    std::string text;
  };
  struct Message {
    std::uint16_t rank;
    std::uint8_t type;
    std::vector<std::byte> payload;
  };

  void on_peer_up(const io::PeerHello& peer) override { ups.push_back(peer); }
  void on_message(std::uint16_t rank, std::uint8_t type, std::span<const std::byte> payload) override {
    messages.push_back({rank, type, {payload.begin(), payload.end()}});
    if (when_message) when_message(messages.back());
  }
  void on_peer_down(std::uint16_t rank, io::PeerDownCause cause, const std::string& text) override {
    downs.push_back({rank, cause, text});
  }
  void on_refused(const io::SocketAddress&, const std::string& text) override { refusals.push_back(text); }
  bool needs(std::uint16_t rank) const override { return std::ranges::find(needed, rank) != needed.end(); }
  base::TimeNs datagram_at(std::uint16_t rank) const override {
    const auto found = datagrams_at.find(rank);
    return found == datagrams_at.end() ? 0 : found->second;
  }
  void on_quiet(std::uint16_t rank) override { quiet.push_back(rank); }

  std::vector<io::PeerHello> ups;
  std::vector<Message> messages;
  std::vector<Down> downs;
  std::vector<std::string> refusals;
  std::vector<std::uint16_t> needed;  // peers that an operation waits for
  std::map<std::uint16_t, base::TimeNs> datagrams_at;
  std::vector<std::uint16_t> quiet;
  std::function<void(const Message&)> when_message;
};

inline io::ControlOptions control_options(std::uint16_t rank, std::uint16_t world_size) {
  io::ControlOptions options;
  options.listen = io::SocketAddress::loopback(AF_INET, 0);
  options.rank = rank;
  options.world_size = world_size;
  options.job_id = 0xABCDEF;
  options.incarnation = 1'000U + rank;
  for (std::uint16_t to = 0; to < world_size; ++to) options.cookies.push_back(100U * rank + to);
  options.paths = {{.port = static_cast<std::uint16_t>(20'000 + rank)}};
  options.segment_bytes = 1'400;
  options.window_bytes = 1U << 20;
  options.early_segments = 512;
  return options;
}

struct Node {
  explicit Node(const io::ControlOptions& options) {
    io::OsError error;
    channel = io::ControlChannel::open(options, error);
    REQUIRE_MESSAGE(channel != nullptr, error.text);
  }
  Node(std::uint16_t rank, std::uint16_t world_size) : Node(control_options(rank, world_size)) {}

  void connect_to(std::uint16_t rank, const Node& other, base::DurationNs within = 20 * base::kSecond) {
    connect_to(rank, other.channel->listen_address(), within);
  }
  void connect_to(std::uint16_t rank, const io::SocketAddress& address, base::DurationNs within = 20 * base::kSecond) {
    io::OsError error;
    const base::TimeNs now = io::monotonic_now();
    REQUIRE_MESSAGE(channel->connect_to(now, rank, address, now + within, error), error.text);
  }
  void expect(std::uint16_t rank, base::DurationNs within = 20 * base::kSecond) {
    io::OsError error;
    const base::TimeNs now = io::monotonic_now();
    REQUIRE_MESSAGE(channel->expect(now, rank, now + within, error), error.text);
  }

  std::unique_ptr<io::ControlChannel> channel;
  RecordingSink sink;
};

// Serves all nodes, each as its poll descriptor and timer ask, until `done` or for at most `max_time`; true if done.
bool serve(const std::vector<Node*>& nodes, const std::function<bool()>& done,
           base::DurationNs max_time = 20 * base::kSecond);

// Two nodes that are up: rank 0 listens, rank 1 connected.
struct Couple {
  Couple(const io::ControlOptions& zero_options, const io::ControlOptions& one_options)
      : zero(zero_options), one(one_options) {
    one.connect_to(0, zero);
    REQUIRE(serve({&zero, &one}, [&] { return zero.sink.ups.size() == 1 && one.sink.ups.size() == 1; }));
  }
  Couple() : Couple(control_options(0, 2), control_options(1, 2)) {}

  Node zero, one;
};

}  // namespace mlt::io_test

#define CHECK_CONTAINS(text, part) \
  CHECK_MESSAGE(std::string(text).find(part) != std::string::npos, "\"", text, "\" lacks \"", part, "\"")
