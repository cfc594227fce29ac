#include "sim/damage.h"

#include <doctest/doctest.h>

#include <vector>

#include "base/prng.h"
#include "wire/codec.h"
#include "wire/control.h"

using namespace mlt;

namespace {

struct Escapes {
  std::uint32_t one_or_two = 0;  // damages of as many bits that the check does not show
  std::uint32_t three = 0;
  std::uint32_t both = 0;  // of these, those that UDP's checksum does not show either
};

void flip(std::vector<std::byte>& bytes, std::size_t bit) { bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8); }

// Every damage of one to three bits.
Escapes damage(const std::vector<std::byte>& message) {
  Escapes escapes;
  std::vector<std::byte> bytes = message;
  const std::uint64_t cookie = sim::cookie_found(message);
  const auto count = [&](std::uint32_t& escaped) {
    if (sim::cookie_found(bytes) != cookie) return;
    ++escaped;
    if (sim::udp_sum(bytes) == sim::udp_sum(message)) ++escapes.both;
  };
  const std::size_t bits = 8 * message.size();
  for (std::size_t i = 0; i < bits; ++i) {
    flip(bytes, i);
    count(escapes.one_or_two);
    for (std::size_t j = i + 1; j < bits; ++j) {
      flip(bytes, j);
      count(escapes.one_or_two);
      for (std::size_t k = j + 1; k < bits; ++k) {
        flip(bytes, k);
        count(escapes.three);
        flip(bytes, k);
      }
      flip(bytes, j);
    }
    flip(bytes, i);
  }
  return escapes;
}

std::vector<std::byte> data_header(base::Prng prng) {
  wire::DataHeader header;
  header.prefix.type = wire::PacketType::kData;
  header.prefix.sequence = static_cast<std::uint32_t>(prng.next());
  header.prefix.cookie = 0x1122'3344'5566'0001;
  header.tag = prng.next();
  header.generation = static_cast<std::uint32_t>(prng.next());
  header.total_bytes = static_cast<std::uint32_t>(prng.next());
  header.offset_bytes = static_cast<std::uint32_t>(prng.next());
  header.timestamp_ns = static_cast<std::uint32_t>(prng.next());
  std::vector<std::byte> bytes(MLT_DATA_HEADER_BYTES);
  wire::encode_data_header(header, bytes.data());
  return bytes;
}

}  // namespace

TEST_CASE("damage__finds_the_cookie_that_the_codec_put_in") {
  CHECK(sim::cookie_found(data_header(base::Prng(1))) == 0x1122'3344'5566'0001);
  wire::Probe probe;
  probe.prefix.type = wire::PacketType::kProbe;
  probe.prefix.cookie = 0x9988'7766'5544'0003;
  probe.path_count = 2;
  probe.last_sequence[1] = 5;
  std::vector<std::byte> bytes(128);
  bytes.resize(wire::encode_probe(probe, bytes.data()));
  CHECK(bytes.size() % 8 != 0);  // the last word is padded
  CHECK(sim::cookie_found(bytes) == 0x9988'7766'5544'0003);
}

// PROTOCOL 4.3.5 and what stands below it.
TEST_CASE("damage__of_up_to_three_bits_is_noticed_by_the_check_or_by_udp") {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const Escapes escapes = damage(data_header(base::Prng(seed)));
    CHECK(escapes.one_or_two == 0);
    CHECK(escapes.three > 0);  // or UDP's checksum was not needed, and the network need not look at it
    CHECK(escapes.three < 20);
    CHECK(escapes.both == 0);
  }
}
