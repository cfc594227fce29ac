// Transfers that are posted and waited for together: all or none, and with one wake-up.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "mlt.h"
#include "unit/engine/engine_job.h"

namespace {

using namespace mlt;
using engine_test::Job;
using engine_test::kSecond;

constexpr std::size_t kBatchBytes = 64;

struct Batch {
  explicit Batch(std::size_t count) : data(kBatchBytes * count), arrived(data.size()) {
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 31 + (i >> 8));
    for (std::size_t i = 0; i < count; ++i) {
      SendOptions send;
      send.to = 1;
      send.tag = i;
      send.data = std::span(data).subspan(kBatchBytes * i, kBatchBytes);
      sends.push_back(send);
      ReceiveOptions receive;
      receive.from = 0;
      receive.tag = i;
      receive.data = std::span(arrived).subspan(kBatchBytes * i, kBatchBytes);
      receives.push_back(receive);
    }
  }

  std::vector<std::byte> data, arrived;
  std::vector<SendOptions> sends;
  std::vector<ReceiveOptions> receives;
};

// The text of the error that `call` throws, which has this code.
template <typename Call>
std::string batch_error(ErrorCode code, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  FAIL("it was taken");
  return {};
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("post_sends__complete_in_order_over_every_datapath") {
  for (const char* const datapath : {"udp", "auto"}) {
    CAPTURE(datapath);
    Options options;
    options.datapath = datapath;
    Job job(2, options);
    Batch batch(1'000);
    const std::vector<OperationId> receives = job[1].post_recvs(batch.receives);
    const std::vector<OperationId> sends = job[0].post_sends(batch.sends);
    const auto sent = job[0].wait_all(sends, 20 * kSecond);
    const auto received = job[1].wait_all(receives, 20 * kSecond);
    REQUIRE(sent.has_value());
    REQUIRE(received.has_value());
    REQUIRE(sent->size() == batch.sends.size());
    for (std::size_t i = 0; i < sends.size(); ++i) {
      REQUIRE((*sent)[i].operation == sends[i]);
      REQUIRE((*sent)[i].is_send);
      REQUIRE((*received)[i].operation == receives[i]);
      REQUIRE((*received)[i].tag == i);
      REQUIRE_FALSE((*received)[i].failed());
    }
    CHECK(batch.arrived == batch.data);
    CHECK(job[0].lending() == 0);
  }
}

TEST_CASE("post_sends__of_large_and_lossy_tensors_keep_their_options") {
  FaultOptions faults;
  faults.drop = 0.05;
  Job job(2, faults);
  std::vector<float> values(100'000), got(values.size()), exact(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 97);
  std::vector<SendOptions> sends(2);
  std::vector<ReceiveOptions> receives(2);
  for (std::size_t i = 0; i < 2; ++i) {
    sends[i].to = 1;
    sends[i].tag = receives[i].tag = 7 + i;
    sends[i].data = std::as_bytes(std::span(values));
    sends[i].element = receives[i].element = Element::kFloat32;
    sends[i].by_magnitude = true;  // priorities that are computed from the values while they are sent
  }
  receives[0].data = std::as_writable_bytes(std::span(got));
  receives[0].loss_bound = 0.5;
  receives[1].data = std::as_writable_bytes(std::span(exact));
  const auto posted = job[1].post_recvs(receives);
  const auto sent = job[0].wait_all(job[0].post_sends(sends), 20 * kSecond);
  const auto received = job[1].wait_all(posted, 20 * kSecond);
  REQUIRE(sent.has_value());
  REQUIRE(received.has_value());
  CHECK((*received)[0].allowed_missing_bytes == values.size() * sizeof(float) / 2);
  CHECK((*received)[1].missing_bytes == 0);
  CHECK(exact == values);
}

TEST_CASE("post_sends__with_one_that_is_rejected_post_none") {
  Options options;
  options.max_operations = 16;
  Job job(2, options);
  Batch batch(8);
  struct Case {
    void (*spoil)(SendOptions&);
    ErrorCode code;
    const char* fact;
  };
  static const std::vector<std::byte> odd(3);
  for (const Case& one :
       {Case{[](SendOptions& send) { send.to = 2; }, ErrorCode::kUnknownPeer, "ranks 0 to 1"},
        Case{[](SendOptions& send) { send.to = 0; }, ErrorCode::kUnknownPeer, "itself"},
        Case{[](SendOptions& send) { send.tag = 1ULL << 63; }, ErrorCode::kConfig, "2^63"},
        Case{[](SendOptions& send) { send.layers = 0; }, ErrorCode::kConfig, "layers"},
        Case{[](SendOptions& send) {
               send.data = odd;
               send.element = Element::kFloat32;
             },
             ErrorCode::kBuffer, "3 bytes"},
        Case{[](SendOptions& send) { send.priorities = {kImportant, kImportant}; }, ErrorCode::kConfig, "2 for 1"}}) {
    CAPTURE(one.fact);
    std::vector<SendOptions> sends = batch.sends;
    one.spoil(sends[5]);
    const std::string text = batch_error(one.code, [&] { job[0].post_sends(sends); });
    CHECK(has(text, one.fact));
    CHECK(has(text, "number 6 of 8"));
  }
  std::vector<ReceiveOptions> receives = batch.receives;
  receives[7].loss_bound = 0.5;
  CHECK(has(batch_error(ErrorCode::kBuffer, [&] { job[1].post_recvs(receives); }), "number 8 of 8"));
  receives[7].loss_bound = 2;
  CHECK(has(batch_error(ErrorCode::kConfig, [&] { job[1].post_recvs(receives); }), "number 8 of 8"));

  // Nothing of them is in progress: the whole limit is free, and no more than it fits.
  const std::vector<OperationId> first = job[0].post_sends(batch.sends);
  const std::vector<OperationId> second = job[0].post_sends(batch.sends);
  const std::string text = batch_error(ErrorCode::kLimit, [&] { job[0].post_sends(batch.sends); });
  CHECK(has(text, "max_operations (MLT_MAX_OPERATIONS), which is 16"));
  CHECK(has(text, "list of 8"));
  for (const std::vector<OperationId>* const ids : {&first, &second}) {
    const auto receives_of = job[1].post_recvs(batch.receives);
    CHECK(job[1].wait_all(receives_of, 20 * kSecond).has_value());
    CHECK(job[0].wait_all(*ids, 20 * kSecond).has_value());
  }
  CHECK(job[0].post_sends({}).empty());
  job[0].close();
  CHECK(has(batch_error(ErrorCode::kClosed, [&] { job[0].post_sends(batch.sends); }), "number 1 of 8"));
}

TEST_CASE("wait_all__takes_all_or_none_and_returns_failures_too") {
  Job job(2);
  Batch batch(4);
  const auto receives = job[1].post_recvs(batch.receives);
  std::vector<SendOptions> sends = batch.sends;
  sends[1].data = sends[1].data.first(kBatchBytes / 2);  // another size than the receive's
  const auto some = job[0].post_sends(std::span(sends).first(3));
  CHECK_FALSE(job[1].wait_all(receives, kSecond / 20).has_value());
  CHECK(job[1].is_done(receives[0]).has_value());  // none was taken
  const auto last = job[0].post_send(sends[3]);
  const auto done = job[1].wait_all(receives, 20 * kSecond);
  REQUIRE(done.has_value());
  for (std::size_t i = 0; i < done->size(); ++i) {
    CHECK((*done)[i].operation == receives[i]);
    CHECK((*done)[i].failed() == (i == 1));
  }
  CHECK((*done)[1].status == Status::kSizeMismatch);
  const std::vector<OperationId> known{some[0], some[1], some[2], last};
  const std::vector<OperationId> twice{some[0], last, some[0]}, taken{last, receives[0] + 1'000'000};
  CHECK(has(batch_error(ErrorCode::kUnknownOperation, [&] { job[0].wait_all(twice, kSecond); }),
            std::to_string(some[0])));
  batch_error(ErrorCode::kUnknownOperation, [&] { job[0].wait_all(taken, kSecond); });
  CHECK(job[0].wait_all(known, 20 * kSecond).has_value());
  batch_error(ErrorCode::kUnknownOperation, [&] { job[0].wait_all(known, kSecond); });
  const auto nothing = job[0].wait_all({}, 0);
  REQUIRE(nothing.has_value());
  CHECK(nothing->empty());
}

TEST_CASE("wait_all__ends_with_the_engine") {
  Job job(2);
  Batch batch(50);
  const auto receives = job[1].post_recvs(batch.receives);
  std::thread closer([&] { job[1].close(); });
  const auto done = job[1].wait_all(receives, 20 * kSecond);
  closer.join();
  REQUIRE(done.has_value());
  for (const Completion& one : *done) CHECK(one.status == Status::kCancelled);
}

TEST_CASE("post_sends__leave_together") {
  Options options;
  options.datapath = "udp";
  Job job(2, options);
  // So few that single posts would not wait for each other, and leave one by one.
  Batch batch(32);
  const auto count = [&](const char* name) { return job.count(0, name); };
  const std::uint64_t runs = count("udp_runs_sent"), datagrams = count("udp_datagrams_sent");
  const std::uint64_t alone = count("probes_sent");
  for (int round = 0; round < 16; ++round) {
    const auto receives = job[1].post_recvs(batch.receives);
    const auto sends = job[0].post_sends(batch.sends);
    REQUIRE(job[0].wait_all(sends, 20 * kSecond).has_value());
    REQUIRE(job[1].wait_all(receives, 20 * kSecond).has_value());
    CHECK(batch.arrived == batch.data);
  }
  const std::uint64_t sent = count("udp_datagrams_sent") - datagrams;
  CHECK(sent >= 512);
  // Probes of what a busy host delays leave one by one.
  CHECK(count("udp_runs_sent") - runs < sent / 4 + count("probes_sent") - alone);
}

TEST_CASE("post_sends__of_more_tags_than_fit_fail_as_completions") {
  Options options;
  options.max_tags = 4;
  Job job(2, options);
  Batch batch(8);
  const auto sends = job[0].post_sends(batch.sends);
  const auto receives = job[1].post_recvs(std::span(batch.receives).first(4));
  const auto sent = job[0].wait_all(sends, 20 * kSecond);
  REQUIRE(sent.has_value());
  for (std::size_t i = 0; i < sent->size(); ++i) {
    CHECK((*sent)[i].operation == sends[i]);
    CHECK((*sent)[i].failed() == (i >= 4));
  }
  CHECK(has((*sent)[4].error, "MLT_MAX_TAGS"));
  CHECK(job[1].wait_all(receives, 20 * kSecond).has_value());
  CHECK(job[0].lending() == 0);
}

TEST_CASE("post_sends__on_first_use_that_are_rejected_connect_nobody") {
  Options options;
  options.connects_on_use = true;
  Job job(3, options);
  Batch batch(2);
  batch.sends[1].to = 2;
  batch.sends[1].tag = 1ULL << 63;
  CHECK(has(batch_error(ErrorCode::kConfig, [&] { job[0].post_sends(batch.sends); }), "number 2 of 2"));
  CHECK_FALSE(job[0].is_peer_up(1));
  CHECK_FALSE(job[0].is_peer_up(2));
}

TEST_CASE("post_sends__on_first_use_set_up_all_connections_together") {
  Options options;
  options.connects_on_use = true;
  Job job(4, options);
  Batch batch(3);
  for (std::uint16_t rank = 1; rank < 4; ++rank) batch.sends[rank - 1U].to = rank;
  std::vector<OperationId> receives;
  for (std::uint16_t rank = 1; rank < 4; ++rank) receives.push_back(job[rank].post_recv(batch.receives[rank - 1U]));
  const auto sends = job[0].post_sends(batch.sends);
  REQUIRE(job[0].wait_all(sends, 20 * kSecond).has_value());
  for (std::size_t rank = 1; rank < 4; ++rank) CHECK_FALSE(job.finish(rank, receives[rank - 1]).failed());
  CHECK(batch.arrived == batch.data);
}
