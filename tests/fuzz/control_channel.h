// What the targets of the control channel share, on the listening and on the connecting side.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "input.h"
#include "io/control/control_channel.h"
#include "io/control/control_frame.h"

namespace mlt::fuzz {

constexpr std::uint64_t kJob = 7;

inline std::vector<std::byte> frame_of(std::uint8_t type, std::span<const std::byte> payload) {
  std::vector<std::byte> frame(io::kFrameHeaderBytes);
  io::encode_frame_header({static_cast<std::uint32_t>(payload.size()), type}, frame.data());
  frame.insert(frame.end(), payload.begin(), payload.end());
  return frame;
}

inline io::ControlOptions channel_options(std::uint16_t rank, std::uint16_t world_size, std::string secret) {
  io::ControlOptions options;
  options.listen = io::SocketAddress::loopback(AF_INET, 0);
  options.rank = rank;
  options.world_size = world_size;
  options.job_id = kJob;
  options.secret = std::move(secret);
  options.incarnation = 1;
  options.cookies.assign(world_size, 0xC0);
  options.paths = {{.port = 9}};
  options.segment_bytes = 1'400;
  options.max_message_bytes = 1'024;
  options.outgoing_limit_bytes = 8'192;
  return options;
}

// What channel_options() accepts, of another rank.
inline io::Hello acceptable_hello(std::uint16_t rank, std::uint16_t world_size, std::uint64_t incarnation) {
  io::Hello hello;
  hello.version = 1;
  hello.rank = rank;
  hello.world_size = world_size;
  hello.job_id = kJob;
  hello.incarnation = incarnation;
  hello.segment_bytes = 1'400;
  hello.path_count = 1;
  hello.paths[0].port = 9;
  return hello;
}

inline std::vector<std::byte> payload_of(const io::Hello& hello) {
  std::vector<std::byte> payload(io::hello_bytes(hello.path_count));
  io::encode_hello(hello, payload.data());
  return payload;
}

// Thousands of runs a second: leave no TIME_WAIT behind.
inline void reset_on_close(int fd) {
  const linger reset{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
}

// Not sent where the channel has closed the connection, which is its right.
inline void say_if_open(const io::UniqueFd& fd, std::span<const std::byte> bytes) {
  if (fd) (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// The channel under made-up time, and what the input does with it. `Sink` has `bool all_down() const`.
template <typename Sink>
class ChannelWorld {
 public:
  explicit ChannelWorld(const io::ControlOptions& options) {
    io::OsError error;
    channel_ = io::ControlChannel::open(options, error);
    FUZZ_CHECK(channel_ != nullptr);
  }
  ChannelWorld(const ChannelWorld&) = delete;
  ChannelWorld& operator=(const ChannelWorld&) = delete;
  virtual ~ChannelWorld() = default;

  void step(Input& input) {
    act(input);
    service();
  }

  // Left alone for longer than every limit, the channel connects to no peer, and has no peer and no connection.
  void finish() {
    for (int i = 0; i < 20; ++i) {
      now_ += base::kSecond;
      service();
    }
    FUZZ_CHECK(sink_.all_down());
    channel_->say_goodbye();
    service();
    FUZZ_CHECK(channel_->finished());
  }

 protected:
  virtual void act(Input& input) = 0;
  // Between two calls of the channel, and when it has nothing more to do.
  virtual void serviced() {}
  virtual void settled() {}

  void service() {
    for (int turns = 0;; ++turns) {
      FUZZ_CHECK(turns < 100);  // else it keeps asking to be serviced
      channel_->service(now_, sink_);
      serviced();
      pollfd ready{channel_->poll_fd(), POLLIN, 0};
      if (::poll(&ready, 1, 0) <= 0 && channel_->next_timeout() > now_) break;
    }
    settled();
  }
  void wait(Input& input) { now_ += base::DurationNs{input.u8()} * 20 * base::kMillisecond; }
  void send(std::uint16_t rank, std::uint8_t type, std::size_t bytes) {
    const std::vector<std::byte> payload(bytes);
    const io::ControlSendStatus sent = channel_->send(rank, type, payload);
    FUZZ_CHECK((sent == io::ControlSendStatus::kQueued) <= channel_->is_up(rank));
  }

  base::TimeNs now_ = base::kSecond;
  Sink sink_;
  std::unique_ptr<io::ControlChannel> channel_;
};

// Steps of the input, until it is empty.
template <typename World>
void run(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  World world;
  for (int steps = 0; !input.empty() && steps < 64; ++steps) world.step(input);
  world.finish();
}

}  // namespace mlt::fuzz
