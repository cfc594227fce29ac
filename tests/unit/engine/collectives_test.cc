// Collectives and push-pull through engines of several ranks in one process, over real sockets on loopback.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <numeric>

#include "mlt.h"
#include "support/soon.h"
#include "unit/engine/engine_job.h"

namespace {

using namespace mlt;

using engine_test::kSecond;
using test::soon;
using Group = engine_test::Job;

AllReduceOptions all_reduce(std::vector<float>& data, double loss_bound = 0) {
  AllReduceOptions options;
  options.data = std::as_writable_bytes(std::span(data));
  options.reduction = Reduction::kSum;
  options.loss_bound = loss_bound;
  return options;
}

}  // namespace

TEST_CASE("collectives__all_reduce_sums_exactly_at_every_rank_under_faults") {
  Group group(3, FaultOptions{.drop = 0.02, .duplicate = 0.01, .reorder = 0.02, .seed = 5});
  for (const std::size_t elements : {std::size_t{0}, std::size_t{2}, std::size_t{500'003}}) {
    CAPTURE(elements);
    std::vector<std::vector<float>> data(3, std::vector<float>(elements));
    for (std::size_t rank = 0; rank < 3; ++rank) {
      for (std::size_t i = 0; i < elements; ++i) data[rank][i] = static_cast<float>((i * 7 + rank * 13) % 101);
    }
    std::vector<OperationId> operations;
    for (std::size_t rank = 0; rank < 3; ++rank)
      operations.push_back(group[rank].post_all_reduce(all_reduce(data[rank])));
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const Completion done = group.finish(rank, operations[rank]);
      CHECK(done.verb == Verb::kAllReduce);
      CHECK(done.status == Status::kComplete);
      CHECK(done.total_bytes == 4 * elements);
    }
    bool exact = true;
    for (std::size_t i = 0; i < elements; ++i) {
      const std::size_t sum = (i * 7) % 101 + (i * 7 + 13) % 101 + (i * 7 + 26) % 101;
      for (std::size_t rank = 0; rank < 3; ++rank) exact = exact && data[rank][i] == static_cast<float>(sum);
    }
    CHECK(exact);
  }
}

TEST_CASE("collectives__of_a_list_of_tensors_are_those_of_each") {
  Group group(2);
  std::vector<std::vector<float>> first(2), last(2);
  std::vector<OperationId> operations;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    first[rank] = {1.0F + static_cast<float>(rank)};
    last[rank].assign(70'000, static_cast<float>(rank));
    AllReduceOptions options;
    options.tensors = {std::as_writable_bytes(std::span(first[rank])), std::as_writable_bytes(std::span(last[rank]))};
    options.reduction = Reduction::kSum;
    operations.push_back(group[rank].post_all_reduce(options));
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const Completion done = group.finish(rank, operations[rank]);
    CHECK(done.error == "");
    CHECK(done.total_bytes == 4 + 4 * last[rank].size());
    CHECK(first[rank] == std::vector<float>{3.0F});
    CHECK(last[rank] == std::vector<float>(70'000, 1.0F));
  }
  operations.clear();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    first[rank] = {static_cast<float>(rank)};
    last[rank] = {10 + static_cast<float>(rank)};
    BroadcastOptions options;
    options.root = 1;
    options.element = Element::kFloat32;
    options.tensors = {std::as_writable_bytes(std::span(first[rank])), std::as_writable_bytes(std::span(last[rank]))};
    operations.push_back(group[rank].post_broadcast(options));
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(group.finish(rank, operations[rank]).error == "");
    CHECK(first[rank] == std::vector<float>{1.0F});
    CHECK(last[rank] == std::vector<float>{11.0F});
  }
}

TEST_CASE("collectives__of_a_list_that_fails_leave_the_tensors_and_name_their_number") {
  Group group(2);
  std::vector<float> first{1.0F}, last{2.0F};
  AllReduceOptions options;
  options.tensors = {std::as_writable_bytes(std::span(first)), std::as_writable_bytes(std::span(last))};
  const OperationId operation = group[0].post_all_reduce(options);
  group[1].close();
  const Completion done = group.finish(0, operation);
  CHECK(done.error.find("rank 0: all-reduce of 2 tensors, 8 bytes of float32 over 2 ranks") == 0);
  CHECK(first[0] == 1.0F);
  CHECK(last[0] == 2.0F);
}

TEST_CASE("collectives__sends_receives_and_several_collectives_share_the_engine") {
  Group group(2);
  std::vector<std::vector<float>> data(2, std::vector<float>(300'000, 1.0F));
  std::vector<std::vector<std::int32_t>> in(2, std::vector<std::int32_t>(1'000)), out = in;
  for (std::size_t rank = 0; rank < 2; ++rank)
    std::iota(in[rank].begin(), in[rank].end(), 10'000 * static_cast<int>(rank));
  std::vector<std::int32_t> gathered(2'000), passed(1'000);
  std::vector<std::vector<OperationId>> operations(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    operations[rank].push_back(group[rank].post_all_reduce(all_reduce(data[rank])));
    AllToAllOptions exchange;
    exchange.input = std::as_bytes(std::span(in[rank]));
    exchange.output = std::as_writable_bytes(std::span(out[rank]));
    exchange.element = Element::kInt32;
    operations[rank].push_back(group[rank].post_all_to_all(exchange));
    GatherOptions gather;
    gather.root = 1;
    gather.input = exchange.input;
    if (rank == 1) gather.output = std::as_writable_bytes(std::span(gathered));
    gather.element = Element::kInt32;
    operations[rank].push_back(group[rank].post_gather(gather));
  }
  SendOptions send;
  send.to = 1;
  send.data = std::as_bytes(std::span(in[0]));
  operations[0].push_back(group[0].post_send(send));
  ReceiveOptions receive;
  receive.data = std::as_writable_bytes(std::span(passed));
  operations[1].push_back(group[1].post_recv(receive));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (const OperationId operation : operations[rank]) CHECK(group.finish(rank, operation).error == "");
  }
  CHECK(data[0] == std::vector<float>(300'000, 2.0F));
  CHECK(data[1] == data[0]);
  CHECK(out[0][500] == 10'000);
  CHECK(out[1][499] == 999);
  CHECK(std::equal(in[0].begin(), in[0].end(), gathered.begin()));
  CHECK(std::equal(in[1].begin(), in[1].end(), gathered.begin() + 1'000));
  CHECK(passed == in[0]);
}

TEST_CASE("collectives__a_member_that_closes_fails_the_others_by_name") {
  Group group(3);
  std::vector<std::vector<float>> data(3, std::vector<float>(2'000'000, 1.0F));
  const OperationId first = group[0].post_all_reduce(all_reduce(data[0]));
  const OperationId second = group[1].post_all_reduce(all_reduce(data[1]));
  REQUIRE(soon([&] { return group.count(0, "data_packets_sent") > 0 && group.count(1, "data_packets_sent") > 0; }));
  group[2].close();
  for (const auto& [rank, operation] : {std::pair<std::size_t, OperationId>{0, first}, {1, second}}) {
    const Completion done = group.finish(rank, operation);
    CAPTURE(done.error);
    CHECK(done.status == Status::kPeerFailed);
    CHECK(done.failed_peer == 2);
    CHECK(done.error.find("rank " + std::to_string(rank) + ": all-reduce of 8000000 bytes of float32 over 3 ranks") ==
          0);
  }
  CHECK_THROWS_AS(group[0].post_all_reduce(all_reduce(data[0])), Error);
}

TEST_CASE("collectives__closing_ends_what_is_under_way") {
  Group group(2);
  std::vector<float> data(1'000);
  const OperationId operation = group[0].post_all_reduce(all_reduce(data));
  group[0].close();
  const Completion done = group.finish(0, operation);
  CHECK(done.status == Status::kCancelled);
  CHECK(done.verb == Verb::kAllReduce);
  CHECK(done.error.find("all-reduce of 4000 bytes") != std::string::npos);
}

// More registrations than a service has receives standing ready: the rest says ready with each push.
TEST_CASE("push_pull__more_keys_than_receives_stand_ready") {
  Group group(3);
  group[2].serve(2);
  const std::uint16_t services[] = {2};
  constexpr std::size_t kKeys = 300;
  std::vector<std::vector<float>> data(2, std::vector<float>(kKeys));
  for (std::uint16_t worker = 0; worker < 2; ++worker) group[worker].use_services(services, 2);
  for (int round = 0; round < 2; ++round) {
    std::vector<std::vector<OperationId>> operations(2);
    for (std::uint16_t worker = 0; worker < 2; ++worker) {
      for (std::size_t key = 0; key < kKeys; ++key) {
        data[worker][key] = static_cast<float>(key + 2U * worker);
        PushPullOptions options;
        options.key = key;
        options.output = std::span(data[worker]).subspan(key, 1);
        options.input = options.output;
        operations[worker].push_back(group[worker].push_pull(options));
      }
    }
    for (std::uint16_t worker = 0; worker < 2; ++worker) {
      for (std::size_t key = 0; key < kKeys; ++key) {
        const auto done = group[worker].wait(operations[worker][key], 20 * kSecond);
        REQUIRE(done.has_value());
        CHECK(done->error == "");
        CHECK(data[worker][key] == static_cast<float>(key + 1));
      }
    }
  }
}
