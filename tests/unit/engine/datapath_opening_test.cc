// The payload of a packet that a rank offers, by the MTU of its interface and its options.
#include "engine/datapath_opening.h"

#include <doctest/doctest.h>

#include <string>

namespace {

using namespace mlt;

// An interface of `mtu` bytes whose addresses are of IPv4 or IPv6.
io::Capabilities with_mtu(std::uint32_t mtu, std::uint32_t ip_header_bytes = 20) {
  io::Capabilities capabilities;
  capabilities.max_datagram_bytes = mtu - ip_header_bytes - 8;
  return capabilities;
}

Options asking(std::uint32_t segment_bytes) {
  Options options;
  options.segment_bytes = segment_bytes;
  return options;
}

std::string rejection(std::uint32_t segment_bytes, std::uint32_t mtu) {
  try {
    engine::choose_segment_bytes(asking(segment_bytes), with_mtu(mtu));
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kConfig);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("choose_segment_bytes__fills_the_mtu_up_to_8960") {
  const Options options;
  CHECK(engine::choose_segment_bytes(options, with_mtu(1'500)) == 1'432);
  CHECK(engine::choose_segment_bytes(options, with_mtu(1'500, 40)) == 1'408);
  CHECK(engine::choose_segment_bytes(options, with_mtu(1'280, 40)) == 1'192);
  CHECK(engine::choose_segment_bytes(options, with_mtu(9'000)) == 8'928);
  CHECK(engine::choose_segment_bytes(options, with_mtu(9'000, 40)) == 8'912);
  CHECK(engine::choose_segment_bytes(options, with_mtu(9'216)) == 8'960);
  CHECK(engine::choose_segment_bytes(options, with_mtu(65'536)) == 8'960);  // loopback
}

TEST_CASE("choose_segment_bytes__an_option_wins_if_it_fits") {
  CHECK(engine::choose_segment_bytes(asking(1'432), with_mtu(65'536)) == 1'432);
  CHECK(engine::choose_segment_bytes(asking(8), with_mtu(1'500)) == 8);
  CHECK(engine::choose_segment_bytes(asking(8'960), with_mtu(65'536)) == 8'960);
  CHECK(rejection(1'440, 1'500).find("at most 1432 on this interface") != std::string::npos);
  CHECK(rejection(8'968, 65'536).find("at most 8960 on this interface") != std::string::npos);
  CHECK(rejection(100, 1'500).find("multiple of 8") != std::string::npos);
}
