#include "io/xdp/xsk_socket.h"

#include <doctest/doctest.h>

#include <memory>

#include "support/veth_pair.h"

using namespace mlt;
using io_test::VethPair;

TEST_CASE("send__copied_frames_are_few_so_that_the_network_is_not_flooded") {
  if (const std::string missing = VethPair::missing(); !missing.empty()) {
    MESSAGE("skipped: ", missing);
    return;
  }
  const VethPair cable;
  std::unique_ptr<io::XskSocket> socket;
  io::OsError error;
  cable.inside(0, [&] {
    io::XskOptions options;
    options.interface = ::if_nametoindex(VethPair::kInterface);
    options.interface_name = VethPair::kInterface;
    options.frame_bytes = 2'048;
    options.receive_frames = 64;
    options.send_frames = 2'048;
    socket = io::XskSocket::open(options, error);
  });
  REQUIRE_MESSAGE(socket != nullptr, error.text);
  REQUIRE(!socket->zero_copy());  // veth has none
  CHECK(socket->has_room(128));
  CHECK(!socket->has_room(129));
}
