// One TCP connection as a stream of frames in both directions, with limits on a frame's size and on the bytes queued
// for sending. Non-blocking; never drops data silently. Owned by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "io/control/control_frame.h"
#include "io/os/unique_fd.h"

namespace mlt::io {

class FrameStream {
 public:
  enum class Status : std::uint8_t {
    kOk,
    kBlocked,  // the socket has no more data, or accepts no more, for now
    kEnd,      // the remote end closed
    kFailed,   // see error()
  };
  enum class Next : std::uint8_t { kFrame, kIncomplete, kMalformed };

  FrameStream(UniqueFd fd, std::size_t outgoing_limit_bytes)
      : fd_(std::move(fd)), outgoing_limit_bytes_(outgoing_limit_bytes) {}

  int fd() const { return fd_.get(); }
  int error() const { return error_; }

  // Larger frames are malformed. Small until the remote end is known, so that unrelated clients cannot make this
  // process allocate.
  void set_max_payload(std::size_t bytes) { max_payload_ = bytes; }

  // False, and nothing queued, if that would exceed the outgoing limit.
  bool queue(std::uint8_t type, std::span<const std::byte> payload);
  Status flush();
  std::size_t pending_bytes() const { return out_.size() - out_begin_; }

  // Memory of both buffers.
  std::size_t buffer_bytes() const { return in_.capacity() + out_.capacity(); }

  // Reads what the socket has, up to a chunk; invalidates earlier payloads.
  Status fill();
  // Whether the last fill() that returned kOk stopped at the chunk's end. The end of the stream is not counted.
  bool may_have_more() const { return may_have_more_; }
  // Of what was read and consumed; invalidates earlier payloads.
  void release_consumed();
  // The next whole frame; its payload is valid until fill().
  Next next(FrameHeader& header, std::span<const std::byte>& payload);

  // Discards what was read but not consumed; returns the number of bytes.
  std::size_t discard() {
    const std::size_t bytes = in_.size() - in_begin_;
    in_.clear();
    in_begin_ = 0;
    return bytes;
  }

  // Only this process's descriptor: the remote end notices once no process has one.
  void close() { fd_.reset(); }

  // Nothing more will be queued: the remote end reads what is pending and then end of file.
  void end_output();

 private:
  UniqueFd fd_;
  std::size_t outgoing_limit_bytes_;
  std::size_t max_payload_ = 0;
  int error_ = 0;
  bool ending_ = false;
  bool may_have_more_ = false;
  std::vector<std::byte> out_;
  std::size_t out_begin_ = 0;
  std::vector<std::byte> in_;
  std::size_t in_begin_ = 0;
};

}  // namespace mlt::io
