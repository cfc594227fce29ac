#include "io/control/control_frame.h"

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <vector>

#include "base/bytes.h"

using namespace mlt;

namespace {
io::Hello some_hello() {
  io::Hello hello;
  hello.version = 4;
  hello.rank = 258;
  hello.expected_rank = 4;
  hello.world_size = 300;
  hello.job_id = 0x0123456789ABCDEFULL;
  hello.incarnation = 0xFEDCBA9876543210ULL;
  hello.cookie = 0x1122334455667788ULL;
  hello.path_count = 2;
  hello.paths[0].port = 40'000;
  hello.paths[1].port = 40'001;
  hello.paths[1].address[3] = std::byte{9};
  hello.control_port = 50'000;
  hello.segment_bytes = 1'400;
  hello.window_bytes = 1U << 24;
  hello.early_segments = 77;
  return hello;
}
constexpr std::size_t kSomeHelloBytes = io::hello_bytes(2);
}  // namespace

TEST_CASE("hello__every_field_survives_the_trip") {
  std::array<std::byte, kSomeHelloBytes> bytes;
  REQUIRE(io::encode_hello(some_hello(), bytes.data()) == bytes.size());
  io::Hello read;
  REQUIRE(io::decode_hello(bytes, 4, read) == io::HelloError::kNone);
  const io::Hello sent = some_hello();
  CHECK(read.version == sent.version);
  CHECK(read.rank == sent.rank);
  CHECK(read.expected_rank == sent.expected_rank);
  CHECK(read.world_size == sent.world_size);
  CHECK(read.job_id == sent.job_id);
  CHECK(read.incarnation == sent.incarnation);
  CHECK(read.cookie == sent.cookie);
  CHECK(read.path_count == sent.path_count);
  CHECK(read.paths == sent.paths);
  CHECK(read.control_port == sent.control_port);
  CHECK(read.segment_bytes == sent.segment_bytes);
  CHECK(read.window_bytes == sent.window_bytes);
  CHECK(read.early_segments == sent.early_segments);
}

TEST_CASE("decode_hello__any_length_but_the_right_one_is_refused_without_reading_past_it") {
  std::array<std::byte, kSomeHelloBytes + 1> bytes{};
  io::encode_hello(some_hello(), bytes.data());
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    CAPTURE(size);
    // Exactly as long as said, so that a sanitizer sees every byte too far.
    const std::vector<std::byte> exact(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    io::Hello hello;
    const io::HelloError error = io::decode_hello(exact, 4, hello);
    CHECK(error == (size < io::kHelloPrefixBytes ? io::HelloError::kTooShort
                    : size == kSomeHelloBytes    ? io::HelloError::kNone
                                                 : io::HelloError::kBadLength));
  }
}

TEST_CASE("decode_hello__refuses_no_path_too_many_port_0_and_bytes_that_are_not_zero") {
  std::array<std::byte, io::hello_bytes(17)> bytes{};
  const auto decoded = [&](std::size_t size) {
    io::Hello hello;
    return io::decode_hello(std::span(bytes).first(size), 4, hello);
  };
  io::encode_hello(some_hello(), bytes.data());
  REQUIRE(decoded(kSomeHelloBytes) == io::HelloError::kNone);
  for (const unsigned count : {0U, 17U, 0xFFFFU}) {
    base::store_le16(bytes.data() + 12, static_cast<std::uint16_t>(count));
    for (const std::size_t size : {io::hello_bytes(0), kSomeHelloBytes, bytes.size()}) {
      CHECK(decoded(size) == io::HelloError::kBadPaths);
    }
  }
  base::store_le16(bytes.data() + 12, 2);
  for (const std::size_t path : {0U, 1U}) {
    std::byte* port = bytes.data() + io::hello_bytes(path) + 16;
    const std::uint16_t before = base::load_le16(port);
    base::store_le16(port, 0);
    CHECK(decoded(kSomeHelloBytes) == io::HelloError::kBadPaths);
    base::store_le16(port, before);
    port[3] = std::byte{1};
    CHECK(decoded(kSomeHelloBytes) == io::HelloError::kBadPaths);
    port[3] = std::byte{0};
  }
  CHECK(decoded(kSomeHelloBytes) == io::HelloError::kNone);
}

TEST_CASE("decode_hello__other_versions_are_recognised_whatever_follows_the_prefix") {
  std::array<std::byte, kSomeHelloBytes> bytes;
  io::encode_hello(some_hello(), bytes.data());
  io::Hello hello;
  CHECK(io::decode_hello(std::span(bytes).first(io::kHelloPrefixBytes), 5, hello) == io::HelloError::kOtherVersion);
  CHECK(hello.version == 4);
  CHECK(hello.rank == 258);
  bytes[0] = std::byte{0};
  CHECK(io::decode_hello(bytes, 4, hello) == io::HelloError::kBadMagic);
}

TEST_CASE("frame_header__reserved_bytes_must_be_zero") {
  std::array<std::byte, io::kFrameHeaderBytes> bytes;
  io::encode_frame_header({123'456, 200}, bytes.data());
  io::FrameHeader header;
  REQUIRE(io::decode_frame_header(bytes.data(), header));
  CHECK(header.payload_bytes == 123'456);
  CHECK(header.type == 200);
  for (std::size_t i = 5; i < 8; ++i) {
    auto changed = bytes;
    changed[i] = std::byte{1};
    CHECK(!io::decode_frame_header(changed.data(), header));
  }
}

TEST_CASE("refusal__survives_the_trip_and_unknown_reasons_are_refused") {
  const io::Refusal sent{io::RefusalReason::kJob, 7, 0xAAAA, 0xBBBB};
  std::array<std::byte, io::kRefusalBytes> bytes;
  io::encode_refusal(sent, bytes.data());
  io::Refusal read;
  REQUIRE(io::decode_refusal(bytes, read));
  CHECK(read.reason == sent.reason);
  CHECK(read.refuser_rank == 7);
  CHECK(read.refuser_value == 0xAAAA);
  CHECK(read.refused_value == 0xBBBB);
  CHECK(!io::decode_refusal(std::span(bytes).first(io::kRefusalBytes - 1), read));
  bytes[0] = std::byte{0};
  CHECK(!io::decode_refusal(bytes, read));
  bytes[0] = static_cast<std::byte>(io::kLastRefusalReason + 1);
  CHECK(!io::decode_refusal(bytes, read));
}

TEST_CASE("describe_refusal__every_reason_names_both_sides_and_what_to_change") {
  for (std::uint8_t reason = 1; reason <= io::kLastRefusalReason; ++reason) {
    CAPTURE(int{reason});
    const io::Refusal refusal{static_cast<io::RefusalReason>(reason), 11, 21, 22};
    for (const bool for_refuser : {true, false}) {
      const std::string text = io::describe_refusal(refusal, 33, for_refuser, "10.0.0.1:5");
      CHECK(text.find("rank 33") != std::string::npos);
      CHECK(text.find("10.0.0.1:5") != std::string::npos);
      if (!for_refuser) CHECK(text.find("rank 11") != std::string::npos);
      CHECK(text.find("unknown") == std::string::npos);
      CHECK(text.ends_with("."));
    }
  }
}
