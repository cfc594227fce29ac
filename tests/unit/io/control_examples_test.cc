// One example of a hello and of a refusal, frame header included, byte for byte: tests/golden/control_examples.txt,
// which appendix B of PROTOCOL.md shows and tests/python/protocol reads back. MLT_REWRITE_GOLDEN=1 writes it anew.
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "io/control_frame.h"
#include "io/socket_address.h"

using namespace mlt;

namespace {

std::string hex(const char* name, io::FrameType type, std::span<const std::byte> payload) {
  std::vector<std::byte> frame(io::kFrameHeaderBytes);
  io::encode_frame_header({static_cast<std::uint32_t>(payload.size()), static_cast<std::uint8_t>(type)}, frame.data());
  frame.insert(frame.end(), payload.begin(), payload.end());
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = name;
  for (std::size_t i = 0; i < frame.size(); ++i) {
    text += i % 16 == 0 ? '\n' : ' ';
    text += kDigits[std::to_integer<unsigned>(frame[i]) >> 4];
    text += kDigits[std::to_integer<unsigned>(frame[i]) & 15U];
  }
  return text + "\n\n";
}

std::string examples() {
  io::Hello hello;
  hello.version = 3;
  hello.rank = 2;
  hello.expected_rank = 1;
  hello.world_size = 4;
  hello.job_id = 0x0102'0304'0506'0708;
  hello.incarnation = 0x1111'2222'3333'4444;
  hello.cookie = 0x1122'3344'5566'0001;
  hello.path_count = 2;
  hello.paths[0].port = 5'001;
  hello.paths[1] = {io::SocketAddress::from_host("192.0.2.7", 0)->ip_bytes(), 5'003};
  hello.control_port = 5'002;
  hello.segment_bytes = 1'432;
  hello.window_bytes = 2'796'202;
  hello.early_segments = 682;
  hello.early_transfers = 85;
  std::array<std::byte, io::kHelloMaxBytes> hello_bytes;
  const std::size_t hello_size = io::encode_hello(hello, hello_bytes.data());

  // Rank 1 has world size 3, rank 2 said 4.
  std::array<std::byte, io::kRefusalBytes> refusal_bytes;
  io::encode_refusal({io::RefusalReason::kWorldSize, 1, 3, 4}, refusal_bytes.data());
  return hex("HELLO", io::FrameType::kHello, std::span(hello_bytes).first(hello_size)) +
         hex("REFUSE", io::FrameType::kRefuse, refusal_bytes);
}

}  // namespace

TEST_CASE("control_examples__are_the_bytes_that_the_document_shows") {
  const std::string file = std::string(MLT_GOLDEN_FOLDER) + "/control_examples.txt";
  if (std::getenv("MLT_REWRITE_GOLDEN") != nullptr) std::ofstream(file) << examples();
  std::ifstream in(file);
  const std::string golden{std::istreambuf_iterator<char>(in), {}};
  CHECK(examples() == golden);
}
