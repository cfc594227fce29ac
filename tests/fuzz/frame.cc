// The TCP side, where bytes of unrelated clients arrive first: opening, hello and refusal decode and encode back
// (reserved bytes, which readers ignore, become zero), and a FrameStream cuts a byte stream into the same frames
// however it comes in pieces.
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "input.h"
#include "io/control/frame_stream.h"

namespace {

using namespace mlt;

void hello(fuzz::Input& input) {
  const std::uint16_t own_version = input.u8();
  std::vector<std::byte> payload = input.rest();
  io::Hello read;
  if (io::decode_hello(payload, own_version, read) != io::HelloError::kNone) return;
  FUZZ_CHECK(read.path_count >= 1 && read.path_count <= MLT_MAX_PATHS);
  std::vector<std::byte> again(io::kHelloMaxBytes);
  again.resize(io::encode_hello(read, again.data()));
  FUZZ_CHECK(again == payload);
}

void opening(fuzz::Input& input) {
  const std::uint16_t own_version = input.u8();
  const std::size_t proof_bytes = input.flag() ? io::kProofBytes : 0;
  const std::vector<std::byte> payload = input.rest();
  io::Opening read;
  const io::OpeningError error = io::decode_opening(payload, proof_bytes, own_version, read);
  if (error == io::OpeningError::kOtherVersion) FUZZ_CHECK(read.version != own_version);
  if (error != io::OpeningError::kNone) return;
  std::array<std::byte, io::kOpeningBytes> again;
  io::encode_opening(read, again.data());
  FUZZ_CHECK(payload.size() == again.size() + proof_bytes);
  FUZZ_CHECK(std::equal(again.begin(), again.end(), payload.begin()));
}

void refusal(fuzz::Input& input) {
  std::vector<std::byte> payload = input.rest();
  io::Refusal read;
  if (!io::decode_refusal(payload, read)) return;
  FUZZ_CHECK(payload.size() == io::kRefusalBytes);
  std::vector<std::byte> again(io::kRefusalBytes);
  io::encode_refusal(read, again.data());
  payload[1] = std::byte{0};  // reserved
  FUZZ_CHECK(again == payload);
  for (const bool for_refuser : {false, true}) {
    const std::string text = io::describe_refusal(read, 3, for_refuser, "192.0.2.1:1");
    FUZZ_CHECK(!text.empty() && text.find("unknown") == std::string::npos);
  }
}

struct Frame {
  std::uint8_t type = 0;
  std::vector<std::byte> payload;
  bool operator==(const Frame&) const = default;
};

// What the stream must yield, read straight off the bytes; `malformed` if it has to end there.
std::vector<Frame> straight(std::span<const std::byte> bytes, std::size_t max_payload, bool& malformed) {
  std::vector<Frame> frames;
  malformed = false;
  while (bytes.size() >= io::kFrameHeaderBytes) {
    io::FrameHeader header;
    if (!io::decode_frame_header(bytes.data(), header) || header.payload_bytes > max_payload) {
      malformed = true;
      break;
    }
    if (bytes.size() - io::kFrameHeaderBytes < header.payload_bytes) break;
    const auto payload = bytes.subspan(io::kFrameHeaderBytes, header.payload_bytes);
    frames.push_back({header.type, {payload.begin(), payload.end()}});
    bytes = bytes.subspan(io::kFrameHeaderBytes + header.payload_bytes);
  }
  return frames;
}

// Everything that the stream has now; true if it found a malformed frame.
bool drain(io::FrameStream& stream, std::size_t max_payload, std::vector<Frame>& frames) {
  for (;;) {
    io::FrameHeader header;
    std::span<const std::byte> payload;
    const io::FrameStream::Next next = stream.next(header, payload);
    if (next == io::FrameStream::Next::kMalformed) return true;
    if (next == io::FrameStream::Next::kIncomplete) return false;
    FUZZ_CHECK(payload.size() <= max_payload);
    frames.push_back({header.type, {payload.begin(), payload.end()}});
  }
}

// The bytes of an input are pieces: a length, then that many bytes of the stream. Lengths of headers are cut down to
// what an input can hold, in half of the inputs, so that whole frames occur.
void stream(fuzz::Input& input) {
  const std::size_t max_payload = input.u8() * 4U;
  const bool plausible = input.flag();
  std::vector<std::vector<std::byte>> pieces;
  std::vector<std::byte> all;
  while (!input.empty() && pieces.size() < 64) {
    const std::size_t length = 1U + input.u8();
    std::vector<std::byte> piece = input.take(length);
    if (piece.empty()) break;
    if (plausible && piece.size() >= 4) piece[1] = piece[2] = piece[3] = std::byte{0};
    all.insert(all.end(), piece.begin(), piece.end());
    pieces.push_back(std::move(piece));
  }
  bool expect_malformed = false;
  const std::vector<Frame> expected = straight(all, max_payload, expect_malformed);

  std::array<int, 2> ends{};
  FUZZ_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0);
  io::UniqueFd writer(ends[0]);
  io::FrameStream reader(io::UniqueFd(ends[1]), 4'096);
  reader.set_max_payload(max_payload);
  std::vector<Frame> got;
  bool malformed = false;
  for (const std::vector<std::byte>& piece : pieces) {
    FUZZ_CHECK(::send(writer.get(), piece.data(), piece.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(piece.size()));
    FUZZ_CHECK(reader.fill() == io::FrameStream::Status::kOk);
    malformed = drain(reader, max_payload, got);
    if (malformed) break;
  }
  FUZZ_CHECK(malformed == expect_malformed);
  FUZZ_CHECK(got == expected);

  // The other way: frames queued come out of another stream as they went in, or are refused at the limit.
  std::size_t queued = 0;
  for (const Frame& frame : expected) {
    const bool fits = reader.pending_bytes() + io::kFrameHeaderBytes + frame.payload.size() <= 4'096;
    FUZZ_CHECK(reader.queue(frame.type, frame.payload) == fits);
    if (!fits) break;
    ++queued;
  }
  FUZZ_CHECK(reader.flush() == io::FrameStream::Status::kOk);
  FUZZ_CHECK(reader.pending_bytes() == 0);
  io::FrameStream other(std::move(writer), 4'096);
  other.set_max_payload(max_payload);
  std::vector<Frame> echoed;
  while (queued > 0 && echoed.size() < queued) {
    FUZZ_CHECK(other.fill() == io::FrameStream::Status::kOk);
    FUZZ_CHECK(!drain(other, max_payload, echoed));
  }
  FUZZ_CHECK(std::equal(echoed.begin(), echoed.end(), expected.begin(), expected.begin() + static_cast<long>(queued)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  switch (input.below(5)) {
    case 0:
      hello(input);
      break;
    case 1:
      refusal(input);
      break;
    case 4:
      opening(input);
      break;
    default:
      stream(input);
  }
  return 0;
}
