// Control messages (wire/control): what decodes, encodes back to the same bytes, within kMaxControlBytes, and one
// damaged bit anywhere in the message changes the cookie. The type is set in every other input, so that the fuzzer need
// not guess the version.
#include "wire/control.h"

#include <algorithm>

#include "input.h"

namespace {

using namespace mlt;

// The size of the message decoded and encoded again into `out`; 0 if it was refused.
std::size_t reencode(std::span<const std::byte> datagram, const wire::Prefix& prefix, std::byte* out) {
  constexpr wire::DropReason kNone = wire::DropReason::kNone;
  switch (prefix.type) {
    case wire::PacketType::kData:
    case wire::PacketType::kParity:
      return 0;
    case wire::PacketType::kAck: {
      wire::Ack ack;
      return wire::decode_ack(datagram, prefix, ack) == kNone ? wire::encode_ack(ack, out) : 0;
    }
    case wire::PacketType::kProbe: {
      wire::Probe probe;
      if (wire::decode_probe(datagram, prefix, probe) != kNone) return 0;
      FUZZ_CHECK(probe.path_count <= MLT_MAX_PATHS);
      FUZZ_CHECK(probe.suspended_paths >> probe.path_count == 0);
      return wire::encode_probe(probe, out);
    }
    case wire::PacketType::kBitmap: {
      wire::BitmapMessage bitmap;
      if (wire::decode_bitmap(datagram, prefix, bitmap) != kNone) return 0;
      FUZZ_CHECK(bitmap.bits.size() * 8 >= bitmap.segment_count);
      FUZZ_CHECK(bitmap.segment_count <= MLT_BITMAP_CHUNK_SEGMENTS);
      return wire::encode_bitmap(bitmap, out);
    }
    case wire::PacketType::kStop: {
      wire::Stop stop;
      if (wire::decode_stop(datagram, prefix, stop) != kNone) return 0;
      FUZZ_CHECK(static_cast<std::uint8_t>(stop.status) < wire::kStopStatusCount);
      return wire::encode_stop(stop, out);
    }
    case wire::PacketType::kAbort: {
      wire::Abort abort;
      return wire::decode_abort(datagram, prefix, abort) == kNone ? wire::encode_abort(abort, out) : 0;
    }
    case wire::PacketType::kMtuProbe: {
      wire::MtuProbe probe;
      if (wire::decode_mtu_probe(datagram, prefix, probe) != kNone) return 0;
      FUZZ_CHECK(wire::encode_mtu_probe(probe, out) == wire::kMtuProbeBytes);
      return probe.bytes;  // `out` is zero behind these
    }
    case wire::PacketType::kMtuReply: {
      wire::MtuReply reply;
      return wire::decode_mtu_reply(datagram, prefix, reply) == kNone ? wire::encode_mtu_reply(reply, out) : 0;
    }
    case wire::PacketType::kRetire: {
      wire::Retire retire;
      return wire::decode_retire(datagram, prefix, retire) == kNone ? wire::encode_retire(retire, out) : 0;
    }
  }
  return 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::uint8_t how = input.u8();
  const std::uint16_t damage = input.u16();
  std::vector<std::byte> datagram = input.rest();
  if ((how & 1U) != 0 && !datagram.empty()) {
    const std::uint32_t type = MLT_TYPE_ACK + (how >> 1) % (MLT_TYPE_RETIRE - MLT_TYPE_ACK + 1U);
    datagram[MLT_OFFSET_VERSION_TYPE] = static_cast<std::byte>((MLT_DATAGRAM_VERSION << 4) | type);
  }
  wire::Prefix prefix;
  if (wire::decode_prefix(datagram, prefix) != wire::DropReason::kNone) return 0;
  std::vector<std::byte> out(std::max(wire::kMaxControlBytes, datagram.size()));
  const std::size_t encoded = reencode(datagram, prefix, out.data());
  if (encoded == 0) return 0;
  FUZZ_CHECK(encoded == datagram.size());
  FUZZ_CHECK(std::equal(datagram.begin(), datagram.end(), out.begin()));

  const std::size_t bit = damage % (8 * datagram.size());
  datagram[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  wire::Prefix damaged;
  if (wire::decode_prefix(datagram, damaged) == wire::DropReason::kNone && !wire::has_payload(damaged.type)) {
    FUZZ_CHECK(damaged.cookie != prefix.cookie);
  }
  return 0;
}
