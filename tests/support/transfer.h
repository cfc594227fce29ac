// One tensor from one simulated host to another, and the check of everything a completion
// promises.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "support/simulation.h"

namespace mlt::test {

// Payload bytes of a full segment, at an MTU of 1,500.
inline constexpr std::uint32_t kSegment = 1'432;

// Bytes between two canaries.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(std::size_t size, std::byte fill = std::byte{0xA5});
  std::span<std::byte> bytes() { return std::span(storage_).subspan(kGuard, storage_.size() - 2 * kGuard); }
  std::span<const std::byte> bytes() const { return std::span(storage_).subspan(kGuard, storage_.size() - 2 * kGuard); }
  bool intact() const;

 private:
  static constexpr std::size_t kGuard = 64;
  std::vector<std::byte> storage_;
};

// `size` bytes that differ from place to place and from seed to seed; never zero, so that a zero-filled gap shows.
std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed);

struct TransferOptions {
  std::uint16_t from = 0;
  std::uint16_t to = 1;
  std::uint64_t tag = 7;
  core::OperationId operation = 1;
  wire::ElementType element = wire::ElementType::kFloat32;
  double loss_bound = 0;
  core::StopPolicy stop = core::StopPolicy::kPatient;
  core::Fill fill = core::Fill::kZero;
  DurationNs deadline_ns = 0;
  DurationNs send_timeout_ns = 0;
  DurationNs receive_timeout_ns = 0;
  std::uint32_t order = 0;
  core::SegmentPriority uniform_priority = core::SegmentPriority::important(0);
  std::vector<core::SegmentPriority> priorities;

  // One of several transfers: the number is its operation and its tag.
  TransferOptions numbered(std::uint64_t number) const {
    TransferOptions options = *this;
    options.operation = options.tag = number;
    return options;
  }
};

// Owns both buffers; outlives the operations.
class Transfer {
 public:
  static constexpr std::byte kOld{0x5A};  // what the receive buffer holds before

  Transfer(Simulation& network, std::size_t bytes, const TransferOptions& options = {});

  core::SendRequest send_request() const;
  core::ReceiveRequest receive_request();
  core::PostStatus post_send();
  core::PostStatus post_receive();
  // Both, the receive first.
  void post();

  const Completed* sent() const;
  const Completed* received() const;
  bool ended() const { return sent() != nullptr && received() != nullptr; }
  bool run(DurationNs limit = 30 * base::kSecond);

  // Bytes, fill, bound, bitmap and canaries of a receive that has ended. "" if all holds, else what does not.
  std::string fault() const;

  const TransferOptions& options() const { return options_; }
  std::vector<std::byte>& data() { return data_; }
  GuardedBuffer& buffer() { return buffer_; }

 private:
  Simulation& network_;
  TransferOptions options_;
  std::vector<std::byte> data_;
  GuardedBuffer buffer_;
};

using Transfers = std::vector<std::unique_ptr<Transfer>>;

// `count` transfers, numbered from `first` on, none of them posted.
Transfers transfers_of(Simulation& network, std::size_t count, std::size_t bytes, const TransferOptions& options = {},
                       std::uint64_t first = 1);

}  // namespace mlt::test
