#include "support/transfer.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "base/prng.h"
#include "core/loss_bound.h"

namespace mlt::test {

namespace {

constexpr std::byte kCanary{0xC7};

}  // namespace

GuardedBuffer::GuardedBuffer(std::size_t size, std::byte fill) : storage_(size + 2 * kGuard, kCanary) {
  std::fill(bytes().begin(), bytes().end(), fill);
}

bool GuardedBuffer::intact() const {
  const auto is_canary = [](std::byte b) { return b == kCanary; };
  return std::all_of(storage_.begin(), storage_.begin() + kGuard, is_canary) &&
         std::all_of(storage_.end() - kGuard, storage_.end(), is_canary);
}

std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed) {
  base::Prng prng(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(1 + prng.below(255));
  return bytes;
}

Transfer::Transfer(Simulation& network, std::size_t bytes, const TransferOptions& options)
    : network_(network),
      options_(options),
      data_(pattern(bytes, network.seed() * 1'000'003 + options.tag * 101 + options.operation)),
      buffer_(bytes, kOld) {}

core::SendRequest Transfer::send_request() const {
  core::SendRequest request;
  request.operation = options_.operation;
  request.peer = options_.to;
  request.tag = options_.tag;
  request.data = data_;
  request.element = options_.element;
  request.order = options_.order;
  request.priorities = options_.priorities;
  request.uniform_priority = options_.uniform_priority;
  request.timeout_ns = options_.send_timeout_ns;
  return request;
}

core::ReceiveRequest Transfer::receive_request() {
  core::ReceiveRequest request;
  request.operation = options_.operation;
  request.peer = options_.from;
  request.tag = options_.tag;
  request.data = buffer_.bytes();
  request.element = options_.element;
  request.loss_bound = options_.loss_bound;
  request.stop = options_.stop;
  request.fill = options_.fill;
  request.deadline_ns = options_.deadline_ns;
  request.timeout_ns = options_.receive_timeout_ns;
  return request;
}

core::PostStatus Transfer::post_send() { return network_.send(options_.from, send_request()); }
core::PostStatus Transfer::post_receive() { return network_.receive(options_.to, receive_request()); }

void Transfer::post() {
  REQUIRE(post_receive() == core::PostStatus::kPosted);
  REQUIRE(post_send() == core::PostStatus::kPosted);
}

const Completed* Transfer::sent() const {
  return network_.find(options_.from, options_.operation, core::CompletionKind::kSend);
}
const Completed* Transfer::received() const {
  return network_.find(options_.to, options_.operation, core::CompletionKind::kReceive);
}

bool Transfer::run(DurationNs limit) {
  return network_.run_until([&] { return ended(); }, limit);
}

std::string Transfer::fault() const {
  const Completed* done = received();
  if (done == nullptr) return "the receive has not ended";
  if (!buffer_.intact()) return "written outside the buffer";
  if (done->tag != options_.tag || done->peer != options_.from) return "names another transfer";
  if (done->total_bytes != data_.size()) return "total_bytes is wrong";
  const bool failed = core::is_failure(done->status);
  std::uint64_t missing = 0;
  for (std::uint32_t segment = 0; segment < done->segment_count; ++segment) {
    const std::size_t begin = std::size_t{segment} * done->segment_bytes;
    const std::size_t end = std::min(data_.size(), begin + done->segment_bytes);
    const std::span<const std::byte> got = buffer_.bytes().subspan(begin, end - begin);
    const std::span<const std::byte> expected_bytes = std::span(data_).subspan(begin, end - begin);
    const std::string where = " in segment " + std::to_string(segment);
    if (done->arrived(segment)) {
      if (!std::ranges::equal(got, expected_bytes)) return "wrong bytes" + where;
      continue;
    }
    missing += end - begin;
    const std::byte expected = !failed && options_.fill == core::Fill::kZero ? std::byte{0} : kOld;
    if (!std::ranges::all_of(got, [&](std::byte b) { return b == expected; })) {
      return "wrong fill" + where;
    }
  }
  if (missing != done->missing_bytes) return "missing_bytes does not agree with the bitmap";
  const std::uint32_t size = wire::element_bytes(options_.element);
  const std::uint64_t allowed = core::allowed_missing(data_.size() / size, options_.loss_bound) * size;
  if (done->allowed_missing_bytes != allowed) return "allowed_missing_bytes is not what the bound allows";
  if (done->status == core::CompletionStatus::kComplete && missing > 0) return "complete, but something is missing";
  if (done->status == core::CompletionStatus::kWithinBound && missing > allowed) return "beyond the bound";
  if (done->status == core::CompletionStatus::kWithinBound && missing == 0)
    return "within bound, but nothing is missing";
  return "";
}

Transfers transfers_of(Simulation& network, std::size_t count, std::size_t bytes, const TransferOptions& options,
                       std::uint64_t first) {
  Transfers transfers;
  for (std::size_t i = 0; i < count; ++i) {
    transfers.push_back(std::make_unique<Transfer>(network, bytes, options.numbered(first + i)));
  }
  return transfers;
}

}  // namespace mlt::test
