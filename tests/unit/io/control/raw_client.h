// A blocking TCP connection to a node's control channel, for saying what no channel would say. It knows how to open and
// to prove, with whatever secret it was given, and serves the node while it waits for an answer.
#pragma once

#include <doctest/doctest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <string>
#include <vector>

#include "io/control/proof.h"
#include "unit/io/control/control_world.h"

namespace mlt::io_test {

inline io::Hello hello_of(std::uint16_t rank, std::uint16_t to) {
  const io::ControlOptions options = control_options(rank, 2);
  io::Hello hello;
  hello.version = options.version;
  hello.rank = rank;
  hello.expected_rank = to;
  hello.world_size = options.world_size;
  hello.job_id = options.job_id;
  hello.incarnation = options.incarnation;
  hello.path_count = static_cast<std::uint16_t>(options.paths.size());
  std::copy(options.paths.begin(), options.paths.end(), hello.paths.begin());
  return hello;
}

class RawClient {
 public:
  struct Frame {
    std::uint8_t type;
    std::vector<std::byte> payload;
  };

  // `source`: the address that it connects from; empty: the system chooses.
  explicit RawClient(Node& node, const std::string& secret = "", const std::string& source = "")
      : node_(node),
        key_(secret, control_options(0, 2).job_id),
        fd_(::socket(node.channel->listen_address().family(), SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const io::SocketAddress& to = node.channel->listen_address();
    if (!source.empty()) {
      const io::SocketAddress from = *io::SocketAddress::from_host(source, 0);
      REQUIRE(::bind(fd_.get(), from.raw(), from.raw_size()) == 0);
    }
    REQUIRE(::connect(fd_.get(), to.raw(), to.raw_size()) == 0);
    const timeval patience{2, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }

  void say(std::span<const std::byte> bytes) {
    REQUIRE(::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  }
  // Until what was said lies in the node's socket.
  void wait_until_acknowledged() {
    int waiting = 1;
    while (waiting > 0) REQUIRE(::ioctl(fd_.get(), SIOCOUTQ, &waiting) == 0);
  }
  void say_frame(io::FrameType type, std::span<const std::byte> payload) {
    std::vector<std::byte> bytes(io::kFrameHeaderBytes);
    io::encode_frame_header({static_cast<std::uint32_t>(payload.size()), static_cast<std::uint8_t>(type)},
                            bytes.data());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    say(bytes);
  }
  // Says our opening and takes the node's; true if its proof is that of our secret.
  bool open(std::uint16_t version = control_options(0, 2).version) {
    io::encode_opening({version, io::random_nonce()}, transcript_.data());
    say_frame(io::FrameType::kOpen, std::span(transcript_).first(io::kOpeningBytes));
    return take_answer();
  }
  // Opens with the nonce of another client.
  void open_as(const RawClient& other) {
    std::copy_n(other.transcript_.begin(), io::kOpeningBytes, transcript_.begin());
    say_frame(io::FrameType::kOpen, std::span(transcript_).first(io::kOpeningBytes));
    take_answer();
  }
  // The node's opening, and its proof if it had one.
  const std::vector<std::byte>& answer() const { return answer_; }
  io::Proof prove(io::FrameType type, std::span<const std::byte> payload) const {
    return key_.prove(io::ProofRole::kConnecting, static_cast<std::uint8_t>(type), transcript_, payload);
  }
  void say_proved(io::FrameType type, std::span<const std::byte> payload,
                  io::ProofRole role = io::ProofRole::kConnecting) {
    std::vector<std::byte> bytes(payload.begin(), payload.end());
    const io::Proof proof = key_.prove(role, static_cast<std::uint8_t>(type), transcript_, payload);
    bytes.insert(bytes.end(), proof.begin(), proof.end());
    say_frame(type, bytes);
  }
  // Opens first if that was not done.
  void say_hello(const io::Hello& hello) {
    if (transcript_[0] == std::byte{0}) open();
    std::array<std::byte, io::kHelloMaxBytes> payload;
    const std::size_t size = io::encode_hello(hello, payload.data());
    say_proved(io::FrameType::kHello, std::span(payload).first(size));
  }
  void confirm() { say_frame(io::FrameType::kConfirm, {}); }

  // The node's next frame; nothing once it has closed.
  std::optional<Frame> read() {
    while (true) {
      io::FrameHeader header;
      if (read_.size() >= io::kFrameHeaderBytes) {
        REQUIRE(io::decode_frame_header(read_.data(), header));
        const std::size_t size = io::kFrameHeaderBytes + header.payload_bytes;
        if (read_.size() >= size) {
          Frame frame{header.type, {read_.begin() + io::kFrameHeaderBytes, read_.begin() + static_cast<long>(size)}};
          read_.erase(read_.begin(), read_.begin() + static_cast<long>(size));
          return frame;
        }
      }
      if (!read_more()) return std::nullopt;
    }
  }
  // Everything that the node still says until it closes.
  std::vector<std::byte> read_to_the_end() {
    while (read_more()) continue;
    return read_;
  }
  io::UniqueFd& fd() { return fd_; }

 private:
  bool take_answer() {
    const auto frame = read();
    if (!frame || frame->payload.size() < io::kOpeningBytes) return false;
    CHECK(frame->type == static_cast<std::uint8_t>(io::FrameType::kOpen));
    answer_ = frame->payload;
    std::copy_n(answer_.begin(), io::kOpeningBytes, transcript_.begin() + io::kOpeningBytes);
    return key_.verify(std::span(answer_).subspan(io::kOpeningBytes), io::ProofRole::kListening,
                       static_cast<std::uint8_t>(io::FrameType::kOpen), transcript_, {});
  }
  bool read_more() {
    std::array<std::byte, 4'096> bytes;
    ssize_t got = -1;
    serve(
        {&node_},
        [&] {
          got = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
          return got >= 0 || errno != EAGAIN;
        },
        10 * base::kSecond);
    if (got <= 0) return false;
    read_.insert(read_.end(), bytes.begin(), bytes.begin() + got);
    return true;
  }

  Node& node_;
  io::JobKey key_;
  io::UniqueFd fd_;
  std::array<std::byte, 2 * io::kOpeningBytes> transcript_{};
  std::vector<std::byte> answer_;
  std::vector<std::byte> read_;
};

}  // namespace mlt::io_test
