// Receives that are posted for up to a size, over every datapath that a job of one host can use.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "mlt.h"
#include "unit/engine/engine_job.h"

namespace {

using namespace mlt;
using engine_test::Job;
using engine_test::kSecond;

constexpr std::byte kOld{0x5A};

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 31 + (i >> 8)) | 1U);
  return bytes;
}

SendOptions send_of(std::span<const std::byte> data, std::uint64_t tag) {
  SendOptions options;
  options.to = 1;
  options.tag = tag;
  options.data = data;
  options.element = Element::kFloat32;
  return options;
}

ReceiveOptions up_to(std::span<std::byte> data, std::uint64_t tag) {
  ReceiveOptions options;
  options.from = 0;
  options.tag = tag;
  options.data = data;
  options.element = Element::kFloat32;
  options.up_to = true;
  return options;
}

// What arrived fills the front of the buffer, except for the ranges that are missing, and nothing behind it.
void check_buffer(std::span<const std::byte> buffer, std::span<const std::byte> sent, const Completion& done) {
  std::vector<std::byte> expected(sent.begin(), sent.end());
  std::uint64_t missing = 0;
  for (const Range& range : done.missing) {
    REQUIRE(range.offset_bytes + range.length_bytes <= sent.size());
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(range.offset_bytes), range.length_bytes, std::byte{0});
    missing += range.length_bytes;
  }
  CHECK(missing == done.missing_bytes);
  CHECK(std::ranges::equal(buffer.first(sent.size()), expected));
  CHECK(std::ranges::all_of(buffer.subspan(sent.size()), [](std::byte b) { return b == kOld; }));
}

}  // namespace

TEST_CASE("up_to__takes_every_size_that_fits_and_tells_it") {
  constexpr std::size_t kMaxBytes = 3'000'000;
  for (const char* datapath : {"udp", "auto"}) {
    for (const double drop : {0.0, 0.05}) {
      CAPTURE(datapath);
      CAPTURE(drop);
      Options options;
      options.datapath = datapath;
      options.faults.drop = options.faults.reorder = drop;
      Job job(2, options);
      std::uint64_t tag = 0;
      for (const std::size_t size : {std::size_t{0}, std::size_t{4}, std::size_t{40'000}, kMaxBytes - 4, kMaxBytes}) {
        for (const bool early : {false, true}) {
          CAPTURE(size);
          CAPTURE(early);
          const std::vector<std::byte> data = pattern(size);
          std::vector<std::byte> got(kMaxBytes, kOld);
          OperationId sent = 0, received = 0;
          if (early) sent = job[0].post_send(send_of(data, tag));
          received = job[1].post_recv(up_to(got, tag));
          if (!early) sent = job[0].post_send(send_of(data, tag));
          const Completion done = job.finish(1, received);
          CHECK(done.status == Status::kComplete);
          CHECK(done.total_bytes == size);
          CHECK(job.finish(0, sent).status == Status::kComplete);
          check_buffer(got, data, done);
          ++tag;
        }
      }
    }
  }
}

TEST_CASE("up_to__a_longer_tensor_fails_at_both_ranks_at_once_and_the_tag_goes_on") {
  Job job(2);
  const std::vector<std::byte> data = pattern(8'000);
  std::vector<std::byte> small(4'000, kOld), large(16'000, kOld);
  const OperationId short_receive = job[1].post_recv(up_to(small, 5));
  const OperationId long_send = job[0].post_send(send_of(data, 5));
  const Completion received = job.finish(1, short_receive);
  CHECK(received.status == Status::kSizeMismatch);
  CHECK(received.error.find("rank 0 sends 8000 bytes") != std::string::npos);
  CHECK(received.error.find("receive of tag 5 (up to 4000 bytes") != std::string::npos);
  const Completion sent = job.finish(0, long_send);
  CHECK(sent.status == Status::kSizeMismatch);
  CHECK(sent.error.find("rank 1 receives 4000 bytes") != std::string::npos);
  CHECK(sent.error.find("send of tag 5 (8000 bytes") != std::string::npos);
  CHECK(std::ranges::all_of(small, [](std::byte b) { return b == kOld; }));

  const OperationId next = job[1].post_recv(up_to(large, 5));
  const OperationId again = job[0].post_send(send_of(data, 5));
  const Completion done = job.finish(1, next);
  CHECK(done.status == Status::kComplete);
  CHECK(job.finish(0, again).status == Status::kComplete);
  check_buffer(large, data, done);
}

// An eager receive ends as soon as half of what was sent has arrived: half of the maximum would be all of it.
TEST_CASE("up_to__bound_and_missing_ranges_are_of_what_was_sent") {
  Job job(2);
  const std::vector<std::byte> data = pattern(2'000'000);
  std::vector<std::byte> got(4'000'000, kOld);
  ReceiveOptions receive = up_to(got, 1);
  receive.loss_bound = 0.5;
  receive.eager = true;
  const OperationId received = job[1].post_recv(receive);
  const OperationId sent = job[0].post_send(send_of(data, 1));
  const Completion done = job.finish(1, received);
  CHECK(done.status == Status::kWithinBound);
  CHECK(done.total_bytes == data.size());
  CHECK(done.allowed_missing_bytes == data.size() / 2);
  CHECK(done.missing_bytes <= data.size() / 2);
  CHECK(done.missing_bytes > data.size() / 2 - 70'000);
  CHECK(job.finish(0, sent).missing_bytes == done.missing_bytes);
  check_buffer(got, data, done);
}

TEST_CASE("up_to__a_deadline_fails_a_receive_whose_size_is_unknown") {
  Job job(2);
  std::vector<std::byte> got(4'000, kOld);
  ReceiveOptions receive = up_to(got, 1);
  receive.deadline_ns = kSecond / 100;
  const Completion done = job.finish(1, job[1].post_recv(receive));
  CHECK(done.status == Status::kTimedOut);
  CHECK(done.error.find("up to 4000 bytes") != std::string::npos);
  CHECK(std::ranges::all_of(got, [](std::byte b) { return b == kOld; }));
}
