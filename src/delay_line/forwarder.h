// Forwards frames between pairs of interfaces, each frame after the delay of its direction.
//
// One packet socket per interface, one thread. A frame's delay starts when the kernel received it, not when the
// forwarder read it, so that a forwarder that runs late adds nothing as long as it is late by less than the delay.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/time.h"
#include "core/timing_wheel.h"
#include "delay_line/frame_queue.h"
#include "delay_line/shared_file.h"
#include "io/os/unique_fd.h"

namespace mlt::delay_line {

class Forwarder {
 public:
  // `records` outlive the forwarder. Check error() before anything else.
  explicit Forwarder(std::span<DirectionRecord> records);

  const std::string& error() const { return error_; }
  // Waits for frames or due ones, 100 ms at most, and handles them.
  void turn();

 private:
  static constexpr std::uint32_t kBatch = 64;

  struct Port {
    std::uint64_t index = 0;
    io::UniqueFd fd;
  };
  struct Direction {
    DirectionRecord* record = nullptr;
    std::size_t from = 0;  // ports
    std::size_t to = 0;
    FrameQueue queue;
  };
  struct Batch;
  struct BatchDeleter {
    void operator()(Batch* batch) const;
  };

  std::size_t port_of(std::uint64_t index);
  void receive(std::uint32_t number);
  void release(std::uint32_t number, base::TimeNs now);
  void count_unread();
  void fail(const std::string& what);

  std::vector<Port> ports_;
  std::vector<Direction> directions_;
  core::TimingWheel wheel_;  // a timer per direction: when its first frame is due
  std::unique_ptr<Batch, BatchDeleter> batch_;
  base::TimeNs counted_ns_ = 0;
  std::string error_;
};

}  // namespace mlt::delay_line
