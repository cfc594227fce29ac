#include "io/control/frame_stream.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

using namespace mlt;
using io::FrameStream;

namespace {

struct StreamPair {
  explicit StreamPair(std::size_t limit = 1U << 20) {
    std::array<int, 2> fds;
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()) == 0);
    a = std::make_unique<FrameStream>(io::UniqueFd(fds[0]), limit);
    b = std::make_unique<FrameStream>(io::UniqueFd(fds[1]), limit);
    a->set_max_payload(1'000);
    b->set_max_payload(1'000);
  }
  std::unique_ptr<FrameStream> a, b;
};

}  // namespace

TEST_CASE("next__finds_frames_however_the_bytes_are_cut") {
  std::vector<std::byte> payload(300);
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i);
  std::vector<std::byte> bytes(io::kFrameHeaderBytes);
  io::encode_frame_header({300, 20}, bytes.data());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  for (std::size_t cut = 1; cut < bytes.size(); cut += 7) {
    CAPTURE(cut);
    StreamPair pair;
    REQUIRE(::send(pair.a->fd(), bytes.data(), cut, 0) == static_cast<ssize_t>(cut));
    io::FrameHeader header;
    std::span<const std::byte> got;
    REQUIRE(pair.b->fill() == FrameStream::Status::kOk);
    CHECK(pair.b->next(header, got) == FrameStream::Next::kIncomplete);
    REQUIRE(::send(pair.a->fd(), bytes.data() + cut, bytes.size() - cut, 0) > 0);
    REQUIRE(pair.b->fill() == FrameStream::Status::kOk);
    REQUIRE(pair.b->next(header, got) == FrameStream::Next::kFrame);
    CHECK(header.type == 20);
    CHECK(std::equal(got.begin(), got.end(), payload.begin(), payload.end()));
    CHECK(pair.b->next(header, got) == FrameStream::Next::kIncomplete);
    CHECK(pair.b->fill() == FrameStream::Status::kBlocked);
  }
}

TEST_CASE("next__a_frame_above_the_limit_is_malformed_before_it_arrives") {
  StreamPair pair;
  std::vector<std::byte> large(1'001);
  REQUIRE(pair.a->queue(16, std::span(large).first(1'000)));
  REQUIRE(pair.a->queue(16, large));
  REQUIRE(pair.a->flush() == FrameStream::Status::kOk);
  io::FrameHeader header;
  std::span<const std::byte> payload;
  REQUIRE(pair.b->fill() == FrameStream::Status::kOk);
  CHECK(pair.b->next(header, payload) == FrameStream::Next::kFrame);
  CHECK(pair.b->next(header, payload) == FrameStream::Next::kMalformed);
}

TEST_CASE("fill__tells_a_socket_that_may_have_more_from_an_empty_one") {
  StreamPair pair;
  const std::vector<std::byte> message(992);
  REQUIRE(pair.a->queue(16, message));
  REQUIRE(pair.a->queue(16, message));
  REQUIRE(pair.a->flush() == FrameStream::Status::kOk);
  REQUIRE(pair.b->fill() == FrameStream::Status::kOk);
  CHECK(pair.b->may_have_more());  // 2,000 bytes, of which a read takes 1,024
  REQUIRE(pair.b->fill() == FrameStream::Status::kOk);
  CHECK_FALSE(pair.b->may_have_more());
  CHECK(pair.b->fill() == FrameStream::Status::kBlocked);
}

TEST_CASE("queue__keeps_to_its_limit_and_takes_more_once_there_is_room") {
  StreamPair pair(5'000);
  const std::vector<std::byte> message(992);  // a frame of 1,000 bytes
  for (int i = 0; i < 5; ++i) REQUIRE(pair.a->queue(16, message));
  CHECK(!pair.a->queue(16, {}));
  CHECK(pair.a->pending_bytes() == 5'000);
  REQUIRE(pair.a->flush() == FrameStream::Status::kOk);
  CHECK(pair.a->pending_bytes() == 0);
  CHECK(pair.a->queue(16, message));
}

TEST_CASE("flush__survives_a_full_socket_and_loses_nothing") {
  StreamPair pair(4U << 20);
  pair.b->set_max_payload(50'000);
  std::vector<std::byte> message(50'000);
  for (int i = 0; i < 60; ++i) {
    message[0] = static_cast<std::byte>(i);
    REQUIRE(pair.a->queue(16, message));
  }
  REQUIRE(pair.a->flush() == FrameStream::Status::kBlocked);
  int seen = 0;
  while (seen < 60) {
    pair.a->flush();
    REQUIRE(pair.b->fill() == FrameStream::Status::kOk);
    io::FrameHeader header;
    std::span<const std::byte> payload;
    while (pair.b->next(header, payload) == FrameStream::Next::kFrame) {
      CHECK(payload.size() == message.size());
      CHECK(payload[0] == static_cast<std::byte>(seen++));
    }
  }
  CHECK(pair.a->pending_bytes() == 0);
}

TEST_CASE("end_output__lets_the_other_side_read_to_the_end") {
  StreamPair pair;
  REQUIRE(pair.a->queue(16, {}));
  pair.a->end_output();
  CHECK(!pair.a->queue(16, {}));
  CHECK(pair.b->fill() == FrameStream::Status::kOk);
  CHECK(pair.b->fill() == FrameStream::Status::kEnd);
  pair.b.reset();
  CHECK(pair.a->fill() == FrameStream::Status::kEnd);
}

TEST_CASE("release_consumed__leaves_an_idle_connection_without_the_buffers_of_its_handshake") {
  StreamPair pair;
  const std::vector<std::byte> hello(200), heartbeat;
  io::FrameHeader header;
  std::span<const std::byte> got;
  const auto pass = [&](std::span<const std::byte> payload) {
    REQUIRE(pair.a->queue(20, payload));
    REQUIRE(pair.a->flush() == FrameStream::Status::kOk);
    REQUIRE(pair.b->fill() == FrameStream::Status::kOk);
    REQUIRE(pair.b->next(header, got) == FrameStream::Next::kFrame);
    CHECK(got.size() == payload.size());
    pair.b->release_consumed();
  };
  pass(hello);
  CHECK(pair.a->buffer_bytes() == 0);
  CHECK(pair.b->buffer_bytes() == 0);
  for (int i = 0; i < 100; ++i) pass(heartbeat);
  CHECK(pair.a->buffer_bytes() <= 64);
  CHECK(pair.b->buffer_bytes() <= 64);
}

TEST_CASE("release_consumed__keeps_a_frame_of_which_a_part_has_come") {
  StreamPair pair;
  std::vector<std::byte> bytes(io::kFrameHeaderBytes + 100);
  io::encode_frame_header({100, 20}, bytes.data());
  io::FrameHeader header;
  std::span<const std::byte> got;
  REQUIRE(::send(pair.a->fd(), bytes.data(), 50, 0) == 50);
  REQUIRE(pair.b->fill() == FrameStream::Status::kOk);
  CHECK(pair.b->next(header, got) == FrameStream::Next::kIncomplete);
  pair.b->release_consumed();
  REQUIRE(::send(pair.a->fd(), bytes.data() + 50, bytes.size() - 50, 0) > 0);
  REQUIRE(pair.b->fill() == FrameStream::Status::kOk);
  CHECK(pair.b->next(header, got) == FrameStream::Next::kFrame);
}
