// One example of each frame of the opening, frame header and proof included, byte for byte:
// tests/golden/control_examples.txt, which appendix B of PROTOCOL.md shows and tests/python/protocol reads back.
// MLT_REWRITE_GOLDEN=1 writes it anew.
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "io/control/control_frame.h"
#include "io/control/proof.h"
#include "io/net/socket_address.h"

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
  hello.version = MLT_PROTOCOL_VERSION;
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

  // The secret and nonces of the examples: bytes 0, 1, 2 ... and two more counts. Rank 2 connects to rank 1.
  const auto count_from = [](unsigned first) {
    io::Nonce bytes;
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(first + i);
    return bytes;
  };
  const io::Nonce secret = count_from(0);
  const io::JobKey key({reinterpret_cast<const char*>(secret.data()), secret.size()}, hello.job_id);
  std::array<std::byte, 2 * io::kOpeningBytes> transcript;
  io::encode_opening({MLT_PROTOCOL_VERSION, count_from(0x40)}, transcript.data());
  io::encode_opening({MLT_PROTOCOL_VERSION, count_from(0x80)}, transcript.data() + io::kOpeningBytes);
  const auto proved = [&](io::ProofRole role, io::FrameType type, std::span<const std::byte> shown,
                          std::span<const std::byte> covered) {
    std::vector<std::byte> payload(shown.begin(), shown.end());
    const io::Proof proof = key.prove(role, static_cast<std::uint8_t>(type), transcript, covered);
    payload.insert(payload.end(), proof.begin(), proof.end());
    return payload;
  };
  const auto connecting = std::span(transcript).first(io::kOpeningBytes);
  const auto listening = std::span(transcript).last(io::kOpeningBytes);
  const auto hello_payload = std::span(hello_bytes).first(hello_size);
  return hex("OPEN", io::FrameType::kOpen, connecting) +
         hex("ANSWER", io::FrameType::kOpen, proved(io::ProofRole::kListening, io::FrameType::kOpen, listening, {})) +
         hex("HELLO", io::FrameType::kHello,
             proved(io::ProofRole::kConnecting, io::FrameType::kHello, hello_payload, hello_payload)) +
         hex("REFUSE", io::FrameType::kRefuse,
             proved(io::ProofRole::kListening, io::FrameType::kRefuse, refusal_bytes, refusal_bytes));
}

}  // namespace

TEST_CASE("control_examples__are_the_bytes_that_the_document_shows") {
  const std::string file = MLT_GOLDEN_FOLDER "/control_examples.txt";
  if (std::getenv("MLT_REWRITE_GOLDEN") != nullptr) std::ofstream(file) << examples();
  std::ifstream in(file);
  const std::string golden{std::istreambuf_iterator<char>(in), {}};
  CHECK(examples() == golden);
}
