#include "io/control/frame_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace mlt::io {

namespace {
constexpr std::size_t kReadChunkBytes = 16'384;
constexpr std::size_t kMinReadBytes = 1'024;
// Larger buffers are freed once they are empty: a heartbeat fits, a hello does not.
constexpr std::size_t kKeptBytes = 64;

// Assigning {} would keep the memory: it is an empty list of elements.
void free_buffer(std::vector<std::byte>& buffer) { std::vector<std::byte>().swap(buffer); }
}  // namespace

bool FrameStream::queue(std::uint8_t type, std::span<const std::byte> payload) {
  const std::size_t frame = kFrameHeaderBytes + payload.size();
  // PROTOCOL 3.7.4: An endpoint MUST treat a peer as down when more than 4 MiB of frames wait for it: that peer does
  //     not read.
  if (ending_ || pending_bytes() + frame > outgoing_limit_bytes_) return false;
  if (out_begin_ == out_.size()) {
    out_.clear();
    out_begin_ = 0;
  } else if (out_.size() + frame > outgoing_limit_bytes_) {
    out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(out_begin_));
    out_begin_ = 0;
  }
  const std::size_t at = out_.size();
  out_.resize(at + frame);
  encode_frame_header({static_cast<std::uint32_t>(payload.size()), type}, out_.data() + at);
  if (!payload.empty()) std::memcpy(out_.data() + at + kFrameHeaderBytes, payload.data(), payload.size());
  return true;
}

FrameStream::Status FrameStream::flush() {
  while (pending_bytes() > 0) {
    const ssize_t sent = ::send(fd_.get(), out_.data() + out_begin_, pending_bytes(), MSG_NOSIGNAL);
    if (sent >= 0) {
      out_begin_ += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN) {
      return Status::kBlocked;
    } else if (errno != EINTR) {
      error_ = errno;
      return Status::kFailed;
    }
  }
  if (out_.capacity() > kKeptBytes) {
    free_buffer(out_);
    out_begin_ = 0;
  }
  if (ending_) ::shutdown(fd_.get(), SHUT_WR);  // fails only if the connection has ended, which the next read reports
  return Status::kOk;
}

FrameStream::Status FrameStream::fill() {
  release_consumed();
  // Read here first, so that a connection has memory for what it has received, not for what it might: an idle job has
  // thousands of connections. Until a client is a peer, its largest frame is the limit.
  std::array<std::byte, kReadChunkBytes> chunk;
  const std::size_t limit = std::clamp(kFrameHeaderBytes + max_payload_, kMinReadBytes, chunk.size());
  for (;;) {
    const ssize_t got = ::recv(fd_.get(), chunk.data(), limit, 0);
    if (got > 0) {
      in_.insert(in_.end(), chunk.begin(), chunk.begin() + got);
      may_have_more_ = static_cast<std::size_t>(got) == limit;
      return Status::kOk;
    }
    if (got == 0) return Status::kEnd;
    if (errno == EAGAIN) return Status::kBlocked;
    if (errno == EINTR) continue;
    error_ = errno;
    return Status::kFailed;
  }
}

void FrameStream::release_consumed() {
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(in_begin_));
  in_begin_ = 0;
  if (in_.empty() && in_.capacity() > kKeptBytes) free_buffer(in_);
}

FrameStream::Next FrameStream::next(FrameHeader& header, std::span<const std::byte>& payload) {
  const std::size_t available = in_.size() - in_begin_;
  if (available < kFrameHeaderBytes) return Next::kIncomplete;
  const std::byte* at = in_.data() + in_begin_;
  // PROTOCOL 3.1.4: A receiver MUST treat a frame as malformed if its payload is longer than 512 bytes before the
  //     connection is up, or 1 MiB after. It MUST NOT allocate memory for such a frame.
  if (!decode_frame_header(at, header) || header.payload_bytes > max_payload_) return Next::kMalformed;
  if (available - kFrameHeaderBytes < header.payload_bytes) return Next::kIncomplete;
  payload = {at + kFrameHeaderBytes, header.payload_bytes};
  in_begin_ += kFrameHeaderBytes + header.payload_bytes;
  return Next::kFrame;
}

void FrameStream::end_output() {
  ending_ = true;
  flush();
}

}  // namespace mlt::io
