#include "engine/transfer_checksums.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "unit/engine/engine_job.h"

namespace {

using namespace mlt;
using base::kSecond;
using engine::TransferChecksums;

constexpr std::uint32_t kCell = 64;

// Both sides of some transfers from rank 0 to rank 1.
struct ChecksummedPair {
  TransferChecksums sender{0, true, 4, kSecond}, receiver{1, true, 4, kSecond};
  std::vector<std::byte> sent = std::vector<std::byte>(200, std::byte{7}), received = sent;

  static core::Completion ended(OperationId operation, bool is_send, std::uint32_t generation = 0,
                                core::CompletionStatus status = core::CompletionStatus::kComplete) {
    core::Completion completion;
    completion.operation = operation;
    completion.kind = is_send ? core::CompletionKind::kSend : core::CompletionKind::kReceive;
    completion.status = status;
    completion.peer = is_send ? 1 : 0;
    completion.tag = 9;
    completion.generation = generation;
    completion.total_bytes = 200;
    completion.segment_bytes = kCell;
    return completion;
  }
  void post(OperationId operation = 1) {
    core::SendRequest send;
    send.operation = operation;
    send.data = sent;
    sender.on_post(send, kCell);
    core::ReceiveRequest receive;
    receive.operation = operation;
    receive.data = received;
    receiver.on_post(receive);
  }
  // The operation ends at that side; whether it waits.
  bool end(TransferChecksums& side, const core::Completion& completion, TransferChecksums::Report& report,
           Completion& done) {
    done = {};
    done.operation = completion.operation;
    if (core::is_failure(completion.status)) done.error = "failed";
    report = side.report(completion);
    return side.hold(10, completion, done);
  }
};

}  // namespace

TEST_CASE("transfer_checksums__each_side_waits_for_the_other_and_compares") {
  for (const bool is_damaged : {false, true}) {
    CAPTURE(is_damaged);
    ChecksummedPair pair;
    pair.post();
    if (is_damaged) pair.received[130] = std::byte{6};
    TransferChecksums::Report of_receive, of_send;
    Completion received, sent;
    CHECK(pair.end(pair.receiver, pair.ended(1, false), of_receive, received));
    CHECK(!pair.receiver.poll());
    CHECK(pair.receiver.next_timeout() == 10 + kSecond);
    CHECK(!pair.sender.on_message(1, of_receive));  // it may come before the end of the send
    CHECK(!pair.end(pair.sender, pair.ended(1, true), of_send, sent));
    CHECK(!pair.receiver.on_message(0, of_send));
    received = pair.receiver.poll().value();
    CHECK(received.operation == 1);
    CHECK(pair.receiver.next_timeout() == base::kNever);
    for (const Completion& done : {sent, received}) {
      CHECK(done.failed() == is_damaged);
      if (is_damaged) CHECK(done.status == Status::kCancelled);
      if (is_damaged) CHECK(done.error.find("data of rank 0 arrived changed at rank 1 (checksum sent ") == 0);
    }
    for (const TransferChecksums* side : {&pair.sender, &pair.receiver}) {
      CHECK(side->counts().compared == 1);
      CHECK(side->counts().different == (is_damaged ? 1 : 0));
    }
  }
}

TEST_CASE("transfer_checksums__an_operation_without_one_holds_up_nobody") {
  ChecksummedPair pair;
  pair.post();
  TransferChecksums::Report of_receive, of_send;
  Completion received, sent;
  CHECK(pair.end(pair.receiver, pair.ended(1, false), of_receive, received));
  // The send timed out before it knew that everything had arrived.
  CHECK(!pair.end(pair.sender, pair.ended(1, true, 0, core::CompletionStatus::kTimedOut), of_send, sent));
  CHECK(sent.error == "failed");
  pair.receiver.on_message(0, of_send);
  CHECK(!pair.receiver.poll().value().failed());
  CHECK(pair.receiver.counts().incomplete == 1);
  // A loss within the bound: neither side has one.
  pair.post(2);
  core::Completion lossy = pair.ended(2, false, 1, core::CompletionStatus::kWithinBound);
  lossy.missing_bytes = 64;
  CHECK(!pair.end(pair.receiver, lossy, of_receive, received));
  CHECK(!received.failed());
  CHECK(pair.receiver.counts().incomplete == 2);
  CHECK(pair.receiver.counts().compared == 0);
}

TEST_CASE("transfer_checksums__of_what_arrived_of_a_receive_for_up_to_a_size") {
  ChecksummedPair pair;
  pair.received.resize(500, std::byte{1});
  pair.post();
  TransferChecksums::Report of_receive, of_send;
  Completion received, sent;
  CHECK(pair.end(pair.receiver, pair.ended(1, false), of_receive, received));
  pair.end(pair.sender, pair.ended(1, true), of_send, sent);
  pair.receiver.on_message(0, of_send);
  CHECK(!pair.receiver.poll().value().failed());
  CHECK(pair.receiver.counts().compared == 1);
}

TEST_CASE("transfer_checksums__a_wait_ends_with_the_peer_the_caller_or_its_time") {
  ChecksummedPair pair;
  TransferChecksums::Report report;
  Completion done;
  for (OperationId operation = 1; operation <= 3; ++operation) {
    pair.post(operation);
    CHECK(pair.end(pair.receiver, pair.ended(operation, false, static_cast<std::uint32_t>(operation)), report, done));
  }
  CHECK(!pair.receiver.take(7));
  CHECK(pair.receiver.take(2).value().operation == 2);
  pair.receiver.on_timeout(9 + kSecond);
  CHECK(!pair.receiver.poll());
  pair.receiver.on_timeout(10 + kSecond);
  for (const OperationId operation : {1U, 3U}) {
    done = pair.receiver.poll().value();
    CHECK(done.operation == operation);
    CHECK(done.status == Status::kTimedOut);
    CHECK(done.error.find("rank 0") != std::string::npos);
  }
  pair.post(4);
  CHECK(pair.end(pair.receiver, pair.ended(4, false, 4), report, done));
  pair.receiver.on_peer_down(5, "another");
  CHECK(!pair.receiver.poll());
  pair.receiver.on_peer_down(0, "it died");
  done = pair.receiver.poll().value();
  CHECK(done.status == Status::kPeerFailed);
  CHECK(done.error.find("it died") != std::string::npos);
  CHECK(pair.receiver.next_timeout() == base::kNever);
}

TEST_CASE("transfer_checksums__reports_of_operations_that_are_unknown_here_are_limited") {
  ChecksummedPair pair;
  TransferChecksums::Report report;
  Completion done;
  for (std::uint32_t generation = 0; generation < 6; ++generation) {  // 4 are kept
    pair.post();
    pair.end(pair.sender, pair.ended(1, true, generation), report, done);
    pair.receiver.on_message(0, report);
  }
  for (std::uint32_t generation = 0; generation < 6; ++generation) {
    pair.post();
    CHECK(pair.end(pair.receiver, pair.ended(1, false, generation), report, done) == (generation < 2));
  }
  pair.receiver.on_message(0, std::span(report).first(23));  // ignored
}

TEST_CASE("transfer_checksums__sides_that_differ_know_it_and_refuse") {
  ChecksummedPair pair;
  TransferChecksums without(1, false, 4, kSecond);
  TransferChecksums::Report report;
  Completion done;
  pair.post();
  CHECK(without.refusal(0) == "");
  CHECK(pair.end(pair.sender, pair.ended(1, true), report, done));
  CHECK(without.on_message(0, report));
  CHECK(!without.on_message(0, report));  // once
  CHECK(!without.on_message(2, {}));
  const std::string text = "rank 0 takes checksums and rank 1 none: set checksums (MLT_CHECKSUMS) on all ranks alike";
  CHECK(without.refusal(0) == text);
  CHECK(without.refusal(2) == "");
  CHECK(!pair.sender.on_message(1, {}));
  CHECK(pair.sender.refusal(1) == text);
  done = pair.sender.poll().value();
  CHECK(done.status == Status::kCancelled);
  CHECK(done.error == text);
  pair.post(2);
  CHECK(!pair.end(pair.sender, pair.ended(2, true, 1), report, done));  // one that was in progress
  CHECK(done.error == text);
}

TEST_CASE("engine__sends_and_receives_with_checksums") {
  Options options;
  options.checksums = true;
  options.operation_timeout_ns = 20 * kSecond;
  engine_test::Job job(2, options);
  std::vector<float> sent(100'000, 1.5F), received(200'000);
  for (int i = 0; i < 20; ++i) {
    SendOptions send;
    send.to = 1;
    send.tag = 5;
    send.data = std::as_bytes(std::span(sent)).first(static_cast<std::size_t>(i) * 20'000);
    ReceiveOptions receive;
    receive.from = 0;
    receive.tag = 5;
    receive.data = std::as_writable_bytes(std::span(received));
    receive.up_to = true;
    const OperationId one = job[0].post_send(send), two = job[1].post_recv(receive);
    CHECK(job.finish(0, one).error == "");
    CHECK(job.finish(1, two).error == "");
    CHECK(std::memcmp(sent.data(), received.data(), send.data.size()) == 0);
  }
  for (const std::size_t rank : {0U, 1U}) {
    CHECK(job.count(rank, "checksums_compared") == 20);
    CHECK(job.count(rank, "checksums_different") == 0);
  }
}

// Ranks that find each other without the rendezvous of Python, which compares the option.
TEST_CASE("engine__what_is_in_progress_between_ranks_with_and_without_checksums_fails_at_once_and_names_both") {
  for (const std::size_t sender : {0U, 1U}) {
    CAPTURE(sender);
    const std::size_t receiver = 1 - sender;
    Options given;
    given.operation_timeout_ns = 20 * kSecond;
    engine_test::Job job(2, given, [](Options& options) { options.checksums = options.rank == 0; });
    std::vector<std::byte> sent(50'000, std::byte{3}), received(sent.size());
    std::vector<OperationId> receives;
    const auto began = std::chrono::steady_clock::now();
    for (std::uint64_t tag = 0; tag < 3; ++tag) {  // of tags 1 and 2 there is no send
      ReceiveOptions receive;
      receive.from = static_cast<std::uint16_t>(sender);
      receive.tag = tag;
      receive.data = received;
      receives.push_back(job[receiver].post_recv(receive));
    }
    SendOptions send;
    send.to = static_cast<std::uint16_t>(receiver);
    send.data = sent;
    send.tag = 3;  // no receive
    const OperationId unmatched = job[sender].post_send(send);
    send.tag = 0;
    const OperationId first = job[sender].post_send(send);
    const std::string text = "rank 0 takes checksums and rank 1 none";
    const auto check = [&](std::size_t rank, OperationId operation) {
      const Completion done = job.finish(rank, operation);
      CHECK(done.status == Status::kCancelled);
      CHECK(done.error.find(text) != std::string::npos);
    };
    const Completion at_sender = job.finish(sender, first), at_receiver = job.finish(receiver, receives.front());
    // The side without checksums had nothing to compare.
    const Completion& compared = sender == 0 ? at_sender : at_receiver;
    CHECK(compared.error.find(text) != std::string::npos);
    check(sender, unmatched);
    for (std::size_t i = 1; i < receives.size(); ++i) check(receiver, receives[i]);
    check(sender, job[sender].post_send(send));
    CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));
  }
}
