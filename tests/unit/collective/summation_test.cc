// What a service refuses: registrations by themselves, without a network. push_pull_test.cc has the rounds.
#include "collective/summation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "collective/partition_grid.h"
#include "recording_verbs.h"

namespace {

using namespace mlt::collective;
using mlt::test::RecordingVerbs;

Register shape_of(std::uint64_t key, std::uint32_t elements) {
  Register shape;
  shape.key = key;
  shape.elements = elements;
  shape.segment_bytes = 1'432;
  // Tensors of less than 1 MiB have one partition, the larger ones of these tests four.
  shape.tensor_elements = std::uint64_t{elements} * (elements < 262'144 ? 1 : 4);
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
  // 1,000,000 elements: 8 MB of buffers and 2,794 cells of 4 bytes.
  std::string text;
  CHECK(taken({.workers = 1, .max_bytes = 8'000'000}, 1'000'000, 2, text) == 0);
  CHECK(taken({.workers = 1, .max_bytes = 8'000'000 + 4 * 2'794 + 4'096}, 1'000'000, 2, text) == 1);
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
    // The last of as many partitions as a key can have.
    Register shape = shape_of(key, 10);
    shape.partition = partition;
    if (partition > 0) shape.tensor_elements += std::uint64_t{kMaxPartitions - 1} * kPartitionElements;
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

TEST_CASE("summation__a_partition_of_another_cut_is_refused") {
  RecordingVerbs verbs;
  Summation service({.workers = 2}, verbs);
  const auto refusal = [&](const Register& shape) {
    service.on_message(0, 0, shape);
    const auto* refused = std::get_if<Refused>(&verbs.last);
    return refused == nullptr ? std::string() : refused->text;
  };
  // 4 MiB over 2 services: 4 partitions of 1 MiB.
  Register shape = shape_of(1, 262'144);
  shape.tensor_elements = 1'048'576;
  shape.services = 2;
  Register other = shape;
  other.elements = 131'072;
  CHECK(refusal(other).find("131072 elements as partition 0 of 1048576 over 2 services") != std::string::npos);
  other = shape;
  other.partition = 4;
  CHECK(refusal(other).find("partition 4 of 1048576") != std::string::npos);
  for (const std::uint32_t services : {std::uint32_t{0}, std::uint32_t{65'536}, ~std::uint32_t{0}}) {
    other = shape;
    other.services = services;
    CHECK(refusal(other).find("out of range") != std::string::npos);
  }
  for (const std::uint64_t elements : {std::uint64_t{1} << 37, ~std::uint64_t{0}}) {
    other = shape;
    other.tensor_elements = elements;
    CHECK(refusal(other).find("out of range") != std::string::npos);
  }
  CHECK(service.bytes_held() == 0);
  shape.partition = 3;
  CHECK(refusal(shape) == "");
}

TEST_CASE("summation__tensors_of_two_sizes_are_refused_also_where_their_partitions_agree") {
  RecordingVerbs verbs;
  Summation service({.workers = 2}, verbs);
  // 16 and 17 partitions of 4 MiB.
  Register shape = shape_of(1, kPartitionElements);
  shape.tensor_elements = std::uint64_t{16} * kPartitionElements;
  service.on_message(0, 0, shape);
  REQUIRE(std::holds_alternative<Registered>(verbs.last));
  Register longer = shape;
  longer.tensor_elements = std::uint64_t{17} * kPartitionElements;
  service.on_message(0, 1, longer);
  REQUIRE(std::holds_alternative<Refused>(verbs.last));
  std::string text = std::get<Refused>(verbs.last).text;
  CHECK(text.find("rank 1 has 17825792 elements over 1 service,") != std::string::npos);
  CHECK(text.find("rank 0 has 16777216 elements over 1") != std::string::npos);
  // 8 partitions over one service or two: the same cut, but other services for its partitions.
  shape = shape_of(2, kPartitionElements);
  shape.tensor_elements = std::uint64_t{8} * kPartitionElements;
  service.on_message(0, 0, shape);
  REQUIRE(std::holds_alternative<Registered>(verbs.last));
  shape.services = 2;
  service.on_message(0, 1, shape);
  REQUIRE(std::holds_alternative<Refused>(verbs.last));
  text = std::get<Refused>(verbs.last).text;
  CHECK(text.find("over 2 services") != std::string::npos);
}

// A job that trains with one of them would wait for the other's push, and read the wrong cause when it gives up.
TEST_CASE("summation__a_worker_that_differs_is_named_to_those_who_came_before_and_come_later") {
  for (const bool is_average : {false, true}) {  // the average differs, or the bound
    RecordingVerbs verbs;
    Summation service({.workers = 4}, verbs);
    const Register shape = shape_of(1, 10);
    Register other = shape;
    if (is_average) {
      other.average = !other.average;
    } else {
      other.loss_bound = 0.25;
    }
    service.on_message(0, 2, shape);
    service.on_message(0, 0, shape);
    verbs.sent.clear();
    service.on_message(0, 1, other);
    service.on_message(0, 3, shape);
    std::vector<std::uint16_t> told;
    for (const auto& [to, message] : verbs.sent) {
      told.push_back(to);
      REQUIRE(std::holds_alternative<Refused>(message));
      const std::string& text = std::get<Refused>(message).text;
      CHECK(text.find("rank 1 has 10 elements") != std::string::npos);
      CHECK(text.find("rank 2 has 10 elements") != std::string::npos);
    }
    std::ranges::sort(told);
    CHECK(told == std::vector<std::uint16_t>{0, 1, 2, 3});
    // It differs again: the reply is the same, and no other rank receives it twice.
    verbs.sent.clear();
    service.on_message(0, 1, other);
    CHECK(verbs.sent.size() == 1);
    // Other keys continue.
    service.on_message(0, 1, shape_of(2, 10));
    CHECK(std::holds_alternative<Registered>(verbs.last));
  }
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
    sends.push_back(request);
    return mlt::core::PostStatus::kPosted;
  }
  mlt::core::PostStatus post_recv(TimeNs, const mlt::core::ReceiveRequest& request) override {
    receives.push_back(request);
    return mlt::core::PostStatus::kPosted;
  }
  void cancel(TimeNs, OperationId operation, mlt::core::CompletionKind) override { cancelled.push_back(operation); }
  bool send_message(std::uint16_t, std::span<const std::byte> bytes) override {
    last = decode(bytes).value();
    return true;
  }
  std::uint32_t segment_bytes(std::uint16_t peer) const override { return peer == 1 ? 4 * 1'432 : 1'432; }
  std::uint32_t grid_bytes(std::uint16_t) const override { return 1'432; }

  Message last;
  std::vector<mlt::core::ReceiveRequest> receives;
  std::vector<mlt::core::SendRequest> sends;
  std::vector<OperationId> cancelled;
  std::vector<std::byte> result;  // as it was when its send was posted
};

// The result's send to a worker completes.
void sent(Summation& service, const mlt::core::SendRequest& request) {
  mlt::core::Completion completion;
  completion.operation = request.operation;
  completion.peer = request.peer;
  service.on_completion(0, completion);
}

void complete(Summation& service, const std::vector<mlt::core::ReceiveRequest>& receives) {
  for (const auto& request : receives) {
    mlt::core::Completion completion;
    completion.operation = request.operation;
    completion.kind = mlt::core::CompletionKind::kReceive;
    completion.peer = request.peer;
    service.on_completion(0, completion);
  }
}

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
  complete(service, receives);
  REQUIRE(verbs.result.size() == total);
  for (std::uint32_t i = 0; i < kElements; ++i) {
    float mean = 0;
    std::memcpy(&mean, verbs.result.data() + i * sizeof mean, sizeof mean);
    REQUIRE(mean == 1.0F);
  }
}

namespace {

// Plays the pushes of one round: worker w pushes `base + w` in every element, except in the cells that it loses.
std::vector<float> round_of(Summation& service, MixedVerbs& verbs, std::uint32_t elements, float base,
                            const std::vector<std::vector<std::size_t>>& lost) {
  const std::uint64_t total = elements * sizeof(float);
  const std::vector<mlt::core::ReceiveRequest> receives = std::exchange(verbs.receives, {});
  REQUIRE(receives.size() == lost.size());
  for (const auto& request : receives) {
    const std::vector<float> push(elements, base + static_cast<float>(request.peer));
    const std::span<const std::byte> bytes = std::as_bytes(std::span(push));
    for (std::uint64_t at = 0; at < total; at += 1'432) {
      if (std::ranges::count(lost[request.peer], at / 1'432) > 0) continue;
      request.place(request.place_context, at, bytes.subspan(at, std::min<std::uint64_t>(1'432, total - at)));
    }
  }
  complete(service, receives);
  std::vector<float> result(verbs.result.size() / sizeof(float));
  std::memcpy(result.data(), verbs.result.data(), verbs.result.size());
  for (std::uint16_t worker = 0; worker < receives.size(); ++worker) {  // every worker has the result
    mlt::core::Completion completion;
    completion.operation = receives[worker].operation | 1U;
    completion.kind = mlt::core::CompletionKind::kSend;
    completion.peer = worker;
    service.on_completion(0, completion);
  }
  return result;
}

}  // namespace

// The two buffers take turns, and their contents are those of two rounds before: nothing of it may be left.
TEST_CASE("summation__every_round_starts_from_nothing_and_a_cell_without_pushes_is_zero") {
  constexpr std::uint32_t kElements = 3 * 358 + 5;  // cells 0 to 3
  for (const bool average : {true, false}) {
    CAPTURE(average);
    MixedVerbs verbs;
    Summation service({.workers = 3}, verbs);
    Register shape = shape_of(1, kElements);
    shape.average = average;
    for (std::uint16_t worker = 0; worker < 3; ++worker) service.on_message(0, worker, shape);
    for (int round = 0; round < 5; ++round) {
      CAPTURE(round);
      const float base = 16.0F * static_cast<float>(round + 1);
      // From the third round on: cell 1 comes from none, cell 2 from worker 1 alone, the short cell 3 from 0 and 2.
      const bool loses = round >= 2;
      const std::vector<std::vector<std::size_t>> lost =
          loses ? std::vector<std::vector<std::size_t>>{{1, 2}, {1, 3}, {1, 2}}
                : std::vector<std::vector<std::size_t>>{{}, {}, {}};
      const std::vector<float> result = round_of(service, verbs, kElements, base, lost);
      REQUIRE(result.size() == kElements);
      const float all = average ? base + 1 : 3 * base + 3;
      const float of_two = average ? base + 1 : 2 * base + 2;
      const std::vector<float> expected =
          loses ? std::vector<float>{all, 0, base + 1, of_two} : std::vector<float>{all, all, all, all};
      for (std::uint32_t i = 0; i < kElements; ++i) REQUIRE(result[i] == doctest::Approx(expected[i / 358]));
    }
    CHECK(service.rounds_summed() == 5);
  }
}

TEST_CASE("summation__a_segment_goes_back_once_every_worker_pushed_it_while_the_rest_still_arrives") {
  constexpr std::uint32_t kElements = 6 * 358 + 7;
  MixedVerbs verbs;
  Summation service({.workers = 2}, verbs);
  for (std::uint16_t worker = 0; worker < 2; ++worker) service.on_message(0, worker, shape_of(1, kElements));
  const std::vector<mlt::core::ReceiveRequest> receives = verbs.receives;
  const std::vector<float> push(kElements, 3.0F);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(push));
  const auto arrive = [&](std::uint16_t worker, std::size_t cell) {
    const std::size_t at = cell * 1'432;
    receives[worker].place(receives[worker].place_context, at,
                           bytes.subspan(at, std::min<std::size_t>(1'432, bytes.size() - at)));
  };
  for (std::size_t cell = 0; cell < 7; ++cell) arrive(1, cell);
  CHECK(!service.has_begun_results());
  arrive(0, 1);
  CHECK(service.has_begun_results());
  service.retry(0);
  CHECK(!service.has_begun_results());
  REQUIRE(verbs.sends.size() == 2);
  for (std::uint16_t worker = 0; worker < 2; ++worker) REQUIRE(verbs.sends[worker].peer == worker);
  mlt::core::SendFeed& short_segments = *verbs.sends[0].feed;
  mlt::core::SendFeed& long_segments = *verbs.sends[1].feed;  // of 4 cells
  CHECK(short_segments.fresh.size() == 7);
  CHECK(long_segments.fresh.size() == 2);
  CHECK(short_segments.fresh_count == 1);
  CHECK(short_segments.fresh.test(1));
  CHECK(long_segments.fresh_count == 0);
  float mean = 0;
  std::memcpy(&mean, verbs.sends[0].data.data() + 1'432, sizeof mean);
  CHECK(mean == 3.0F);
  for (const std::size_t cell : {0U, 3U}) arrive(0, cell);
  CHECK(long_segments.fresh_count == 0);
  arrive(0, 2);
  CHECK(short_segments.fresh_count == 4);
  CHECK(long_segments.fresh_count == 1);
  CHECK(long_segments.fresh.test(0));
  // Worker 0 loses the rest: its end decides on them.
  complete(service, receives);
  CHECK(short_segments.fresh_count == 7);
  CHECK(long_segments.fresh_count == 2);
  CHECK(verbs.sends.size() == 2);
}

namespace {

// Two rounds whose results are on their way, of which those of the first are not all reported as received.
struct TwoRounds {
  TwoRounds() : service({.workers = 2, .max_standing = 0}, verbs) {
    for (std::uint16_t worker = 0; worker < 2; ++worker) service.on_message(0, worker, shape_of(1, 10));
    push();
    sent(service, verbs.sends[0]);
    push();
  }
  void push() {
    for (std::uint16_t worker = 0; worker < 2; ++worker) service.on_message(0, worker, Ready{1, 0});
    const std::vector<float> terms(10, 1.0F);
    const std::vector<mlt::core::ReceiveRequest> receives = std::exchange(verbs.receives, {});
    REQUIRE(receives.size() == 2);
    for (const auto& request : receives) {
      request.place(request.place_context, 0, std::as_bytes(std::span(terms)));
    }
    complete(service, receives);
    service.retry(0);
  }

  MixedVerbs verbs;
  Summation service;
};

}  // namespace

TEST_CASE("summation__a_worker_may_be_ready_for_a_round_before_the_one_before_is_over") {
  TwoRounds job;
  REQUIRE(job.verbs.sends.size() == 4);
  CHECK(job.service.rounds_summed() == 2);
  sent(job.service, job.verbs.sends[2]);
  job.service.on_message(0, 0, Ready{1, 0});
  CHECK(job.verbs.receives.empty());  // its buffer still holds the first result
  sent(job.service, job.verbs.sends[1]);
  REQUIRE(job.verbs.receives.size() == 1);
  CHECK(job.verbs.receives[0].peer == 0);
}

TEST_CASE("summation__a_worker_that_leaves_with_its_result_takes_nothing_from_one_still_waiting") {
  TwoRounds job;
  sent(job.service, job.verbs.sends[2]);
  job.service.on_peer_down(0, 0);
  sent(job.service, job.verbs.sends[1]);
  CHECK(job.verbs.cancelled.empty());
  CHECK(!std::holds_alternative<Aborted>(job.verbs.last));
  sent(job.service, job.verbs.sends[3]);
  CHECK(std::holds_alternative<Aborted>(job.verbs.last));
  CHECK(job.verbs.cancelled.empty());
}

TEST_CASE("summation__a_takeover_names_the_workers_that_do_not_report_in_time") {
  RecordingVerbs verbs;
  Summation service({.workers = 3, .services = 2, .rank = 4, .max_takeover_wait_ns = mlt::base::kSecond}, verbs);
  Register shape = shape_of(1, 10);
  shape.services = 2;
  shape.max_dead_services = 1;
  service.on_message(0, 2, Move{shape, 1, {}});
  CHECK(service.next_timeout() == mlt::base::kSecond);
  service.on_timeout(mlt::base::kSecond);
  const auto* overdue = std::get_if<Overdue>(&verbs.last);
  REQUIRE(overdue != nullptr);
  CHECK(overdue->text.find("gone for rank 2, but not for rank 0, rank 1, after 1 s") != std::string::npos);
}

TEST_CASE("summation__workers_with_different_max_dead_services_are_both_named") {
  RecordingVerbs verbs;
  Summation service({.workers = 2}, verbs);
  Register shape = shape_of(1, 10);
  service.on_message(0, 0, shape);
  shape.max_dead_services = 1;
  service.on_message(0, 1, shape);
  const auto* refused = std::get_if<Refused>(&verbs.last);
  REQUIRE(refused != nullptr);
  CHECK(refused->text.find("max_dead_services 1; rank 0") != std::string::npos);
  CHECK(refused->text.find("max_dead_services 0: every worker must use the same") != std::string::npos);
}

TEST_CASE("summation__a_takeover_costs_memory_and_honours_the_limit_of_standing_receives") {
  RecordingVerbs verbs;
  Register shape = shape_of(1, 10);
  shape.services = 2;
  shape.max_dead_services = 1;
  std::uint64_t bytes[2];
  for (const bool is_takeover : {false, true}) {
    Summation service({.workers = 1, .services = 2, .rank = 2, .max_standing = 1}, verbs);
    service.on_message(0, 0, is_takeover ? Message{Move{shape, 1, {}}} : Message{shape});
    bytes[is_takeover ? 1 : 0] = service.bytes_held();
    if (!is_takeover) continue;
    CHECK(!std::get<Moved>(verbs.last).on_demand);
    shape.key = 2;
    service.on_message(0, 0, Move{shape, 1, {}});
    CHECK(std::get<Moved>(verbs.last).on_demand);
  }
  CHECK(bytes[1] > bytes[0]);
}

TEST_CASE("summation__a_registration_that_is_refused_raises_no_limit") {
  RecordingVerbs verbs;
  Summation service({.workers = 2, .services = 2, .rank = 2}, verbs);
  Register shape = shape_of(1, 10);
  shape.services = 2;
  service.on_message(0, 0, shape);
  shape.max_dead_services = 1;
  service.on_message(0, 1, shape);
  CHECK(std::holds_alternative<Refused>(verbs.last));
  CHECK(service.survivors().max_dead_services() == 0);
}

TEST_CASE("summation__an_excluded_service_sends_the_view_and_refuses_only_where_it_left_by_itself") {
  RecordingVerbs verbs;
  Summation service({.workers = 2, .services = 2, .rank = 3}, verbs);
  service.on_message(0, 2, Excluded{0, {3}});
  REQUIRE(!service.out_text().empty());
  verbs.sent.clear();
  service.on_message(0, 0, shape_of(1, 10));
  service.on_message(0, 1, Lost{0, {}, {2}, 0});  // it takes this service for its decider
  REQUIRE(verbs.sent.size() == 2);
  for (const std::uint16_t worker : {std::uint16_t{0}, std::uint16_t{1}}) {
    CHECK(verbs.sent[worker].first == worker);
    CHECK(std::get<Excluded>(verbs.sent[worker].second).ranks == std::vector<std::uint32_t>{3});
  }
  Summation alone({.workers = 2, .services = 2, .rank = 3, .max_dead_workers = 1}, verbs);
  alone.on_peer_down(0, 0);
  alone.on_timeout(60 * mlt::base::kSecond);
  REQUIRE(!alone.out_text().empty());
  alone.on_message(60 * mlt::base::kSecond, 1, shape_of(1, 10));
  CHECK(std::get<Refused>(verbs.last).text == alone.out_text());
}
