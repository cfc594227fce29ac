// Two engines with several paths over loopback: spraying, questions about the paths from another thread, refusals.
#include <doctest/doctest.h>

#include <atomic>
#include <exception>
#include <memory>
#include <numeric>
#include <thread>

#include "base/time.h"
#include "mlt.h"

namespace {

using namespace mlt;

using mlt::base::kSecond;

struct Pair {
  explicit Pair(const Options& first, const Options& second) {
    const Options* both[] = {&first, &second};
    for (std::uint16_t rank = 0; rank < 2; ++rank) {
      Options options = *both[rank];
      options.rank = rank;
      options.ranks = 2;
      engines[rank] = std::make_unique<Engine>(options);
    }
    std::exception_ptr failed[2];
    std::thread other([&] { connect(1, failed[1]); });
    connect(0, failed[0]);
    other.join();
    for (const std::exception_ptr& one : {failed[1], failed[0]}) {
      if (one) std::rethrow_exception(one);
    }
  }
  void connect(std::uint16_t rank, std::exception_ptr& failed) {
    const std::uint16_t peer = rank == 0 ? 1 : 0;
    const PeerAddress address{peer, "127.0.0.1", engines[peer]->control_port()};
    try {
      engines[rank]->connect({&address, 1}, kSecond);
    } catch (...) {
      failed = std::current_exception();
    }
  }
  std::unique_ptr<Engine> engines[2];
};

Options with_paths(std::size_t paths) {
  Options options;
  options.paths.resize(paths);
  return options;
}

std::string refusal(const Options& options) {
  try {
    const Engine engine(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("engine__several_paths_carry_a_tensor_while_others_ask_about_them") {
  Options options = with_paths(4);
  options.segment_bytes = 1'432;  // enough packets for an estimate of each path's loss
  options.faults.drop = 0.02;
  Pair pair(options, options);
  std::vector<std::byte> data(4'000'000), got(data.size());
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 31 + (i >> 8));
  std::atomic<bool> done{false};
  std::thread asking([&] {
    while (!done) CHECK(pair.engines[0]->paths(1).size() == 4);
  });
  SendOptions send;
  send.to = 1;
  send.data = data;
  ReceiveOptions receive;
  receive.data = got;
  const OperationId received = pair.engines[1]->post_recv(receive);
  const OperationId sent = pair.engines[0]->post_send(send);
  CHECK(pair.engines[0]->wait(sent, 20 * kSecond)->status == Status::kComplete);
  CHECK(pair.engines[1]->wait(received, 20 * kSecond)->status == Status::kComplete);
  done = true;
  asking.join();
  CHECK(got == data);
  const std::vector<PathStatus> paths = pair.engines[0]->paths(1);
  double share = 0;
  double loss = 0;  // of one path it may be forgotten again: the estimate fades
  for (const PathStatus& path : paths) {
    CHECK(path.packets_sent > 500);
    CHECK(path.runs_sent > 0);
    loss += path.loss;
    share += path.share;
  }
  CHECK(loss > 0);
  CHECK(share == doctest::Approx(1));
}

TEST_CASE("engine__paths_before_connect_are_known_by_their_addresses_alone") {
  Options options = with_paths(2);
  options.ranks = 2;
  Engine engine(options);
  const std::vector<PathStatus> paths = engine.paths(1);
  REQUIRE(paths.size() == 2);
  CHECK(paths[0].local.starts_with("127.0.0.1:"));
  CHECK(paths[0].local != paths[1].local);
  CHECK(paths[1].packets_sent == 0);
}

TEST_CASE("engine__refuses_a_peer_with_another_number_of_paths") {
  std::string text;
  try {
    const Pair pair(with_paths(2), with_paths(1));
  } catch (const Error& error) {
    text = error.what();
    CHECK(error.code() == ErrorCode::kPeerMismatch);
  }
  CHECK(text.find("number of paths differs: rank 0 has 2, rank 1 has 1") != std::string::npos);
}

TEST_CASE("engine__names_the_path_that_cannot_be_opened") {
  Options options = with_paths(2);
  options.paths[1].host = "nowhere";
  CHECK(refusal(options).find("rank 0: path 1: host 'nowhere'") != std::string::npos);
  options = with_paths(2);
  options.host = "::1";
  options.paths[1].host = "fe80::1%lo";
  CHECK(refusal(options).find("path 1: host 'fe80::1%lo' is link-local") != std::string::npos);
  options = with_paths(2);
  options.paths[1].interface = "mlt-none";
  CHECK(refusal(options).find("path 1: interface mlt-none has no IPv4 address") != std::string::npos);
  options = with_paths(2);
  options.paths[0].segments = {"fc00::g"};
  CHECK(refusal(options).find("path 0: segment 'fc00::g' is not an IPv6 address") != std::string::npos);
  CHECK(refusal(with_paths(17)).find("17 paths") != std::string::npos);
}
