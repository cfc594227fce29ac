// Connections on first use: who connects, crossing requests, and ranks that never answer.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <string>

#include "io/control/tcp_socket.h"
#include "unit/io/control/control_world.h"
#include "unit/io/control/raw_client.h"

using namespace mlt;
using base::kMillisecond;
using io::PeerDownCause;
using io_test::control_options;
using io_test::hello_of;
using io_test::Node;
using io_test::RawClient;
using io_test::serve;

namespace {

void know(Node& node, std::uint16_t rank, const io::SocketAddress& address,
          base::DurationNs limit_ns = 20 * base::kSecond) {
  io::OsError error;
  REQUIRE_MESSAGE(node.channel->know(rank, address, limit_ns, error), error.text);
}

void use(Node& node, std::uint16_t rank) { node.channel->use(io::monotonic_now(), rank); }

std::uint64_t count_of(const Node& node, std::string_view counter) {
  return io::counter_value(node.channel->counters(), counter);
}

// Two ranks that know each other's address.
struct UsingPair {
  explicit UsingPair(const io::ControlOptions& zero_options = control_options(0, 2),
                     const io::ControlOptions& one_options = control_options(1, 2))
      : zero(zero_options), one(one_options) {
    know(zero, 1, one.channel->listen_address());
    know(one, 0, zero.channel->listen_address());
  }
  bool are_up() const { return zero.sink.ups.size() == 1 && one.sink.ups.size() == 1; }
  // Nothing else happened, nor happens for a while.
  void check_quiet() {
    CHECK_FALSE(
        serve({&zero, &one}, [&] { return zero.sink.ups.size() + one.sink.ups.size() > 2; }, 100 * kMillisecond));
    for (const Node* node : {&zero, &one}) {
      CHECK(node->sink.downs.empty());
      CHECK(node->sink.refusals.empty());
      CHECK(count_of(*node, "control_refusals") == 0);
      CHECK(count_of(*node, "control_unproved") == 0);
      CHECK(count_of(*node, "control_malformed") == 0);
    }
  }

  Node zero, one;
};

// Of ranks that notice silence after 0.4 s.
io::ControlOptions hasty_options(std::uint16_t rank) {
  io::ControlOptions options = control_options(rank, 2);
  options.heartbeat_ns = 100 * kMillisecond;
  options.dead_after_ns = 400 * kMillisecond;
  return options;
}

}  // namespace

TEST_CASE("know__refuses_repeats_and_what_is_no_peer") {
  Node zero(0, 2);
  const io::SocketAddress address = io::SocketAddress::loopback(AF_INET, 1'000);
  io::OsError error;
  CHECK_FALSE(zero.channel->know(0, address, base::kSecond, error));
  CHECK_FALSE(zero.channel->know(2, address, base::kSecond, error));
  CHECK_FALSE(zero.channel->know(1, io::SocketAddress(), base::kSecond, error));
  CHECK(zero.channel->know(1, address, base::kSecond, error));
  CHECK_FALSE(zero.channel->know(1, address, base::kSecond, error));
}

TEST_CASE("know__of_ranks_that_exchange_nothing_sends_nothing_and_delays_no_goodbye") {
  UsingPair pair;
  CHECK_FALSE(serve({&pair.zero, &pair.one}, [&] { return pair.are_up(); }, 50 * kMillisecond));
  for (Node* node : {&pair.zero, &pair.one}) {
    CHECK(count_of(*node, "control_connect_attempts") == 0);
    CHECK(count_of(*node, "control_accepted") == 0);
    CHECK(node->channel->next_timeout() == base::kNever);
    node->channel->say_goodbye();
    CHECK(node->channel->finished());
  }
}

TEST_CASE("use__by_the_higher_rank_connects") {
  UsingPair pair;
  use(pair.one, 0);
  REQUIRE(serve({&pair.zero, &pair.one}, [&] { return pair.are_up(); }));
  CHECK(count_of(pair.one, "control_connect_attempts") == 1);
  CHECK(count_of(pair.zero, "control_connect_attempts") == 0);
  use(pair.zero, 1);  // it is up
  pair.check_quiet();
}

TEST_CASE("use__by_the_lower_rank_has_the_higher_connect") {
  UsingPair pair;
  use(pair.zero, 1);
  REQUIRE(serve({&pair.zero, &pair.one}, [&] { return pair.are_up(); }));
  CHECK(count_of(pair.zero, "control_connect_attempts") == 1);
  CHECK(count_of(pair.one, "control_connect_attempts") == 1);
  CHECK(pair.zero.sink.ups[0].hello.rank == 1);
  pair.check_quiet();
}

TEST_CASE("use__by_both_at_once_makes_one_connection_without_a_request") {
  UsingPair pair;
  use(pair.zero, 1);
  use(pair.one, 0);
  REQUIRE(serve({&pair.zero, &pair.one}, [&] { return pair.are_up(); }));
  CHECK(count_of(pair.one, "control_accepted") == 0);
  pair.check_quiet();
}

TEST_CASE("use__that_crosses_a_request_makes_one_connection") {
  // The higher rank begins after so many services of the pair since the request left: one for each step of it.
  for (int steps = 0; steps < 12; ++steps) {
    CAPTURE(steps);
    UsingPair pair;
    use(pair.zero, 1);
    REQUIRE(serve({&pair.zero}, [&] { return count_of(pair.zero, "control_connect_attempts") == 1; }));
    for (int i = 0; i < steps; ++i) {
      Node& node = i % 2 == 0 ? pair.one : pair.zero;
      node.channel->service(io::monotonic_now(), node.sink);
    }
    use(pair.one, 0);
    REQUIRE(serve({&pair.one}, [&] { return count_of(pair.one, "control_connect_attempts") == 1; }));
    REQUIRE(serve({&pair.zero, &pair.one}, [&] { return pair.are_up(); }));
    pair.check_quiet();
  }
}

TEST_CASE("use__a_request_that_is_lost_is_repeated") {
  const io::SocketAddress address = Node(1, 2).channel->listen_address();
  Node zero(0, 2);
  know(zero, 1, address);
  use(zero, 1);
  CHECK_FALSE(serve({&zero}, [&] { return !zero.sink.downs.empty(); }, 50 * kMillisecond));
  io::ControlOptions options = control_options(1, 2);
  options.listen = address;
  Node one(options);
  // It does not know yet where rank 0 listens: it can't connect.
  REQUIRE(serve({&zero, &one}, [&] { return count_of(one, "control_malformed") > 0; }));
  know(one, 0, zero.channel->listen_address());
  REQUIRE(serve({&zero, &one}, [&] { return zero.sink.ups.size() == 1 && one.sink.ups.size() == 1; }));
  CHECK(zero.sink.downs.empty());
}

TEST_CASE("use__of_a_process_that_has_ended_names_it_after_the_silence_limit") {
  for (const std::uint16_t rank : {std::uint16_t{0}, std::uint16_t{1}}) {
    CAPTURE(rank);
    const std::uint16_t other = 1 - rank;
    const io::SocketAddress address = Node(other, 2).channel->listen_address();
    Node node(hasty_options(rank));
    know(node, other, address);
    const base::TimeNs began = io::monotonic_now();
    use(node, other);
    REQUIRE(serve({&node}, [&] { return node.sink.downs.size() == 1; }));
    CHECK(io::monotonic_now() - began >= 400 * kMillisecond);
    CHECK(io::monotonic_now() - began < 2 * base::kSecond);
    CHECK(node.sink.downs[0].rank == other);
    CHECK(node.sink.downs[0].cause == PeerDownCause::kUnreachable);
    CHECK_CONTAINS(node.sink.downs[0].text,
                   "could not reach rank " + std::to_string(other) + " at " + address.format());
    CHECK_CONTAINS(node.sink.downs[0].text, "its process has ended");
  }
}

TEST_CASE("use__of_a_rank_that_accepts_TCP_and_never_answers_ends_at_the_limit") {
  for (const std::uint16_t rank : {std::uint16_t{0}, std::uint16_t{1}}) {
    CAPTURE(rank);
    io::OsError error;
    const auto listener = io::listen_tcp(io::SocketAddress::loopback(AF_INET, 0), 0, error);
    REQUIRE(listener.has_value());
    io::ControlOptions options = hasty_options(rank);
    options.hello_timeout_ns = 500 * kMillisecond;  // longer than the silence limit: it has several attempts
    Node node(options);
    const std::uint16_t other = 1 - rank;
    know(node, other, io::SocketAddress::local_of(listener->get()), 1'300 * kMillisecond);
    const base::TimeNs began = io::monotonic_now();
    use(node, other);
    REQUIRE(serve({&node}, [&] { return node.sink.downs.size() == 1; }));
    CHECK(io::monotonic_now() - began >= 1'290 * kMillisecond);
    CHECK(count_of(node, "control_connect_attempts") >= 2);
    CHECK(node.sink.downs[0].text.find("has ended") == std::string::npos);
    CHECK(node.sink.downs[0].rank == other);
    CHECK(node.sink.downs[0].cause == PeerDownCause::kUnreachable);
    CHECK_CONTAINS(node.sink.downs[0].text, "could not reach rank " + std::to_string(other));
  }
}

TEST_CASE("use__of_a_rank_of_another_version_is_refused_whoever_begins") {
  for (const std::uint16_t rank : {std::uint16_t{0}, std::uint16_t{1}}) {
    CAPTURE(rank);
    io::ControlOptions options = control_options(1, 2);
    options.version = 2;
    UsingPair pair(control_options(0, 2), options);
    Node& first = rank == 0 ? pair.zero : pair.one;
    use(first, 1 - rank);
    REQUIRE(serve({&pair.zero, &pair.one}, [&] { return first.sink.downs.size() == 1; }));
    CHECK(first.sink.downs[0].cause == PeerDownCause::kRefused);
    CHECK_CONTAINS(first.sink.downs[0].text, "protocol version differs");
  }
}

TEST_CASE("use__of_a_rank_with_another_secret_is_refused_whoever_begins") {
  for (const std::uint16_t rank : {std::uint16_t{0}, std::uint16_t{1}}) {
    CAPTURE(rank);
    io::ControlOptions options = control_options(1, 2);
    options.secret = "another secret 0";
    UsingPair pair(control_options(0, 2), options);
    Node& first = rank == 0 ? pair.zero : pair.one;
    use(first, 1 - rank);
    REQUIRE(serve({&pair.zero, &pair.one}, [&] { return first.sink.downs.size() == 1; }));
    CHECK(first.sink.downs[0].cause == PeerDownCause::kRefused);
    CHECK_CONTAINS(first.sink.downs[0].text, "did not prove that it knows the job's secret");
  }
}

TEST_CASE("hello__of_a_lower_rank_without_the_secret_makes_no_rank_connect") {
  io::ControlOptions options = control_options(1, 2);
  options.secret = "the job's secret";
  Node one(options);
  know(one, 0, io::SocketAddress::loopback(AF_INET, 1));
  RawClient client(one, "another secret 0");
  client.say_hello(hello_of(0, 1));
  REQUIRE(serve({&one}, [&] { return count_of(one, "control_unproved") == 1; }));
  CHECK(count_of(one, "control_connect_attempts") == 0);
}

TEST_CASE("hello__of_a_lower_rank_that_is_up_with_another_incarnation_is_refused") {
  UsingPair pair;
  use(pair.one, 0);
  REQUIRE(serve({&pair.zero, &pair.one}, [&] { return pair.are_up(); }));
  RawClient client(pair.one);
  io::Hello hello = hello_of(0, 1);
  hello.incarnation += 1;
  client.say_hello(hello);
  REQUIRE(serve({&pair.zero, &pair.one}, [&] { return pair.one.sink.refusals.size() == 1; }));
  CHECK(count_of(pair.one, "control_connect_attempts") == 1);
  CHECK(pair.one.sink.downs.empty());
  CHECK(pair.zero.sink.downs.empty());
}

TEST_CASE("hello__of_a_lower_rank_that_has_left_is_refused") {
  UsingPair pair;
  use(pair.one, 0);
  REQUIRE(serve({&pair.zero, &pair.one}, [&] { return pair.are_up(); }));
  pair.zero.channel->say_goodbye();
  REQUIRE(serve({&pair.zero, &pair.one}, [&] { return pair.one.sink.downs.size() == 1; }));
  RawClient client(pair.one);
  client.say_hello(hello_of(0, 1));
  REQUIRE(serve({&pair.one}, [&] { return pair.one.sink.refusals.size() == 1; }));
  CHECK(count_of(pair.one, "control_connect_attempts") == 1);
}
