// Data packets (wire/codec): what decodes, encodes back to the same bytes; what is encoded, decodes to the same fields;
// and no single damaged bit of a header keeps the cookie (packet.h).
#include <algorithm>
#include <array>

#include "input.h"
#include "wire/codec.h"

namespace {

using namespace mlt;

void decode_then_encode(std::span<const std::byte> datagram) {
  wire::DataHeader header;
  const wire::Prefix& prefix = header.prefix;
  if (wire::decode_prefix(datagram, header.prefix) != wire::DropReason::kNone) return;
  std::span<const std::byte> payload;
  if (wire::decode_data(datagram, header, payload) != wire::DropReason::kNone) return;
  if (prefix.type != wire::PacketType::kData) return;
  FUZZ_CHECK(payload.size() == datagram.size() - MLT_DATA_HEADER_BYTES);
  FUZZ_CHECK(payload.empty() || payload.data() == datagram.data() + MLT_DATA_HEADER_BYTES);
  FUZZ_CHECK(std::uint64_t{header.offset_bytes} + payload.size() <= header.total_bytes);
  std::vector<std::byte> again(MLT_DATA_HEADER_BYTES);
  wire::encode_data_header(header, again.data());
  FUZZ_CHECK(std::equal(again.begin(), again.end(), datagram.begin()));
}

void decode_then_encode_parity(std::span<const std::byte> datagram) {
  wire::ParityHeader header;
  if (wire::decode_prefix(datagram, header.prefix) != wire::DropReason::kNone) return;
  if (header.prefix.type != wire::PacketType::kParity) return;
  std::span<const std::byte> payload;
  if (wire::decode_parity(datagram, header, payload) != wire::DropReason::kNone) return;
  FUZZ_CHECK(payload.data() == datagram.data() + MLT_DATA_HEADER_BYTES && payload.size() <= header.total_bytes);
  FUZZ_CHECK(header.block_segments > 0 && header.block_segments <= MLT_MAX_BLOCK_SEGMENTS);
  FUZZ_CHECK(header.index < MLT_MAX_BLOCK_PARITIES);
  std::vector<std::byte> again(MLT_DATA_HEADER_BYTES);
  wire::encode_parity_header(header, again.data());
  FUZZ_CHECK(std::equal(again.begin(), again.end(), datagram.begin()));
}

void encode_then_decode(fuzz::Input& input) {
  wire::DataHeader header;
  header.prefix.type = wire::PacketType::kData;
  header.prefix.flags = input.u8() & MLT_DATA_FLAGS;
  header.prefix.path = static_cast<std::uint8_t>(input.below(MLT_MAX_PATHS));
  header.prefix.element = static_cast<wire::ElementType>(input.below(wire::kElementTypeCount));
  header.prefix.round = input.u8();
  header.prefix.sequence = input.u32();
  header.prefix.cookie = input.u64();
  header.tag = input.u64();
  header.generation = input.u32();
  const std::size_t length = 8 * (1U + input.below(8));
  const std::uint32_t element = wire::element_bytes(header.prefix.element);
  header.total_bytes = std::max<std::uint32_t>(input.u32() / element * element, static_cast<std::uint32_t>(length));
  header.offset_bytes = input.u32() % (header.total_bytes - static_cast<std::uint32_t>(length) + 1);
  header.timestamp_ns = input.u32();
  const std::uint32_t damaged_bit = input.u16() % (8U * MLT_DATA_HEADER_BYTES);

  std::vector<std::byte> datagram(MLT_DATA_HEADER_BYTES + length);
  wire::encode_data_header(header, datagram.data());
  wire::DataHeader read;
  const wire::Prefix& prefix = read.prefix;
  FUZZ_CHECK(wire::decode_prefix(datagram, read.prefix) == wire::DropReason::kNone);
  FUZZ_CHECK(prefix.cookie == header.prefix.cookie);
  FUZZ_CHECK(wire::cookie_rank(prefix.cookie) == (prefix.cookie & MLT_COOKIE_RANK_MASK));
  std::span<const std::byte> payload;
  FUZZ_CHECK(wire::decode_data(datagram, read, payload) == wire::DropReason::kNone);
  FUZZ_CHECK(read.prefix.flags == header.prefix.flags && read.prefix.path == header.prefix.path);
  FUZZ_CHECK(read.prefix.element == header.prefix.element && read.prefix.round == header.prefix.round);
  FUZZ_CHECK(read.prefix.sequence == header.prefix.sequence && read.tag == header.tag);
  FUZZ_CHECK(read.generation == header.generation && read.total_bytes == header.total_bytes);
  FUZZ_CHECK(read.offset_bytes == header.offset_bytes && read.timestamp_ns == header.timestamp_ns);

  datagram[damaged_bit / 8] ^= static_cast<std::byte>(1U << (damaged_bit % 8));
  wire::Prefix damaged;
  if (wire::decode_prefix(datagram, damaged) == wire::DropReason::kNone && damaged.type == wire::PacketType::kData) {
    FUZZ_CHECK(damaged.cookie != header.prefix.cookie);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  if (input.flag()) {
    encode_then_decode(input);
  } else {
    const std::vector<std::byte> datagram = input.rest();
    decode_then_encode(datagram);
    decode_then_encode_parity(datagram);
  }
  return 0;
}
