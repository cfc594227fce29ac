// What a service refuses: registrations by themselves, without a network. push_pull_test.cc has the rounds.
#include "collective/summation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace {

using namespace mlt::collective;

class RecordingVerbs final : public Verbs {
 public:
  mlt::core::PostStatus post_send(TimeNs, const mlt::core::SendRequest&) override {
    return mlt::core::PostStatus::kPosted;
  }
  mlt::core::PostStatus post_recv(TimeNs, const mlt::core::ReceiveRequest&) override {
    return mlt::core::PostStatus::kPosted;
  }
  void cancel(TimeNs, OperationId, mlt::core::CompletionKind) override {}
  bool send_message(std::uint16_t, std::span<const std::byte> bytes) override {
    last = decode(bytes).value();
    return true;
  }
  std::uint32_t segment_bytes(std::uint16_t) const override { return 1'432; }

  Message last;
};

Register shape_of(std::uint64_t key, std::uint32_t elements) {
  Register shape;
  shape.key = key;
  shape.elements = elements;
  shape.segment_bytes = 1'432;
  return shape;
}

// Keys of `elements` that the service takes before it refuses one; `text` is then what it said.
std::size_t taken(const SummationConfig& config, std::uint32_t elements, std::size_t limit, std::string& text) {
  RecordingVerbs verbs;
  Summation service(config, verbs);
  for (std::size_t key = 0; key < limit; ++key) {
    service.on_message(0, 0, shape_of(key, elements));
    if (const auto* refused = std::get_if<Refused>(&verbs.last)) {
      text = refused->text;
      return key;
    }
    CHECK(service.bytes_held() <= config.max_bytes);
  }
  return limit;
}

}  // namespace

TEST_CASE("summation__empty_partitions_cost_memory_too") {
  std::string text;
  const std::size_t count = taken({.workers = 1, .max_bytes = 100'000}, 0, 1'000, text);
  CHECK(count > 100);
  CHECK(count < 200);
  CHECK(text.find("memory limit") != std::string::npos);
}

TEST_CASE("summation__memory_limit_counts_everything_kept") {
  // 1,000,000 elements: 8 MB of buffers and 2,794 counters.
  std::string text;
  CHECK(taken({.workers = 1, .max_bytes = 8'000'000}, 1'000'000, 2, text) == 0);
  CHECK(taken({.workers = 1, .max_bytes = 8'000'000 + 2 * 2'794 + 4'096}, 1'000'000, 2, text) == 1);
  CHECK(text.find("memory limit") != std::string::npos);
}

TEST_CASE("summation__partitions_are_limited_by_what_all_workers_register") {
  std::string text;
  CHECK(taken({.workers = 4, .max_registrations = 42}, 1, 100, text) == 10);
  CHECK(text.find("10 partitions") != std::string::npos);
}

// Their tags would be those of other transfers.
TEST_CASE("summation__a_key_or_partition_that_no_tag_has_room_for_is_refused") {
  RecordingVerbs verbs;
  Summation service({.workers = 1}, verbs);
  const auto asks = [&](std::uint64_t key, std::uint32_t partition) {
    Register shape = shape_of(key, 10);
    shape.partition = partition;
    service.on_message(0, 0, shape);
    return !std::holds_alternative<Refused>(verbs.last);
  };
  CHECK(!asks(kMaxKey + 1, 0));
  CHECK(!asks(~std::uint64_t{0}, 0));
  CHECK(!asks(1, kMaxPartitions));
  CHECK(!asks(1, ~std::uint32_t{0}));
  CHECK(service.bytes_held() == 0);
  CHECK(asks(kMaxKey, kMaxPartitions - 1));
}

TEST_CASE("summation__segments_of_another_size_than_the_connection_carries_are_refused") {
  RecordingVerbs verbs;
  Summation service({.workers = 2}, verbs);
  Register shape = shape_of(1, 10'000);
  shape.segment_bytes = 2'864;  // counters for half of the segments that will come
  service.on_message(0, 0, shape);
  REQUIRE(std::holds_alternative<Refused>(verbs.last));
  const std::string& text = std::get<Refused>(verbs.last).text;
  CHECK(text.find("2864") != std::string::npos);
  CHECK(text.find("1432") != std::string::npos);
  CHECK(service.bytes_held() == 0);
  service.on_message(0, 0, shape_of(1, 10'000));
  CHECK(std::holds_alternative<Registered>(verbs.last));
}

namespace {

// A service whose worker 1 shares memory with it: its segments are longer than the grid that sums are counted on.
class MixedVerbs final : public Verbs {
 public:
  mlt::core::PostStatus post_send(TimeNs, const mlt::core::SendRequest& request) override {
    result.assign(request.data.begin(), request.data.end());
    return mlt::core::PostStatus::kPosted;
  }
  mlt::core::PostStatus post_recv(TimeNs, const mlt::core::ReceiveRequest& request) override {
    receives.push_back(request);
    return mlt::core::PostStatus::kPosted;
  }
  void cancel(TimeNs, OperationId, mlt::core::CompletionKind) override {}
  bool send_message(std::uint16_t, std::span<const std::byte> bytes) override {
    last = decode(bytes).value();
    return true;
  }
  std::uint32_t segment_bytes(std::uint16_t peer) const override { return peer == 1 ? 4 * 1'432 : 1'432; }
  std::uint32_t grid_bytes(std::uint16_t) const override { return 1'432; }

  Message last;
  std::vector<mlt::core::ReceiveRequest> receives;
  std::vector<std::byte> result;
};

}  // namespace

TEST_CASE("summation__a_worker_with_longer_segments_counts_once_in_each_cell_that_it_covers") {
  constexpr std::uint32_t kElements = 6 * 358 + 7;  // 1,432 bytes are 358 elements
  MixedVerbs verbs;
  Summation service({.workers = 2}, verbs);
  Register shape = shape_of(1, kElements);
  shape.average = true;
  for (std::uint16_t worker = 0; worker < 2; ++worker) {
    service.on_message(0, worker, shape);
    REQUIRE(std::holds_alternative<Registered>(verbs.last));
  }
  REQUIRE(verbs.receives.size() == 2);
  const std::vector<float> ones(kElements, 1.0F);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(ones));
  const std::uint64_t total = kElements * sizeof(float);
  const std::vector<mlt::core::ReceiveRequest> receives = verbs.receives;
  for (const auto& request : receives) {
    const std::uint64_t each = verbs.segment_bytes(request.peer);
    for (std::uint64_t at = 0; at < total; at += each) {
      if (request.peer == 0 && at == 2 * each) continue;  // lost: there the mean is of one
      request.place(request.place_context, at, bytes.subspan(at, std::min(each, total - at)));
    }
  }
  for (const auto& request : receives) {
    mlt::core::Completion completion;
    completion.operation = request.operation;
    completion.kind = mlt::core::CompletionKind::kReceive;
    completion.peer = request.peer;
    service.on_completion(0, completion);
  }
  REQUIRE(verbs.result.size() == total);
  for (std::uint32_t i = 0; i < kElements; ++i) {
    float mean = 0;
    std::memcpy(&mean, verbs.result.data() + i * sizeof mean, sizeof mean);
    REQUIRE(mean == 1.0F);
  }
}
