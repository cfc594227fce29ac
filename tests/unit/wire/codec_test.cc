#include "wire/codec.h"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"

using namespace mlt;
using wire::DropReason;
using wire::PacketType;

namespace {

wire::DataHeader example() {
  wire::DataHeader header;
  header.prefix.type = PacketType::kData;
  header.prefix.flags = MLT_FLAG_CRITICAL | MLT_FLAG_END_OF_ROUND;
  header.prefix.path = 11;
  header.prefix.element = wire::ElementType::kBfloat16;
  header.prefix.round = 0xA7;
  header.prefix.sequence = 0x01020304;
  header.prefix.cookie = 0x1122334455667788;
  header.tag = 0x99AABBCCDDEEFF00;
  header.generation = 0x0A0B0C0D;
  header.total_bytes = 10'000;
  header.offset_bytes = 1'432;
  header.timestamp_ns = 0xFFEEDDCC;
  return header;
}

std::vector<std::byte> packet(const wire::DataHeader& header, std::size_t payload) {
  std::vector<std::byte> bytes(MLT_DATA_HEADER_BYTES + payload, std::byte{0x42});
  wire::encode_data_header(header, bytes.data());
  return bytes;
}

// Decodes a copy of exactly that size on the heap, so that a read past the end is seen by the address sanitizer.
DropReason decode(const std::vector<std::byte>& bytes, wire::DataHeader& header, std::size_t& payload_size) {
  const std::unique_ptr<std::byte[]> exact(new std::byte[bytes.size()]);
  if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
  const std::span<const std::byte> view(exact.get(), bytes.size());
  if (const DropReason reason = wire::decode_prefix(view, header.prefix); reason != DropReason::kNone) return reason;
  std::span<const std::byte> payload;
  const DropReason reason = wire::decode_data(view, header, payload);
  if (reason == DropReason::kNone) {
    payload_size = payload.size();
    CHECK(payload.data() == view.data() + MLT_DATA_HEADER_BYTES);
  }
  return reason;
}

DropReason decode(const std::vector<std::byte>& bytes) {
  wire::DataHeader header;
  std::size_t size = 0;
  return decode(bytes, header, size);
}

}  // namespace

TEST_CASE("data_header__round_trip_keeps_every_field") {
  const wire::DataHeader in = example();
  wire::DataHeader out;
  std::size_t payload = 0;
  REQUIRE(decode(packet(in, 1'432), out, payload) == DropReason::kNone);
  CHECK(payload == 1'432);
  CHECK(out.prefix.type == in.prefix.type);
  CHECK(out.prefix.flags == in.prefix.flags);
  CHECK(out.prefix.path == in.prefix.path);
  CHECK(out.prefix.element == in.prefix.element);
  CHECK(out.prefix.round == in.prefix.round);
  CHECK(out.prefix.sequence == in.prefix.sequence);
  CHECK(out.prefix.cookie == in.prefix.cookie);
  CHECK(out.tag == in.tag);
  CHECK(out.generation == in.generation);
  CHECK(out.total_bytes == in.total_bytes);
  CHECK(out.offset_bytes == in.offset_bytes);
  CHECK(out.timestamp_ns == in.timestamp_ns);
}

TEST_CASE("data_header__bytes_are_as_drawn_in_packet_h") {
  auto bytes = packet(example(), 0);
  wire::seal(bytes);  // a second time: takes the check out of the cookie again
  const unsigned expected[] = {0x01, 0x05, 0xB6, 0xA7, 0x04, 0x03, 0x02, 0x01, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33,
                               0x22, 0x11, 0x00, 0xFF, 0xEE, 0xDD, 0xCC, 0xBB, 0xAA, 0x99, 0x0D, 0x0C, 0x0B, 0x0A,
                               0x10, 0x27, 0x00, 0x00, 0x98, 0x05, 0x00, 0x00, 0xCC, 0xDD, 0xEE, 0xFF};
  REQUIRE(bytes.size() == sizeof expected / sizeof expected[0]);
  for (std::size_t i = 0; i < bytes.size(); ++i) CHECK(std::to_integer<unsigned>(bytes[i]) == expected[i]);
}

TEST_CASE("decode__every_reason_by_name") {
  const auto changed = [](std::size_t at, unsigned value) {
    auto bytes = packet(example(), 100);
    bytes[at] = static_cast<std::byte>(value);
    return bytes;
  };
  CHECK(decode({}) == DropReason::kTooShort);
  CHECK(decode(changed(0, 0xF1)) == DropReason::kBadVersion);
  CHECK(decode(changed(0, 0x11)) == DropReason::kBadVersion);
  CHECK(decode(changed(0, 0x00)) == DropReason::kUnknownType);
  CHECK(decode(changed(0, 0x0B)) == DropReason::kUnknownType);
  CHECK(decode(changed(0, 0x0F)) == DropReason::kUnknownType);
  for (const unsigned flag : {0x40U, 0x80U}) CHECK(decode(changed(1, flag)) == DropReason::kUnknownFlags);
  for (const unsigned element : {13U, 14U, 15U}) CHECK(decode(changed(2, element)) == DropReason::kUnknownElement);

  wire::DataHeader header = example();
  header.total_bytes = 10'001;  // not a whole number of bfloat16
  CHECK(decode(packet(header, 100)) == DropReason::kBadLength);
  header.total_bytes = 1'530;  // the payload would end behind the tensor
  CHECK(decode(packet(header, 100)) == DropReason::kBadLength);
  header.total_bytes = 1'532;  // exactly at its end
  CHECK(decode(packet(header, 100)) == DropReason::kNone);
  CHECK(decode(packet(header, 0)) == DropReason::kBadLength);  // empty packet, full tensor
  header.total_bytes = header.offset_bytes = 0;
  CHECK(decode(packet(header, 0)) == DropReason::kNone);  // empty tensor
  CHECK(decode(packet(header, 2)) == DropReason::kBadLength);
  header.offset_bytes = 2;
  CHECK(decode(packet(header, 0)) == DropReason::kBadLength);
  header.offset_bytes = 0xFFFF'FFFE;  // sums must not wrap
  header.total_bytes = 0xFFFF'FFFE;
  CHECK(decode(packet(header, 100)) == DropReason::kBadLength);
}

TEST_CASE("decode__truncated_at_every_length_never_passes_a_short_header") {
  const auto whole = packet(example(), 60);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    const DropReason reason = decode(std::vector(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)));
    if (length < MLT_DATA_HEADER_BYTES) {
      CHECK(reason == DropReason::kTooShort);
    } else {
      CHECK(reason == (length == MLT_DATA_HEADER_BYTES ? DropReason::kBadLength : DropReason::kNone));
    }
  }
}

TEST_CASE("decode__every_value_of_every_byte_answers_and_stays_inside") {
  const auto whole = packet(example(), 20);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (unsigned value = 0; value < 256; ++value) {
      auto bytes = whole;
      bytes[at] = static_cast<std::byte>(value);
      wire::DataHeader header;
      std::size_t payload = 0;
      if (decode(bytes, header, payload) != DropReason::kNone) continue;
      if (header.prefix.type != wire::PacketType::kData) continue;  // its check covers another length
      REQUIRE(payload == 20);
      REQUIRE(std::uint64_t{header.offset_bytes} + payload <= header.total_bytes);
      // What was accepted is what was sent: encoding it again gives the same bytes.
      auto again = bytes;
      wire::encode_data_header(header, again.data());
      REQUIRE(again == bytes);
    }
  }
}

TEST_CASE("decode__any_flipped_bit_of_the_header_spoils_the_cookie") {
  const auto whole = packet(example(), 20);
  wire::Prefix sent;
  REQUIRE(wire::decode_prefix(whole, sent) == DropReason::kNone);
  REQUIRE(sent.cookie == example().prefix.cookie);
  for (std::size_t bit = 0; bit < 8 * MLT_DATA_HEADER_BYTES; ++bit) {
    CAPTURE(bit);
    auto bytes = whole;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    wire::Prefix prefix;
    if (wire::decode_prefix(bytes, prefix) == DropReason::kNone) CHECK(prefix.cookie != sent.cookie);
  }
  // The payload is UDP's checksum's part.
  auto bytes = whole;
  bytes[MLT_DATA_HEADER_BYTES] ^= std::byte{1};
  wire::Prefix prefix;
  REQUIRE(wire::decode_prefix(bytes, prefix) == DropReason::kNone);
  CHECK(prefix.cookie == sent.cookie);
}

TEST_CASE("cookie_rank__is_the_low_half_word") {
  CHECK(wire::cookie_rank(0xFFFF'FFFF'FFFF'1234) == 0x1234);
  CHECK(wire::cookie_rank(0) == 0);
}

TEST_CASE("drop_reason_name__every_reason_has_one_of_its_own") {
  std::vector<std::string> names;
  for (int i = 0; i <= static_cast<int>(DropReason::kBadLength); ++i) {
    names.emplace_back(wire::drop_reason_name(static_cast<DropReason>(i)));
    CHECK(names.back() != "unknown");
    for (std::size_t j = 0; j + 1 < names.size(); ++j) CHECK(names[j] != names.back());
  }
}

TEST_CASE("element__sizes_and_names_of_every_type") {
  const std::uint32_t sizes[] = {1, 1, 2, 4, 8, 2, 2, 4, 8, 2, 4, 8, 1};
  int floating = 0;
  for (std::uint8_t i = 0; i < wire::kElementTypeCount; ++i) {
    const auto type = static_cast<wire::ElementType>(i);
    CHECK(wire::element_bytes(type) == sizes[i]);
    CHECK(std::string(wire::element_name(type)) != "unknown");
    floating += wire::is_floating_point(type) ? 1 : 0;
  }
  CHECK(floating == 4);
}

// ---- parity --------------------------------------------------------------------------------------------------------

namespace {

wire::ParityHeader parity_example() {
  wire::ParityHeader header;
  header.prefix = example().prefix;
  header.prefix.type = PacketType::kParity;
  header.prefix.flags = MLT_FLAG_END_OF_ROUND;
  header.tag = 0x99AABBCCDDEEFF00;
  header.generation = 0x0A0B0C0D;
  header.total_bytes = 1'000'000;
  header.block = 0x0203;
  header.block_segments = 224;
  header.index = 31;
  header.timestamp_ns = 0xFFEEDDCC;
  return header;
}

DropReason decode_parity(const wire::ParityHeader& header, std::size_t payload_bytes, wire::ParityHeader& out) {
  std::vector<std::byte> bytes(MLT_DATA_HEADER_BYTES + payload_bytes, std::byte{0x42});
  wire::encode_parity_header(header, bytes.data());
  const DropReason reason = wire::decode_prefix(bytes, out.prefix);
  if (reason != DropReason::kNone) return reason;
  std::span<const std::byte> payload;
  return wire::decode_parity(bytes, out, payload);
}

}  // namespace

TEST_CASE("parity_header__round_trip_keeps_every_field") {
  const wire::ParityHeader in = parity_example();
  wire::ParityHeader out;
  REQUIRE(decode_parity(in, 1'432, out) == DropReason::kNone);
  CHECK(out.prefix.type == PacketType::kParity);
  CHECK(out.prefix.flags == in.prefix.flags);
  CHECK(out.prefix.sequence == in.prefix.sequence);
  CHECK(out.prefix.cookie == in.prefix.cookie);
  CHECK(out.tag == in.tag);
  CHECK(out.generation == in.generation);
  CHECK(out.total_bytes == in.total_bytes);
  CHECK(out.block == in.block);
  CHECK(out.block_segments == in.block_segments);
  CHECK(out.index == in.index);
  CHECK(out.timestamp_ns == in.timestamp_ns);
}

TEST_CASE("decode_parity__names_what_is_wrong") {
  wire::ParityHeader out;
  const auto with = [&](auto change, std::size_t payload_bytes = 1'432) {
    wire::ParityHeader header = parity_example();
    change(header);
    return decode_parity(header, payload_bytes, out);
  };
  using Header = wire::ParityHeader;
  CHECK(with([](Header&) {}, 0) == DropReason::kBadLength);
  CHECK(with([](Header& header) { header.total_bytes = 1'430; }) == DropReason::kBadLength);
  CHECK(with([](Header& header) { header.total_bytes = 1'432; }) == DropReason::kNone);
  CHECK(with([](Header& header) { header.total_bytes = 100'001; }) == DropReason::kBadLength);
  CHECK(with([](Header& header) { header.block_segments = 0; }) == DropReason::kBadLength);
  CHECK(with([](Header& header) { header.block_segments = 225; }) == DropReason::kBadLength);
  CHECK(with([](Header& header) { header.index = 32; }) == DropReason::kBadLength);
  CHECK(with([](Header& header) { header.prefix.flags = MLT_FLAG_REPAIR; }) == DropReason::kUnknownFlags);
  CHECK(wire::decode_prefix(std::vector<std::byte>(39, std::byte{0xFA}), out.prefix) != DropReason::kNone);
}
