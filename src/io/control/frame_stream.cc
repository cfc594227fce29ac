#include "io/control/frame_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace mlt::io {

namespace {
constexpr std::size_t kReadChunkBytes = 16'384;
constexpr std::size_t kMinReadBytes = 1'024;
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
  if (ending_) ::shutdown(fd_.get(), SHUT_WR);  // fails only if the connection has ended, which the next read reports
  return Status::kOk;
}

FrameStream::Status FrameStream::fill() {
  if (in_begin_ > 0) {
    std::memmove(in_.data(), in_.data() + in_begin_, in_end_ - in_begin_);
    in_end_ -= in_begin_;
    in_begin_ = 0;
  }
  // Space for the rest of a frame whose length is known, else for a chunk. next() has rejected longer frames. Until a
  // client is a peer, it gets the space of its largest frame, so that many clients cost little.
  std::size_t room = std::clamp(kFrameHeaderBytes + max_payload_, kMinReadBytes, kReadChunkBytes);
  if (in_end_ >= kFrameHeaderBytes) {
    FrameHeader header;
    decode_frame_header(in_.data(), header);
    room = std::max(room, kFrameHeaderBytes + std::min<std::size_t>(header.payload_bytes, max_payload_));
  }
  if (in_.size() < in_end_ + room) in_.resize(in_end_ + room);
  for (;;) {
    const ssize_t got = ::recv(fd_.get(), in_.data() + in_end_, in_.size() - in_end_, 0);
    if (got > 0) {
      in_end_ += static_cast<std::size_t>(got);
      return Status::kOk;
    }
    if (got == 0) return Status::kEnd;
    if (errno == EAGAIN) return Status::kBlocked;
    if (errno == EINTR) continue;
    error_ = errno;
    return Status::kFailed;
  }
}

FrameStream::Next FrameStream::next(FrameHeader& header, std::span<const std::byte>& payload) {
  const std::size_t available = in_end_ - in_begin_;
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
