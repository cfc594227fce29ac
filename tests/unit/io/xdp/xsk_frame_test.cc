// Frames as src/io/xdp/xsk_frame.h builds and reads them. That a kernel takes them is shown by tests/backend.
#include "io/xdp/xsk_frame.h"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

using namespace mlt;

namespace {

constexpr io::MacAddress kOurs{2, 0, 0, 0, 0, 1}, kTheirs{2, 0, 0, 0, 0, 2};

struct Way {
  io::SocketAddress from, to;
  std::size_t ip_bytes;
};

std::vector<Way> ways() {
  const auto address = [](const char* text) { return *io::SocketAddress::parse(text); };
  return {{address("10.1.2.3:4000"), address("10.9.8.7:65535"), 20},
          {address("[fd00::1]:4000"), address("[fd00::ffff:2]:65535"), 40}};
}

std::vector<std::byte> payload(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 37 + 11);
  return bytes;
}

std::vector<std::byte> build(const Way& way, const std::vector<std::byte>& content, std::uint8_t traffic_class) {
  const io::UdpFrameHeader header(kOurs, kTheirs, way.from, way.to);
  std::vector<std::byte> frame(header.bytes() + content.size());
  std::copy(content.begin(), content.end(), frame.begin() + header.bytes());
  REQUIRE(header.write(frame.data(), static_cast<std::uint32_t>(content.size()), traffic_class) == frame.size());
  return frame;
}

unsigned at(const std::vector<std::byte>& frame, std::size_t i) { return std::to_integer<unsigned>(frame[i]); }

// The checksum of RFC 1071 as the RFC words it: 16 bits at a time, most significant byte first.
unsigned plain_sum(const std::vector<std::byte>& bytes, std::size_t from, std::size_t to, unsigned sum = 0) {
  for (std::size_t i = from; i < to; i += 2) sum += at(bytes, i) << 8 | (i + 1 < to ? at(bytes, i + 1) : 0);
  while (sum >> 16 != 0) sum = (sum & 0xFFFF) + (sum >> 16);
  return sum;
}

}  // namespace

TEST_CASE("write__fills_every_field_and_both_checksums") {
  for (const Way& way : ways()) {
    for (const std::size_t size : {1U, 2U, 3U, 40U, 1'471U, 1'472U}) {
      CAPTURE(size);
      const auto frame = build(way, payload(size), 46 << 2 | 2);
      const std::size_t udp = 14 + way.ip_bytes;
      CHECK(at(frame, 5) == 2);   // to
      CHECK(at(frame, 11) == 1);  // from
      if (way.ip_bytes == 20) {
        CHECK((at(frame, 12) << 8 | at(frame, 13)) == 0x0800);
        CHECK(at(frame, 15) == (46 << 2 | 2));
        CHECK((at(frame, 16) << 8 | at(frame, 17)) == 28 + size);
        CHECK((at(frame, 20) << 8 | at(frame, 21)) == 0x4000);  // don't fragment
        CHECK(plain_sum(frame, 14, 34) == 0xFFFF);
      } else {
        CHECK((at(frame, 12) << 8 | at(frame, 13)) == 0x86DD);
        CHECK((at(frame, 14) << 8 | at(frame, 15)) == (0x6000 | (46 << 2 | 2) << 4));
        CHECK((at(frame, 18) << 8 | at(frame, 19)) == 8 + size);
      }
      CHECK((at(frame, udp) << 8 | at(frame, udp + 1)) == 4'000);
      CHECK((at(frame, udp + 2) << 8 | at(frame, udp + 3)) == 65'535);
      CHECK((at(frame, udp + 4) << 8 | at(frame, udp + 5)) == 8 + size);
      const std::size_t addresses = way.ip_bytes == 20 ? 26 : 22;
      const unsigned pseudo = plain_sum(frame, addresses, udp, 17 + 8 + static_cast<unsigned>(size));
      CHECK(plain_sum(frame, udp, frame.size(), pseudo) == 0xFFFF);
    }
  }
}

TEST_CASE("write__never_leaves_a_checksum_of_zero") {
  // Zero would mean that there is none. One of 65,536 payloads sums up to it.
  for (const Way& way : ways()) {
    std::size_t all_ones = 0;
    for (unsigned i = 0; i < 65'536; ++i) {
      const auto frame = build(way, {static_cast<std::byte>(i >> 8), static_cast<std::byte>(i)}, 0);
      const std::size_t checksum = 14 + way.ip_bytes + 6;
      const unsigned value = at(frame, checksum) << 8 | at(frame, checksum + 1);
      if (value == 0) FAIL("no checksum for payload " << i);
      if (value == 0xFFFF) ++all_ones;
    }
    CHECK(all_ones == 1);
  }
}

TEST_CASE("read__gives_back_what_was_written_padded_or_not") {
  for (const Way& way : ways()) {
    for (const std::size_t size : {1U, 5U, 700U, 1'472U}) {
      for (unsigned ecn = 0; ecn < 4; ++ecn) {
        const auto content = payload(size);
        auto frame = build(way, content, static_cast<std::uint8_t>(10 << 2 | ecn));
        if (size == 5) frame.resize(frame.size() + 9, std::byte{0xEE});  // Ethernet's padding, of whatever content
        io::ReceivedFrame out;
        REQUIRE(io::read_frame(frame, out) == io::FrameVerdict::kGood);
        CHECK(std::vector<std::byte>(out.payload.begin(), out.payload.end()) == content);
        CHECK(out.ecn == static_cast<base::Ecn>(ecn));
      }
    }
  }
}

TEST_CASE("read__refuses_any_single_bit_that_changed_behind_the_ethernet_header") {
  for (const Way& way : ways()) {
    const auto good = build(way, payload(64), 7);
    for (std::size_t bit = 14 * 8; bit < good.size() * 8; ++bit) {
      auto frame = good;
      frame[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      io::ReceivedFrame out;
      const io::FrameVerdict verdict = io::read_frame(frame, out);
      // IPv6 protects its traffic class, flow label and hop limit by nothing; a version is not looked at.
      const std::size_t byte = bit / 8 - 14;
      const bool unprotected = way.ip_bytes == 40 && (byte < 4 || byte == 4 || byte == 5 || byte == 7);
      if (unprotected) continue;
      CAPTURE(bit);
      CHECK(verdict != io::FrameVerdict::kGood);
      CHECK(verdict != io::FrameVerdict::kChecksumUnfinished);
    }
  }
}

TEST_CASE("read__takes_a_checksum_that_a_kernel_left_to_a_card") {
  for (const Way& way : ways()) {
    auto frame = build(way, payload(33), 0);
    const std::size_t udp = 14 + way.ip_bytes;
    const std::size_t addresses = way.ip_bytes == 20 ? 26 : 22;
    const unsigned pseudo = plain_sum(frame, addresses, udp, 17 + 8 + 33);
    frame[udp + 6] = static_cast<std::byte>(pseudo >> 8);
    frame[udp + 7] = static_cast<std::byte>(pseudo);
    io::ReceivedFrame out;
    CHECK(io::read_frame(frame, out) == io::FrameVerdict::kChecksumUnfinished);
    CHECK(out.payload.size() == 33);
    frame[udp + 7] ^= std::byte{1};
    CHECK(io::read_frame(frame, out) == io::FrameVerdict::kBadChecksum);
  }
}

TEST_CASE("read__refuses_what_is_cut_short_or_empty") {
  for (const Way& way : ways()) {
    const auto good = build(way, payload(20), 0);
    io::ReceivedFrame out;
    for (std::size_t size = 0; size < good.size(); ++size) {
      CHECK(io::read_frame(std::span(good).first(size), out) == io::FrameVerdict::kMalformed);
    }
    CHECK(io::read_frame(build(way, {}, 0), out) == io::FrameVerdict::kMalformed);
  }
}
