// One example of every message, byte for byte: tests/golden/wire_examples.txt, which appendix B of PROTOCOL.md shows
// and tests/python/protocol reads back from the document's diagrams alone. MLT_REWRITE_GOLDEN=1 writes it anew.
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "wire/codec.h"
#include "wire/control.h"

using namespace mlt;
using wire::PacketType;

namespace {

constexpr wire::AckBlock kExampleBlock{
    .highest_sequence = 7, .received_packets = 6, .ce_packets = 1, .echo_timestamp_ns = 1'000'000, .hold_ns = 2'500};
constexpr wire::AckBlock kOther{
    .highest_sequence = 5, .received_packets = 5, .ce_packets = 0, .echo_timestamp_ns = 900'000, .hold_ns = 90'000};
constexpr wire::TransferId kExampleTransfer{42, 3};

wire::Prefix prefix_of(PacketType type, std::uint8_t flags, wire::ElementType element, std::uint8_t round) {
  wire::Prefix prefix;
  prefix.type = type;
  prefix.flags = flags;
  prefix.element = element;
  prefix.round = round;
  prefix.cookie = 0x1122'3344'5566'0001;
  return prefix;
}

wire::DataHeader example_data() {
  wire::DataHeader data;
  data.prefix =
      prefix_of(PacketType::kData, MLT_FLAG_HAS_CRITICAL | MLT_FLAG_END_OF_ROUND, wire::ElementType::kFloat32, 0);
  data.prefix.sequence = 7;
  data.tag = kExampleTransfer.tag;
  data.generation = kExampleTransfer.generation;
  data.total_bytes = 4'096;
  data.offset_bytes = 2'864;
  data.timestamp_ns = 1'000'000;
  return data;
}

wire::Probe example_probe() {
  wire::Probe probe;
  probe.prefix = prefix_of(PacketType::kProbe, MLT_PROBE_FLAG_CRITICAL, wire::ElementType::kFloat32, 1);
  probe.transfer = kExampleTransfer;
  probe.total_bytes = 4'096;
  probe.critical_segments = 2;
  probe.timestamp_ns = 1'200'000;
  probe.path_count = 2;
  probe.suspended_paths = 0b10;
  probe.last_sequence[0] = 7;
  probe.last_sequence[1] = 5;
  return probe;
}

std::string hex(const char* name, const std::byte* bytes, std::size_t size) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = name;
  for (std::size_t i = 0; i < size; ++i) {
    text += i % 16 == 0 ? '\n' : ' ';
    text += kDigits[std::to_integer<unsigned>(bytes[i]) >> 4];
    text += kDigits[std::to_integer<unsigned>(bytes[i]) & 15U];
  }
  return text + "\n\n";
}

std::string examples() {
  std::array<std::byte, wire::kMaxControlBytes> out{};
  wire::encode_data_header(example_data(), out.data());
  std::string text = hex("DATA", out.data(), MLT_DATA_HEADER_BYTES);

  wire::Ack ack{prefix_of(PacketType::kAck, MLT_ACK_FLAG_POSTED | MLT_ACK_FLAG_ECHO, {}, 0), kExampleBlock,
                kExampleTransfer, 0};
  ack.prefix.sequence = 1;  // it takes path 1 itself
  ack.other_count = 1;
  ack.others[0] = {.path = 1, .fresh = true, .block = kOther};
  text += hex("ACK", out.data(), wire::encode_ack(ack, out.data()));
  text += hex("PROBE", out.data(), wire::encode_probe(example_probe(), out.data()));

  const std::array<std::byte, 1> bits{std::byte{0b101}};  // of three segments the middle one is missing
  wire::BitmapMessage bitmap;
  bitmap.prefix = prefix_of(PacketType::kBitmap, 0, {}, 1);
  bitmap.block = kExampleBlock;
  bitmap.transfer = kExampleTransfer;
  bitmap.probe_timestamp_ns = 1'200'000;
  bitmap.segment_count = 3;
  bitmap.bits = bits;
  text += hex("BITMAP", out.data(), wire::encode_bitmap(bitmap, out.data()));

  wire::Stop stop;
  stop.prefix = prefix_of(PacketType::kStop, MLT_STOP_FLAG_ECHO, wire::ElementType::kFloat32, 0);
  stop.block = kExampleBlock;
  stop.transfer = kExampleTransfer;
  stop.status = wire::StopStatus::kWithinBound;
  stop.missing_bytes = 1'432;
  stop.receiver_total_bytes = 4'096;
  text += hex("STOP", out.data(), wire::encode_stop(stop, out.data()));

  const wire::Abort abort{
      prefix_of(PacketType::kAbort, 0, {}, 0), kExampleTransfer, {wire::AbortCause::kPathTooSmall, 1'328}};
  text += hex("ABORT", out.data(), wire::encode_abort(abort, out.data()));

  const wire::MtuProbe mtu_probe{prefix_of(PacketType::kMtuProbe, 0, {}, 0), 1'300'000, 32};
  out.fill(std::byte{0});
  wire::encode_mtu_probe(mtu_probe, out.data());
  text += hex("MTU_PROBE", out.data(), mtu_probe.bytes);
  const wire::MtuReply mtu_reply{prefix_of(PacketType::kMtuReply, 0, {}, 0), 1'300'000, 32};
  text += hex("MTU_REPLY", out.data(), wire::encode_mtu_reply(mtu_reply, out.data()));

  wire::Retire retire;
  retire.prefix = prefix_of(PacketType::kRetire, MLT_RETIRE_FLAG_LAST, {}, 0);
  retire.floor = 262'147;
  retire.kept_count = 2;
  retire.kept[0] = 42;
  retire.kept[1] = 7;
  text += hex("RETIRE", out.data(), wire::encode_retire(retire, out.data()));

  wire::ParityHeader parity;
  parity.prefix = prefix_of(PacketType::kParity, MLT_FLAG_END_OF_ROUND, wire::ElementType::kFloat32, 0);
  parity.prefix.sequence = 8;
  parity.tag = kExampleTransfer.tag;
  parity.generation = kExampleTransfer.generation;
  parity.total_bytes = 4'096;
  parity.block_segments = 3;
  parity.timestamp_ns = 1'000'000;
  wire::encode_parity_header(parity, out.data());
  return text + hex("PARITY", out.data(), MLT_DATA_HEADER_BYTES);
}

}  // namespace

TEST_CASE("examples__are_the_bytes_that_the_document_shows") {
  const std::string file = MLT_GOLDEN_FOLDER "/wire_examples.txt";
  if (std::getenv("MLT_REWRITE_GOLDEN") != nullptr) std::ofstream(file) << examples();
  std::ifstream in(file);
  const std::string golden{std::istreambuf_iterator<char>(in), {}};
  CHECK(examples() == golden);
}
