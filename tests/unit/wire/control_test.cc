#include "wire/control.h"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "base/prng.h"

using namespace mlt;
using wire::DropReason;
using wire::PacketType;

namespace {

wire::Prefix prefix_of(PacketType type, std::uint8_t flags) {
  wire::Prefix prefix;
  prefix.type = type;
  prefix.flags = flags;
  prefix.path = 9;
  prefix.element = wire::ElementType::kFloat64;
  prefix.round = 200;
  prefix.sequence = 0xDEADBEEF;
  prefix.cookie = 0x0123456789ABCDEF;
  return prefix;
}

constexpr wire::AckBlock kBlock{1, 0xFFFF'FFFF, 3, 0x8000'0001, 5};
constexpr wire::TransferId kTransfer{0xFEDC'BA98'7654'3210, 77};

bool same(const wire::AckBlock& a, const wire::AckBlock& b) {
  return a.highest_sequence == b.highest_sequence && a.received_packets == b.received_packets &&
         a.ce_packets == b.ce_packets && a.echo_timestamp_ns == b.echo_timestamp_ns && a.hold_ns == b.hold_ns;
}

std::vector<std::byte> ack_bytes() {
  std::vector<std::byte> bytes(wire::kMaxControlBytes);
  bytes.resize(wire::encode_ack({prefix_of(PacketType::kAck, MLT_ACK_FLAGS), kBlock, kTransfer, 123}, bytes.data()));
  return bytes;
}

std::vector<std::byte> abort_bytes(const wire::AbortReason& reason) {
  std::vector<std::byte> bytes(wire::kMaxControlBytes);
  bytes.resize(wire::encode_abort({prefix_of(PacketType::kAbort, 0), kTransfer, reason}, bytes.data()));
  return bytes;
}

wire::Probe example_probe(std::uint8_t paths) {
  wire::Probe probe;
  probe.prefix = prefix_of(PacketType::kProbe, MLT_PROBE_FLAGS);
  probe.transfer = kTransfer;
  probe.total_bytes = 8'000;
  probe.critical_segments = 12;
  probe.timestamp_ns = 34;
  probe.path_count = paths;
  for (std::uint8_t i = 0; i < paths; ++i) probe.last_sequence[i] = 1'000U + i;
  probe.suspended_paths = static_cast<std::uint16_t>(0x9246 & ((1U << paths) - 1));
  return probe;
}

std::vector<std::byte> probe_bytes(std::uint8_t paths) {
  std::vector<std::byte> bytes(wire::kMaxControlBytes);
  bytes.resize(wire::encode_probe(example_probe(paths), bytes.data()));
  return bytes;
}

std::vector<std::byte> bitmap_bytes(std::uint32_t first, std::uint32_t count, std::size_t payload) {
  const std::vector<std::byte> bits(payload, std::byte{0xA5});
  std::vector<std::byte> bytes(wire::kMaxControlBytes + 64);
  wire::BitmapMessage message;
  message.prefix = prefix_of(PacketType::kBitmap, 0);
  message.block = kBlock;
  message.transfer = kTransfer;
  message.probe_timestamp_ns = 9;
  message.first_segment = first;
  message.segment_count = count;
  message.bits = bits;
  bytes.resize(wire::encode_bitmap(message, bytes.data()));
  return bytes;
}

std::vector<std::byte> stop_bytes() {
  std::vector<std::byte> bytes(wire::kMaxControlBytes);
  wire::Stop stop;
  stop.prefix = prefix_of(PacketType::kStop, MLT_STOP_FLAG_ECHO);
  stop.block = kBlock;
  stop.transfer = kTransfer;
  stop.probe_timestamp_ns = 4;
  stop.status = wire::StopStatus::kTypeMismatch;
  stop.missing_bytes = 1'234'567;
  stop.receiver_total_bytes = 0xFFFF'FFFF;
  bytes.resize(wire::encode_stop(stop, bytes.data()));
  return bytes;
}

// Any control datagram, from a copy of exactly its size.
DropReason decode_any(const std::vector<std::byte>& bytes) {
  const std::unique_ptr<std::byte[]> exact(new std::byte[bytes.size()]);
  if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
  const std::span<const std::byte> view(exact.get(), bytes.size());
  wire::Prefix prefix;
  if (const DropReason reason = wire::decode_prefix(view, prefix); reason != DropReason::kNone) return reason;
  switch (prefix.type) {
    case PacketType::kData:
    case PacketType::kParity:
      return DropReason::kUnknownType;
    case PacketType::kAck: {
      wire::Ack ack;
      return wire::decode_ack(view, prefix, ack);
    }
    case PacketType::kProbe: {
      wire::Probe probe;
      const DropReason reason = wire::decode_probe(view, prefix, probe);
      if (reason == DropReason::kNone) CHECK(probe.path_count <= MLT_MAX_PATHS);
      return reason;
    }
    case PacketType::kBitmap: {
      wire::BitmapMessage bitmap;
      const DropReason reason = wire::decode_bitmap(view, prefix, bitmap);
      if (reason == DropReason::kNone) CHECK(bitmap.bits.size() == (bitmap.segment_count + 7) / 8);
      return reason;
    }
    case PacketType::kStop: {
      wire::Stop stop;
      return wire::decode_stop(view, prefix, stop);
    }
    case PacketType::kAbort: {
      wire::Abort abort;
      return wire::decode_abort(view, prefix, abort);
    }
    case PacketType::kMtuProbe: {
      wire::MtuProbe probe;
      const DropReason reason = wire::decode_mtu_probe(view, prefix, probe);
      if (reason == DropReason::kNone) CHECK(probe.bytes == view.size());
      return reason;
    }
    case PacketType::kMtuReply: {
      wire::MtuReply reply;
      return wire::decode_mtu_reply(view, prefix, reply);
    }
    case PacketType::kRetire: {
      wire::Retire retire;
      return wire::decode_retire(view, prefix, retire);
    }
  }
  return DropReason::kUnknownType;
}

}  // namespace

TEST_CASE("mtu_probe__check_covers_its_padding_which_must_be_zero") {
  for (const std::uint32_t size : {24U, 25U, 31U, 32U, 1'472U, 9'000U}) {
    CAPTURE(size);
    const wire::MtuProbe sent{prefix_of(PacketType::kMtuProbe, 0), 0x12345678, size};
    std::vector<std::byte> bytes(size);
    REQUIRE(wire::encode_mtu_probe(sent, bytes.data()) == wire::kMtuProbeBytes);
    wire::Prefix prefix;
    wire::MtuProbe read;
    REQUIRE(wire::decode_prefix(bytes, prefix) == DropReason::kNone);
    CHECK(prefix.cookie == sent.prefix.cookie);
    REQUIRE(wire::decode_mtu_probe(bytes, prefix, read) == DropReason::kNone);
    CHECK(read.timestamp_ns == 0x12345678);
    CHECK(read.bytes == size);
    for (std::size_t at : {std::size_t{16}, std::size_t{size - 1}}) {
      auto damaged = bytes;
      damaged[at] ^= std::byte{4};
      REQUIRE(wire::decode_prefix(damaged, prefix) == DropReason::kNone);
      CHECK(prefix.cookie != sent.prefix.cookie);
    }
    auto longer = bytes;
    longer.push_back(std::byte{0});
    CHECK(decode_any(longer) == DropReason::kBadLength);
    if (size == 24) continue;
    auto shorter = bytes;
    shorter.pop_back();
    CHECK(decode_any(shorter) == DropReason::kBadLength);
    auto marked = bytes;
    marked.back() = std::byte{1};
    CHECK(decode_any(marked) == DropReason::kUnknownFlags);
  }
}

TEST_CASE("mtu_reply__round_trip_and_exact_length") {
  std::vector<std::byte> bytes(wire::kMtuProbeBytes);
  const wire::MtuReply sent{prefix_of(PacketType::kMtuReply, 0), 7, 1'472};
  REQUIRE(wire::encode_mtu_reply(sent, bytes.data()) == bytes.size());
  wire::Prefix prefix;
  wire::MtuReply read;
  REQUIRE(wire::decode_prefix(bytes, prefix) == DropReason::kNone);
  REQUIRE(wire::decode_mtu_reply(bytes, prefix, read) == DropReason::kNone);
  CHECK(prefix.path == sent.prefix.path);
  CHECK(read.timestamp_ns == 7);
  CHECK(read.bytes == 1'472);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CHECK(decode_any({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)}) == DropReason::kTooShort);
  }
  bytes.push_back(std::byte{0});
  CHECK(decode_any(bytes) == DropReason::kBadLength);
  bytes.pop_back();
  wire::encode_mtu_reply({prefix_of(PacketType::kMtuReply, 0), 7, 23}, bytes.data());
  CHECK(decode_any(bytes) == DropReason::kBadLength);
}

TEST_CASE("abort__has_a_known_cause_zeros_and_a_payload_with_one_cause_only") {
  using wire::AbortCause;
  for (const AbortCause cause : {AbortCause::kCancelled, AbortCause::kTimedOut, AbortCause::kPathTooSmall}) {
    CHECK(decode_any(abort_bytes({cause, 0})) == DropReason::kNone);
    CHECK(decode_any(abort_bytes({cause, 1})) ==
          (cause == AbortCause::kPathTooSmall ? DropReason::kNone : DropReason::kBadLength));
  }
  CHECK(decode_any(abort_bytes({AbortCause::kNone, 0})) == DropReason::kBadLength);
  CHECK(decode_any(abort_bytes({static_cast<AbortCause>(wire::kAbortCauseCount), 0})) == DropReason::kBadLength);
  for (const std::size_t reserved : {29U, 30U, 31U}) {
    auto bytes = abort_bytes({AbortCause::kCancelled, 0});
    bytes[reserved] = std::byte{1};
    CHECK(decode_any(bytes) == DropReason::kUnknownFlags);
  }
}

TEST_CASE("abort__round_trip_and_exact_length") {
  auto bytes = abort_bytes({wire::AbortCause::kPathTooSmall, 1'328});
  wire::Prefix prefix;
  wire::Abort abort;
  REQUIRE(wire::decode_prefix(bytes, prefix) == DropReason::kNone);
  REQUIRE(wire::decode_abort(bytes, prefix, abort) == DropReason::kNone);
  CHECK(bytes.size() == 36);
  CHECK(abort.transfer == kTransfer);
  CHECK(abort.reason.cause == wire::AbortCause::kPathTooSmall);
  CHECK(abort.reason.path_bytes == 1'328);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CHECK(decode_any({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)}) == DropReason::kTooShort);
  }
  bytes.push_back(std::byte{0});
  CHECK(decode_any(bytes) == DropReason::kBadLength);
}

TEST_CASE("retire__round_trip_and_exact_length") {
  for (const std::uint32_t count : {0U, 1U, 128U}) {
    CAPTURE(count);
    wire::Retire sent;
    sent.prefix = prefix_of(PacketType::kRetire, MLT_RETIRE_FLAG_LAST);
    sent.floor = 0x0004'0007;
    sent.kept_count = count;
    for (std::uint32_t i = 0; i < count; ++i) sent.kept[i] = 0x1122'3344'5566'7788 + i;
    std::vector<std::byte> bytes(wire::kMaxControlBytes);
    bytes.resize(wire::encode_retire(sent, bytes.data()));
    CHECK(bytes.size() == 24 + 8 * count);
    wire::Prefix prefix;
    wire::Retire retire;
    REQUIRE(wire::decode_prefix(bytes, prefix) == DropReason::kNone);
    REQUIRE(wire::decode_retire(bytes, prefix, retire) == DropReason::kNone);
    CHECK(retire.prefix.flags == MLT_RETIRE_FLAG_LAST);
    CHECK(retire.floor == sent.floor);
    REQUIRE(retire.kept_count == count);
    for (std::uint32_t i = 0; i < count; ++i) CHECK(retire.kept[i] == sent.kept[i]);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      CHECK(decode_any({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)}) ==
            (length < 24 ? DropReason::kTooShort : DropReason::kBadLength));
    }
    bytes.push_back(std::byte{0});
    CHECK(decode_any(bytes) == DropReason::kBadLength);
  }
}

TEST_CASE("ack__round_trip") {
  const auto bytes = ack_bytes();
  wire::Prefix prefix;
  wire::Ack ack;
  REQUIRE(wire::decode_prefix(bytes, prefix) == DropReason::kNone);
  REQUIRE(wire::decode_ack(bytes, prefix, ack) == DropReason::kNone);
  CHECK(ack.prefix.flags == MLT_ACK_FLAGS);
  CHECK(ack.prefix.path == 9);
  CHECK(same(ack.block, kBlock));
  CHECK(ack.transfer == kTransfer);
  CHECK(ack.probe_timestamp_ns == 123);
}

TEST_CASE("ack__round_trip_with_every_number_of_further_paths") {
  for (std::uint8_t others = 0; others < MLT_MAX_PATHS; ++others) {
    CAPTURE(int{others});
    wire::Ack sent{prefix_of(PacketType::kAck, 0), kBlock, kTransfer, 5};
    sent.other_count = others;
    for (std::uint8_t i = 0; i < others; ++i) {
      sent.others[i].path = static_cast<std::uint8_t>((10 + i) % MLT_MAX_PATHS);  // 9 is the ACK's own
      sent.others[i].fresh = i % 2 == 0;
      sent.others[i].block = kBlock;
      sent.others[i].block.highest_sequence = 1'000U + i;
    }
    std::vector<std::byte> bytes(wire::kMaxControlBytes);
    bytes.resize(wire::encode_ack(sent, bytes.data()));
    wire::Prefix prefix;
    wire::Ack ack;
    REQUIRE(wire::decode_prefix(bytes, prefix) == DropReason::kNone);
    REQUIRE(wire::decode_ack(bytes, prefix, ack) == DropReason::kNone);
    REQUIRE(ack.other_count == others);
    for (std::uint8_t i = 0; i < others; ++i) {
      CHECK(ack.others[i].path == sent.others[i].path);
      CHECK(ack.others[i].fresh == sent.others[i].fresh);
      CHECK(same(ack.others[i].block, sent.others[i].block));
    }
    const auto shorter = static_cast<std::ptrdiff_t>(others > 0 ? bytes.size() - 1 : bytes.size());
    CHECK(decode_any({bytes.begin(), bytes.begin() + shorter}) ==
          (others > 0 ? DropReason::kBadLength : DropReason::kNone));
    bytes.push_back(std::byte{0});
    CHECK(decode_any(bytes) == DropReason::kBadLength);
  }
}

TEST_CASE("ack__names_each_path_once_and_knows_no_other_flag") {
  wire::Ack ack{prefix_of(PacketType::kAck, 0), kBlock, kTransfer, 5};
  ack.other_count = 2;
  ack.others[0].path = 1;
  ack.others[1].path = 2;
  std::vector<std::byte> good(wire::kMaxControlBytes);
  good.resize(wire::encode_ack(ack, good.data()));
  REQUIRE(decode_any(good) == DropReason::kNone);
  const std::size_t first = good.size() - 2 * wire::kPathBlockBytes;
  const auto with = [&](std::size_t at, std::uint8_t value) {
    auto bytes = good;
    bytes[at] = std::byte{value};
    return decode_any(bytes);
  };
  CHECK(with(first, 2) == DropReason::kBadLength);  // named twice
  CHECK(with(first, 9) == DropReason::kBadLength);  // the ACK's own
  CHECK(with(first, MLT_MAX_PATHS) == DropReason::kBadLength);
  CHECK(with(first + 1, MLT_ACK_FLAG_POSTED) == DropReason::kUnknownFlags);
  ack.other_count = MLT_MAX_PATHS - 1;
  for (std::uint8_t i = 0; i < ack.other_count; ++i) ack.others[i].path = static_cast<std::uint8_t>((10 + i) % 16);
  std::vector<std::byte> most(wire::kMaxControlBytes);
  most.resize(wire::encode_ack(ack, most.data()));
  most.resize(most.size() + wire::kPathBlockBytes, std::byte{1});
  CHECK(decode_any(most) == DropReason::kBadLength);
}

TEST_CASE("probe__round_trip_with_every_number_of_paths") {
  for (std::uint8_t paths = 0; paths <= MLT_MAX_PATHS; ++paths) {
    const auto bytes = probe_bytes(paths);
    wire::Prefix prefix;
    wire::Probe probe;
    REQUIRE(wire::decode_prefix(bytes, prefix) == DropReason::kNone);
    REQUIRE(wire::decode_probe(bytes, prefix, probe) == DropReason::kNone);
    CHECK(probe.prefix.element == wire::ElementType::kFloat64);
    CHECK(probe.prefix.round == 200);
    CHECK(probe.transfer == kTransfer);
    CHECK(probe.total_bytes == 8'000);
    CHECK(probe.critical_segments == 12);
    CHECK(probe.timestamp_ns == 34);
    REQUIRE(probe.path_count == paths);
    for (std::uint8_t i = 0; i < paths; ++i) CHECK(probe.last_sequence[i] == 1'000U + i);
    CHECK(probe.suspended_paths == (0x9246 & ((1U << paths) - 1)));
  }
}

TEST_CASE("bitmap__round_trip_of_empty_odd_and_largest") {
  for (const std::uint32_t count : {0U, 1U, 7U, 8U, 9U, 8'191U, 8'192U}) {
    CAPTURE(count);
    const auto bytes = bitmap_bytes(2 * MLT_BITMAP_CHUNK_SEGMENTS, count, (count + 7) / 8);
    CHECK(bytes.size() <= wire::kMaxControlBytes);
    wire::Prefix prefix;
    wire::BitmapMessage bitmap;
    REQUIRE(wire::decode_prefix(bytes, prefix) == DropReason::kNone);
    REQUIRE(wire::decode_bitmap(bytes, prefix, bitmap) == DropReason::kNone);
    CHECK(same(bitmap.block, kBlock));
    CHECK(bitmap.transfer == kTransfer);
    CHECK(bitmap.probe_timestamp_ns == 9);
    CHECK(bitmap.first_segment == 2 * MLT_BITMAP_CHUNK_SEGMENTS);
    CHECK(bitmap.segment_count == count);
    for (const std::byte b : bitmap.bits) CHECK(b == std::byte{0xA5});
  }
}

TEST_CASE("stop__round_trip") {
  const auto bytes = stop_bytes();
  wire::Prefix prefix;
  wire::Stop stop;
  REQUIRE(wire::decode_prefix(bytes, prefix) == DropReason::kNone);
  REQUIRE(wire::decode_stop(bytes, prefix, stop) == DropReason::kNone);
  CHECK(stop.prefix.flags == MLT_STOP_FLAG_ECHO);
  CHECK(same(stop.block, kBlock));
  CHECK(stop.transfer == kTransfer);
  CHECK(stop.probe_timestamp_ns == 4);
  CHECK(stop.status == wire::StopStatus::kTypeMismatch);
  CHECK(stop.missing_bytes == 1'234'567);
  CHECK(stop.receiver_total_bytes == 0xFFFF'FFFF);
}

TEST_CASE("decode__truncated_or_longer_at_every_length_is_refused") {
  for (const auto& whole : {ack_bytes(), probe_bytes(0), probe_bytes(5), bitmap_bytes(0, 100, 13), stop_bytes()}) {
    for (std::size_t length = 0; length < whole.size() + 20; ++length) {
      CAPTURE(length);
      auto bytes = whole;
      bytes.resize(length);
      const DropReason reason = decode_any(bytes);
      if (length == whole.size()) {
        CHECK(reason == DropReason::kNone);
      } else {
        CHECK((reason == DropReason::kTooShort || reason == DropReason::kBadLength));
      }
    }
  }
}

TEST_CASE("decode__counts_that_disagree_with_the_length_are_refused") {
  CHECK(decode_any(bitmap_bytes(0, 100, 12)) == DropReason::kBadLength);
  CHECK(decode_any(bitmap_bytes(0, 100, 14)) == DropReason::kBadLength);
  CHECK(decode_any(bitmap_bytes(0, MLT_BITMAP_CHUNK_SEGMENTS + 1, 1'025)) == DropReason::kBadLength);
  CHECK(decode_any(bitmap_bytes(64, 100, 13)) == DropReason::kBadLength);  // not the start of a chunk
  CHECK(decode_any(bitmap_bytes(0, 0xFFFF'FFFF, 13)) == DropReason::kBadLength);
  auto probe = probe_bytes(3);
  probe[MLT_PREFIX_BYTES + wire::kTransferIdBytes + 12] = std::byte{17};  // more paths than there can be
  CHECK(decode_any(probe) == DropReason::kBadLength);
  probe[MLT_PREFIX_BYTES + wire::kTransferIdBytes + 12] = std::byte{4};
  CHECK(decode_any(probe) == DropReason::kBadLength);
  auto odd = probe_bytes(1);
  odd[MLT_PREFIX_BYTES + wire::kTransferIdBytes] = std::byte{0x41};  // 8,001 bytes of float64
  CHECK(decode_any(odd) == DropReason::kBadLength);
  auto stop = stop_bytes();
  stop[stop.size() - 12] = std::byte{7};  // a status that does not exist
  CHECK(decode_any(stop) == DropReason::kBadLength);
  stop = stop_bytes();
  stop[stop.size() - 12] = static_cast<std::byte>(wire::StopStatus::kComplete);  // but something is missing
  CHECK(decode_any(stop) == DropReason::kBadLength);
  stop = stop_bytes();
  stop[stop.size() - 1] = stop[stop.size() - 2] = std::byte{0};  // more missing than there was
  CHECK(decode_any(stop) == DropReason::kBadLength);
}

TEST_CASE("decode__reserved_bytes_are_refused") {
  for (std::size_t i = 0; i < 3; ++i) {
    auto stop = stop_bytes();
    stop[stop.size() - 11 + i] = std::byte{1};
    CHECK(decode_any(stop) == DropReason::kUnknownFlags);
  }
}

TEST_CASE("decode__probe_gives_up_only_paths_that_it_names") {
  constexpr std::size_t kReserved = MLT_PREFIX_BYTES + wire::kTransferIdBytes + 13;
  auto probe = probe_bytes(2);
  probe[kReserved] = std::byte{1};
  CHECK(decode_any(probe) == DropReason::kUnknownFlags);
  for (std::uint8_t paths = 0; paths <= MLT_MAX_PATHS; ++paths) {
    for (std::uint8_t path = 0; path < MLT_MAX_PATHS; ++path) {
      CAPTURE(paths);
      CAPTURE(path);
      auto one = probe_bytes(paths);
      one[kReserved + 1] = static_cast<std::byte>((1U << path) & 0xFFU);
      one[kReserved + 2] = static_cast<std::byte>((1U << path) >> 8);
      CHECK(decode_any(one) == (path < paths ? DropReason::kNone : DropReason::kUnknownFlags));
    }
  }
}

TEST_CASE("decode__flags_of_other_types_are_refused") {
  const auto with_flags = [](std::vector<std::byte> bytes, unsigned flags) {
    bytes[1] = static_cast<std::byte>(flags);
    return bytes;
  };
  CHECK(decode_any(with_flags(ack_bytes(), 0x04)) == DropReason::kUnknownFlags);
  CHECK(decode_any(with_flags(probe_bytes(1), 0x08)) == DropReason::kUnknownFlags);
  CHECK(decode_any(with_flags(bitmap_bytes(0, 8, 1), 0x08)) == DropReason::kUnknownFlags);
  CHECK(decode_any(with_flags(stop_bytes(), 0x02)) == DropReason::kUnknownFlags);
}

TEST_CASE("decode__mutations_of_every_byte_and_random_bytes_stay_inside") {
  for (const auto& whole : {ack_bytes(), probe_bytes(2), bitmap_bytes(0, 40, 5), stop_bytes()}) {
    for (std::size_t at = 0; at < whole.size(); ++at) {
      for (unsigned value = 0; value < 256; ++value) {
        auto bytes = whole;
        bytes[at] = static_cast<std::byte>(value);
        decode_any(bytes);
      }
    }
  }
  base::Prng prng(8);
  for (int i = 0; i < 50'000; ++i) {
    std::vector<std::byte> bytes(prng.below(120));
    for (std::byte& b : bytes) b = static_cast<std::byte>(prng.next());
    if (!bytes.empty()) bytes[0] = static_cast<std::byte>((MLT_DATAGRAM_VERSION << 4) | prng.below(10));
    if (bytes.size() > 2) bytes[1] = std::byte{0};
    decode_any(bytes);
  }
}
