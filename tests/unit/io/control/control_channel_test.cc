#include "io/control/control_channel.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "io/control/tcp_socket.h"
#include "unit/io/control/control_world.h"
#include "unit/io/control/raw_client.h"

using namespace mlt;
using io::ControlSendStatus;
using io::PeerDownCause;
using io_test::control_options;
using io_test::Couple;
using io_test::hello_of;
using io_test::Node;
using io_test::RawClient;
using io_test::serve;

namespace {

constexpr std::uint8_t kType = io::kFirstMessageType;

// Ranks 1 to `ranks` - 1 of a job of `world`, each up at rank 0.
std::vector<std::unique_ptr<RawClient>> connected_clients(Node& zero, std::uint16_t world, std::uint16_t ranks) {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (std::uint16_t rank = 1; rank < ranks; ++rank) {
    clients.push_back(std::make_unique<RawClient>(zero));
    io::Hello hello = hello_of(rank, 0);
    hello.world_size = world;
    clients.back()->say_hello(hello);
    clients.back()->confirm();
    REQUIRE(serve({&zero}, [&] { return zero.sink.ups.size() == rank; }));
  }
  return clients;
}

std::vector<std::byte> bytes_of(std::string_view text) {
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// The process may open no further descriptor: every number below the client's is taken. Until it is destroyed.
class NoDescriptors {
 public:
  explicit NoDescriptors(RawClient& client) {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(client.fd().get()) + 1;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("open__port_taken_names_address_and_way_out") {
  const Node first(0, 1);
  io::ControlOptions options = control_options(0, 1);
  options.listen = first.channel->listen_address();
  io::OsError error;
  CHECK(io::ControlChannel::open(options, error) == nullptr);
  CHECK(error.code == io::OsErrorCode::kAddressInUse);
  CHECK_CONTAINS(error.text, options.listen.format());
  CHECK_CONTAINS(error.text, "EADDRINUSE");
  CHECK_CONTAINS(error.text, "choose another one");
}

TEST_CASE("open__refuses_options_that_make_no_sense") {
  const auto refused = [](auto change) {
    io::ControlOptions options = control_options(0, 2);
    change(options);
    io::OsError error;
    CHECK(io::ControlChannel::open(options, error) == nullptr);
    CHECK(error.code == io::OsErrorCode::kBadArgument);
    CHECK(!error.text.empty());
  };
  refused([](io::ControlOptions& o) { o.rank = 2; });
  refused([](io::ControlOptions& o) { o.world_size = 0; });
  refused([](io::ControlOptions& o) { o.cookies.pop_back(); });
  refused([](io::ControlOptions& o) { o.heartbeat_ns = 0; });
  refused([](io::ControlOptions& o) { o.dead_after_ns = o.heartbeat_ns; });
  refused([](io::ControlOptions& o) { o.outgoing_limit_bytes = o.max_message_bytes; });
  refused([](io::ControlOptions& o) { o.listen = {}; });
  refused([](io::ControlOptions& o) { o.paths.clear(); });
  refused([](io::ControlOptions& o) { o.paths.resize(17, o.paths[0]); });
  refused([](io::ControlOptions& o) { o.paths[0].port = 0; });
}

TEST_CASE("connect_to__and_expect_refuse_the_wrong_direction_and_repeats") {
  Node one(1, 3);
  io::OsError error;
  const io::SocketAddress somewhere = io::SocketAddress::loopback(AF_INET, 9);
  CHECK(!one.channel->connect_to(0, 2, somewhere, 1, error));
  CHECK_CONTAINS(error.text, "the higher rank connects to the lower");
  CHECK(!one.channel->connect_to(0, 1, somewhere, 1, error));
  CHECK(!one.channel->expect(0, 0, 1, error));
  CHECK(!one.channel->expect(0, 3, 1, error));
  CHECK(!one.channel->connect_to(0, 0, {}, 1, error));
  CHECK(one.channel->connect_to(0, 0, somewhere, 1, error));
  CHECK(!one.channel->connect_to(0, 0, somewhere, 1, error));
  CHECK_CONTAINS(error.text, "already given");
}

TEST_CASE("service__brings_a_mesh_up_and_each_side_knows_the_other") {
  constexpr std::uint16_t kWorld = 4;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<Node*> all;
  for (std::uint16_t rank = 0; rank < kWorld; ++rank) {
    nodes.push_back(std::make_unique<Node>(rank, kWorld));
    all.push_back(nodes.back().get());
  }
  for (std::uint16_t rank = 0; rank < kWorld; ++rank) {
    for (std::uint16_t other = 0; other < rank; ++other) nodes[rank]->connect_to(other, *nodes[other]);
    for (auto other = static_cast<std::uint16_t>(rank + 1); other < kWorld; ++other) nodes[rank]->expect(other);
  }
  REQUIRE(serve(all, [&] {
    return std::all_of(all.begin(), all.end(), [](const Node* node) { return node->sink.ups.size() == kWorld - 1; });
  }));
  for (std::uint16_t rank = 0; rank < kWorld; ++rank) {
    for (const io::PeerHello& peer : nodes[rank]->sink.ups) {
      const std::uint16_t other = peer.hello.rank;
      CHECK(other != rank);
      CHECK(nodes[rank]->channel->is_up(other));
      CHECK(peer.hello.cookie == 100U * other + rank);
      CHECK(peer.hello.incarnation == 1'000U + other);
      CHECK(peer.hello.segment_bytes == 1'400);
      CHECK(peer.hello.window_bytes == 1U << 20);
      CHECK(peer.hello.early_segments == 512);
      CHECK(peer.udp_addresses.at(0) ==
            io::SocketAddress::loopback(AF_INET, static_cast<std::uint16_t>(20'000 + other)));
      CHECK(peer.control_address == nodes[other]->channel->listen_address());
    }
    CHECK(nodes[rank]->sink.downs.empty());
    CHECK(nodes[rank]->sink.refusals.empty());
  }
}

TEST_CASE("hello__names_each_path_by_its_own_address_or_that_of_the_connection") {
  io::ControlOptions options[2] = {control_options(0, 2), control_options(1, 2)};
  for (io::ControlOptions& one : options) one.paths.push_back({one.paths[0].address, 30'000});
  options[1].paths[1].address = io::SocketAddress::from_host("192.0.2.7", 0)->ip_bytes();
  Couple couple(options[0], options[1]);
  const std::vector<io::SocketAddress>& of_one = couple.zero.sink.ups[0].udp_addresses;
  REQUIRE(of_one.size() == 2);
  CHECK(of_one[0].format() == "127.0.0.1:20001");
  CHECK(of_one[1].format() == "192.0.2.7:30000");
  CHECK(couple.one.sink.ups[0].udp_addresses[1].format() == "127.0.0.1:30000");
}

TEST_CASE("hello__a_path_of_another_ip_version_is_malformed") {
  Node zero(0, 2);
  io::Hello hello = hello_of(1, 0);
  hello.paths[0].address = io::SocketAddress::from_host("2001:db8::1", 0)->ip_bytes();
  RawClient client(zero);
  client.say_hello(hello);
  REQUIRE(serve({&zero}, [&] { return zero.sink.refusals.size() == 1; }));
  CHECK_CONTAINS(zero.sink.refusals[0], "a path of another IP version");
  CHECK(zero.sink.ups.empty());
}

TEST_CASE("send__messages_arrive_in_order_and_whole_whatever_their_size") {
  Couple couple;
  std::vector<std::vector<std::byte>> sent;
  for (std::size_t i = 0; i < 40; ++i) {
    const std::size_t size = i == 0 ? 0 : i == 1 ? control_options(0, 2).max_message_bytes : i * i * 37;
    std::vector<std::byte> message(size);
    for (std::size_t at = 0; at < size; ++at) message[at] = static_cast<std::byte>(at * 31 + i);
    sent.push_back(std::move(message));
    REQUIRE(couple.one.channel->send(0, static_cast<std::uint8_t>(kType + i), sent.back()) ==
            ControlSendStatus::kQueued);
  }
  REQUIRE(serve({&couple.zero, &couple.one}, [&] { return couple.zero.sink.messages.size() == sent.size(); }));
  for (std::size_t i = 0; i < sent.size(); ++i) {
    CHECK(couple.zero.sink.messages[i].rank == 1);
    CHECK(couple.zero.sink.messages[i].type == kType + i);
    CHECK(couple.zero.sink.messages[i].payload == sent[i]);
  }
}

TEST_CASE("send__rejects_unconnected_ranks_and_too_large_messages") {
  Couple couple;
  CHECK(couple.zero.channel->send(0, kType, {}) == ControlSendStatus::kNotConnected);
  CHECK(couple.zero.channel->send(9, kType, {}) == ControlSendStatus::kNotConnected);
  const std::vector<std::byte> large(control_options(0, 2).max_message_bytes + 1);
  CHECK(couple.zero.channel->send(1, kType, large) == ControlSendStatus::kTooLarge);
  CHECK(couple.zero.channel->is_up(1));
}

TEST_CASE("send__from_inside_the_sink_is_allowed") {
  Couple couple;
  couple.zero.sink.when_message = [&](const auto& message) {
    CHECK(couple.zero.channel->send(1, kType, message.payload) == ControlSendStatus::kQueued);
  };
  couple.one.channel->send(0, kType, bytes_of("ping"));
  REQUIRE(serve({&couple.zero, &couple.one}, [&] { return couple.one.sink.messages.size() == 1; }));
  CHECK(couple.one.sink.messages[0].payload == bytes_of("ping"));
}

TEST_CASE("send__overflow_fails_that_peer_with_a_cause") {
  io::ControlOptions options = control_options(0, 2);
  options.max_message_bytes = 64 << 10;
  options.outgoing_limit_bytes = 256 << 10;
  Couple couple(options, control_options(1, 2));
  const std::vector<std::byte> message(options.max_message_bytes);
  // Rank 1 is not served: its kernel buffer fills up, then our queue.
  ControlSendStatus status = ControlSendStatus::kQueued;
  for (int i = 0; i < 1'000 && status == ControlSendStatus::kQueued; ++i) {
    status = couple.zero.channel->send(1, kType, message);
  }
  REQUIRE(status == ControlSendStatus::kOverflow);
  CHECK(couple.zero.channel->send(1, kType, {}) == ControlSendStatus::kNotConnected);
  REQUIRE(serve({&couple.zero}, [&] { return couple.zero.sink.downs.size() == 1; }));
  CHECK(couple.zero.sink.downs[0].rank == 1);
  CHECK(couple.zero.sink.downs[0].cause == PeerDownCause::kOverflow);
  CHECK_CONTAINS(couple.zero.sink.downs[0].text, "does not read");
  CHECK_CONTAINS(couple.zero.sink.downs[0].text, "rank 1 at 127.0.0.1:");
}

TEST_CASE("connect_to__retries_until_the_other_side_listens") {
  // A port that is free now and taken by rank 0 later.
  const io::SocketAddress address = Node(0, 2).channel->listen_address();
  Node one(1, 2);
  one.connect_to(0, address, 2 * base::kSecond);
  CHECK(!serve({&one}, [&] { return !one.sink.ups.empty() || !one.sink.downs.empty(); }, 50 * base::kMillisecond));
  CHECK(io::counter_value(one.channel->counters(), "control_connect_attempts") >= 2);
  io::ControlOptions options = control_options(0, 2);
  options.listen = address;
  Node zero(options);
  REQUIRE(serve({&zero, &one}, [&] { return zero.sink.ups.size() == 1 && one.sink.ups.size() == 1; }));
  CHECK(one.sink.downs.empty());
}

TEST_CASE("connect_to__nobody_there_ends_at_the_deadline_naming_rank_and_address") {
  const io::SocketAddress address = Node(0, 2).channel->listen_address();
  Node one(1, 2);
  one.connect_to(0, address, 100 * base::kMillisecond);
  const base::TimeNs start = io::monotonic_now();
  REQUIRE(serve({&one}, [&] { return one.sink.downs.size() == 1; }));
  CHECK(io::monotonic_now() - start >= 95 * base::kMillisecond);
  CHECK(one.sink.downs[0].rank == 0);
  CHECK(one.sink.downs[0].cause == PeerDownCause::kUnreachable);
  CHECK_CONTAINS(one.sink.downs[0].text, "rank 1 could not reach rank 0 at " + address.format());
  CHECK_CONTAINS(one.sink.downs[0].text, "ECONNREFUSED");
  CHECK_CONTAINS(one.sink.downs[0].text, "0.1 s");
}

TEST_CASE("expect__nobody_came_ends_at_the_deadline") {
  Node zero(0, 2);
  zero.expect(1, 50 * base::kMillisecond);
  REQUIRE(serve({&zero}, [&] { return zero.sink.downs.size() == 1; }));
  CHECK(zero.sink.downs[0].rank == 1);
  CHECK(zero.sink.downs[0].cause == PeerDownCause::kUnreachable);
  CHECK_CONTAINS(zero.sink.downs[0].text, "rank 1 did not connect to rank 0 at 127.0.0.1:");
  CHECK_CONTAINS(zero.sink.downs[0].text, "no TCP connection arrived");
}

TEST_CASE("connect_to__without_a_reply_to_TCP_names_a_firewall_and_what_to_open") {
  // A listener whose queue is full: the kernel drops what comes next, as a firewall does.
  io::OsError error;
  const auto listener = io::listen_tcp(io::SocketAddress::loopback(AF_INET, 0), 0, error);
  REQUIRE(listener.has_value());
  REQUIRE(::listen(listener->get(), 0) == 0);
  const io::SocketAddress address = io::SocketAddress::local_of(listener->get());
  std::vector<io::UniqueFd> waiting;
  for (int i = 0; i < 4; ++i) {
    auto fd = io::start_connect_tcp(address, {}, 0, error);
    REQUIRE(fd.has_value());
    waiting.push_back(std::move(*fd));
  }
  Node one(1, 2);
  one.connect_to(0, address, 200 * base::kMillisecond);
  REQUIRE(serve({&one}, [&] { return one.sink.downs.size() == 1; }));
  CHECK(one.sink.downs[0].cause == PeerDownCause::kUnreachable);
  CHECK_CONTAINS(one.sink.downs[0].text, "rank 1 could not reach rank 0 at " + address.format() + " within 0.2 s: ");
  CHECK_CONTAINS(one.sink.downs[0].text, "no reply to TCP. A firewall drops the connections");
  CHECK_CONTAINS(one.sink.downs[0].text, "let TCP pass to this port");
  CHECK_CONTAINS(one.sink.downs[0].text, "net.ipv4.ip_local_port_range");
}

TEST_CASE("hello__mismatches_are_explained_on_both_sides") {
  struct Case {
    const char* name;
    void (*change)(io::ControlOptions&);
    std::vector<std::string> both_say;
  };
  const std::vector<Case> cases = {
      {"world size",
       [](io::ControlOptions& o) {
         o.world_size = 3;
         o.cookies.resize(3);
       },
       {"world size differs: rank 0 has 2, rank 1 has 3", "same WORLD_SIZE"}},
      {"paths",
       [](io::ControlOptions& o) { o.paths.resize(4, o.paths[0]); },
       {"number of paths differs: rank 0 has 1, rank 1 has 4", "MLT_PATHS"}},
  };
  for (const Case& mismatch : cases) {
    CAPTURE(mismatch.name);
    Node zero(0, 2);
    zero.expect(1);
    io::ControlOptions options = control_options(1, 2);
    mismatch.change(options);
    Node one(options);
    one.connect_to(0, zero);
    REQUIRE(serve({&zero, &one}, [&] { return one.sink.downs.size() == 1 && zero.sink.refusals.size() == 1; }));
    CHECK(one.sink.downs[0].rank == 0);
    CHECK(one.sink.downs[0].cause == PeerDownCause::kRefused);
    CHECK_CONTAINS(one.sink.downs[0].text, "rank 0 at " + zero.channel->listen_address().format() + " refused rank 1");
    CHECK_CONTAINS(zero.sink.refusals[0], "rank 0 refused rank 1 at 127.0.0.1:");
    for (const std::string& part : mismatch.both_say) {
      CHECK_CONTAINS(one.sink.downs[0].text, part);
      CHECK_CONTAINS(zero.sink.refusals[0], part);
    }
    CHECK(zero.sink.ups.empty());
    CHECK(one.sink.ups.empty());
    // Who waited for that rank hears the reason again when the wait ends.
    CHECK(serve({&zero, &one}, [&] { return zero.channel->finished() && one.channel->finished(); }));
    zero.channel->service(io::monotonic_now() + base::kSecond * 60, zero.sink);
    REQUIRE(zero.sink.downs.size() == 1);
    CHECK(zero.sink.downs[0].cause == PeerDownCause::kUnreachable);
    CHECK_CONTAINS(zero.sink.downs[0].text, mismatch.both_say[0]);
  }
}

TEST_CASE("hello__a_rank_that_is_taken_is_refused_and_the_first_holder_stays") {
  Couple couple;
  io::ControlOptions options = control_options(1, 2);
  options.incarnation = 77;
  Node twin(options);
  twin.connect_to(0, couple.zero);
  REQUIRE(serve({&couple.zero, &couple.one, &twin}, [&] { return twin.sink.downs.size() == 1; }));
  CHECK(twin.sink.downs[0].cause == PeerDownCause::kRefused);
  CHECK_CONTAINS(twin.sink.downs[0].text, "rank 1 is already taken");
  CHECK_CONTAINS(twin.sink.downs[0].text, "its own RANK");
  REQUIRE(couple.zero.sink.refusals.size() == 1);
  CHECK_CONTAINS(couple.zero.sink.refusals[0], "rank 1 is already taken");
  CHECK(couple.zero.channel->is_up(1));
  CHECK(couple.zero.sink.downs.empty());
}

TEST_CASE("hello__a_rank_out_of_range_or_equal_to_the_listener_is_refused") {
  Node zero(0, 2);
  for (const std::uint16_t rank : {std::uint16_t{5}, std::uint16_t{0}}) {
    zero.sink.refusals.clear();
    RawClient client(zero);
    client.say_hello(hello_of(rank, 0));
    REQUIRE(serve({&zero}, [&] { return zero.sink.refusals.size() == 1; }));
    CHECK_CONTAINS(zero.sink.refusals[0],
                   rank == 5 ? "rank 5 is not below the world size 2" : "rank 0 is already taken");
    // The client hears it, too: a refusal frame, then the end.
    const auto answer = client.read();
    REQUIRE(answer.has_value());
    CHECK(answer->type == static_cast<std::uint8_t>(io::FrameType::kRefuse));
    io::Refusal refusal;
    REQUIRE(io::decode_refusal(std::span(answer->payload).first(io::kRefusalBytes), refusal));
    CHECK(refusal.reason == (rank == 5 ? io::RefusalReason::kRankRange : io::RefusalReason::kRankTaken));
    CHECK(client.read_to_the_end().empty());
  }
}

TEST_CASE("hello__reaching_the_wrong_rank_is_refused") {
  Node one(1, 3);
  Node two(2, 3);
  two.connect_to(0, one);  // the address of rank 1 was given for rank 0
  REQUIRE(serve({&one, &two}, [&] { return two.sink.downs.size() == 1; }));
  CHECK(two.sink.downs[0].cause == PeerDownCause::kRefused);
  CHECK_CONTAINS(two.sink.downs[0].text, "rank 0 and reached rank 1");
}

TEST_CASE("hello__attempt_ended_before_confirming_is_no_death") {
  Node zero(0, 2);
  {
    RawClient client(zero);
    client.say_hello(hello_of(1, 0));
  }
  REQUIRE(serve({&zero}, [&] { return io::counter_value(zero.channel->counters(), "control_abandoned") == 1; }));
  CHECK(zero.sink.ups.empty());
  CHECK(zero.sink.downs.empty());
  Node one(1, 2);
  one.connect_to(0, zero);
  CHECK(serve({&zero, &one}, [&] { return zero.sink.ups.size() == 1; }));
}

TEST_CASE("hello__attempt_ended_before_confirming_is_named_if_no_other_follows") {
  Node zero(0, 2);
  zero.expect(1, 500 * base::kMillisecond);
  {
    RawClient client(zero);
    client.say_hello(hello_of(1, 0));
  }
  REQUIRE(serve({&zero}, [&] { return zero.sink.downs.size() == 1; }));
  CHECK(zero.sink.downs[0].cause == PeerDownCause::kUnreachable);
  CHECK_CONTAINS(zero.sink.downs[0].text, "rank 1 did not connect to rank 0");
  CHECK_CONTAINS(zero.sink.downs[0].text, "before it confirmed it; unless it tries again, its process has ended");
}

TEST_CASE("hello__a_second_attempt_of_the_same_process_replaces_the_first") {
  Node zero(0, 2);
  RawClient first(zero);
  first.say_hello(hello_of(1, 0));
  CHECK(first.read()->type == static_cast<std::uint8_t>(io::FrameType::kHello));
  RawClient second(zero);
  second.say_hello(hello_of(1, 0));
  second.confirm();
  REQUIRE(serve({&zero}, [&] { return zero.sink.ups.size() == 1; }));
  CHECK(zero.sink.refusals.empty());
}

// The confirm is the one frame that its sender does not wait for: it is up, and watches who has not read it yet.
TEST_CASE("hello__who_waits_for_the_confirm_sends_heartbeats") {
  Node zero(0, 2);
  RawClient client(zero);
  client.say_hello(hello_of(1, 0));
  CHECK(client.read()->type == static_cast<std::uint8_t>(io::FrameType::kHello));
  for (int i = 0; i < 3; ++i) {
    const auto frame = client.read();
    REQUIRE(frame.has_value());
    CHECK(frame->type == static_cast<std::uint8_t>(io::FrameType::kHeartbeat));
    CHECK(frame->payload.empty());
  }
  CHECK(zero.sink.ups.empty());
  CHECK(io::counter_value(zero.channel->counters(), "control_heartbeats_sent") == 3);
  client.confirm();
  CHECK(serve({&zero}, [&] { return zero.sink.ups.size() == 1; }));
}

TEST_CASE("hello__silence_ends_after_the_timeout_on_both_sides") {
  io::ControlOptions options = control_options(0, 2);
  options.unproved_timeout_ns = 30 * base::kMillisecond;
  Node zero(options);
  RawClient mute(zero);
  REQUIRE(serve({&zero}, [&] { return zero.sink.refusals.size() == 1; }));
  CHECK_CONTAINS(zero.sink.refusals[0], "did not prove that it knows the job's secret within 0.03 s");

  // A listener that accepts (the kernel does) and never speaks.
  io::OsError error;
  const auto listener = io::listen_tcp(io::SocketAddress::loopback(AF_INET, 0), 0, error);
  REQUIRE(listener.has_value());
  options = control_options(1, 2);
  options.hello_timeout_ns = 100 * base::kMillisecond;
  Node one(options);
  one.connect_to(0, io::SocketAddress::local_of(listener->get()), 250 * base::kMillisecond);
  REQUIRE(serve({&one}, [&] { return one.sink.downs.size() == 1; }));
  CHECK(one.sink.downs[0].cause == PeerDownCause::kUnreachable);
  CHECK_CONTAINS(one.sink.downs[0].text, "TCP connects, but no hello came within 0.1 s");
}

TEST_CASE("read_frames__malformed_bytes_close_that_connection_only") {
  Couple couple;
  const auto reserved = [] {
    std::array<std::byte, io::kFrameHeaderBytes> bytes{};
    io::encode_frame_header({0, static_cast<std::uint8_t>(io::FrameType::kHeartbeat)}, bytes.data());
    bytes[6] = std::byte{1};
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }();
  const auto too_long = [] {
    std::array<std::byte, io::kFrameHeaderBytes> bytes{};
    io::encode_frame_header({1U << 20, static_cast<std::uint8_t>(io::FrameType::kOpen)}, bytes.data());
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }();
  const auto early_message = [] {
    std::array<std::byte, io::kFrameHeaderBytes> bytes{};
    io::encode_frame_header({0, kType}, bytes.data());
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }();
  const auto bad_magic = [] {
    std::vector<std::byte> bytes(io::kFrameHeaderBytes + io::kOpeningBytes);
    io::encode_frame_header({io::kOpeningBytes, static_cast<std::uint8_t>(io::FrameType::kOpen)}, bytes.data());
    return bytes;
  }();
  const std::vector<std::vector<std::byte>> inputs = {reserved, too_long, early_message, bad_magic,
                                                      bytes_of("GET / HTTP/1.1\r\nHost: example\r\n\r\n")};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    CAPTURE(i);
    RawClient client(couple.zero);
    client.say(inputs[i]);
    REQUIRE(serve({&couple.zero, &couple.one}, [&] { return couple.zero.sink.refusals.size() == i + 1; }));
    CHECK_CONTAINS(couple.zero.sink.refusals[i], "sent");
    CHECK_CONTAINS(couple.zero.sink.refusals[i], "127.0.0.1:");
    std::byte rest;
    CHECK(::recv(client.fd().get(), &rest, 1, 0) <= 0);
  }
  CHECK(couple.zero.channel->is_up(1));
  CHECK(couple.zero.sink.downs.empty());
}

TEST_CASE("read_frames__malformed_bytes_of_a_peer_are_its_end_with_a_cause") {
  Node zero(0, 2);
  RawClient client(zero);
  client.say_hello(hello_of(1, 0));
  client.confirm();
  REQUIRE(serve({&zero}, [&] { return zero.sink.ups.size() == 1; }));
  client.say_frame(io::FrameType::kConfirm, {});  // once is enough
  REQUIRE(serve({&zero}, [&] { return zero.sink.downs.size() == 1; }));
  CHECK(zero.sink.downs[0].cause == PeerDownCause::kMalformed);
  CHECK_CONTAINS(zero.sink.downs[0].text, "rank 1 at 127.0.0.1:");
  CHECK_CONTAINS(zero.sink.downs[0].text, "frame of type 3");
}

TEST_CASE("say_goodbye__is_told_apart_from_a_death_and_messages_before_it_arrive") {
  Couple couple;
  couple.one.channel->send(0, kType, bytes_of("last words"));
  couple.one.channel->say_goodbye();
  CHECK(couple.one.channel->send(0, kType, {}) == ControlSendStatus::kNotConnected);
  REQUIRE(serve({&couple.zero, &couple.one},
                [&] { return couple.zero.sink.downs.size() == 1 && couple.one.channel->finished(); }));
  CHECK(couple.zero.sink.downs[0].cause == PeerDownCause::kGoodbye);
  REQUIRE(couple.zero.sink.messages.size() == 1);
  CHECK(couple.zero.sink.messages[0].payload == bytes_of("last words"));
  REQUIRE(couple.one.sink.downs.size() == 1);
  CHECK(couple.one.sink.downs[0].cause == PeerDownCause::kGoodbye);
  CHECK(!couple.zero.channel->is_up(1));
}

TEST_CASE("say_goodbye__by_both_at_once_ends_in_goodbye_on_both_sides") {
  Couple couple;
  couple.zero.channel->say_goodbye();
  couple.one.channel->say_goodbye();
  REQUIRE(serve({&couple.zero, &couple.one},
                [&] { return couple.zero.channel->finished() && couple.one.channel->finished(); }));
  for (const Node* node : {&couple.zero, &couple.one}) {
    REQUIRE(node->sink.downs.size() == 1);
    CHECK(node->sink.downs[0].cause == PeerDownCause::kGoodbye);
  }
}

TEST_CASE("service__a_killed_peer_is_lost_not_gone_by_goodbye") {
  Node zero(0, 2);
  const io::SocketAddress address = zero.channel->listen_address();
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // Only calls that end in _exit or SIGKILL: no doctest, no destructors of the parent's state.
    Node one(1, 2);
    one.connect_to(0, address);
    serve({&one}, [] { return false; }, 10 * base::kSecond);
    ::_exit(0);
  }
  REQUIRE(serve({&zero}, [&] { return zero.sink.ups.size() == 1; }));
  const base::TimeNs killed = io::monotonic_now();
  ::kill(child, SIGKILL);
  REQUIRE(serve({&zero}, [&] { return zero.sink.downs.size() == 1; }));
  CHECK(io::monotonic_now() - killed < base::kSecond);
  CHECK(zero.sink.downs[0].cause == PeerDownCause::kLost);
  CHECK_CONTAINS(zero.sink.downs[0].text, "rank 1 at 127.0.0.1:");
  CHECK_CONTAINS(zero.sink.downs[0].text, "ended without a goodbye");
  CHECK_CONTAINS(zero.sink.downs[0].text, "without closing its context, or was killed");
  ::waitpid(child, nullptr, 0);

  // A process that comes back as the same rank is told that its place is gone.
  io::ControlOptions options = control_options(1, 2);
  options.incarnation = 9'999;
  Node again(options);
  again.connect_to(0, zero);
  REQUIRE(serve({&zero, &again}, [&] { return again.sink.downs.size() == 1; }));
  CHECK_CONTAINS(again.sink.downs[0].text, "Restart the whole job");
}

// Heartbeats on a clock of the test's own, so that a slow machine changes nothing: only what is on its way is waited
// for.
class Beats {
 public:
  Beats() : now_(io::monotonic_now()) {}

  base::TimeNs now() const { return now_; }
  void advance(base::DurationNs by) { now_ += by; }
  void service(Node& node) { node.channel->service(now_, node.sink); }
  // Time passes while `node` runs, so that none of its timers is late.
  void pass(Node& node, base::DurationNs by) {
    for (const base::TimeNs end = now_ + by; now_ < end; service(node)) {
      now_ = std::min(end, std::max(now_ + 1, node.channel->next_timeout()));
    }
  }
  // Serves `node` until something arrived.
  void service_with_input(Node& node) {
    pollfd ready{node.channel->poll_fd(), POLLIN, 0};
    REQUIRE(::poll(&ready, 1, 20'000) == 1);
    service(node);
  }

 private:
  base::TimeNs now_;
};

TEST_CASE("service__a_silent_peer_whose_host_acknowledges_has_until_the_suspension_limit") {
  io::ControlOptions options = control_options(0, 2);
  options.suspended_after_ns = 30 * base::kSecond;
  Node zero(options);
  Node one(1, 2);
  one.connect_to(0, zero);
  zero.expect(1);
  REQUIRE(serve({&zero, &one}, [&] { return zero.sink.ups.size() == 1 && one.sink.ups.size() == 1; }));
  // Rank 1 does not run any more, but its kernel acknowledges the heartbeats. The acknowledgements' ages are the
  // kernel's, in real time: nearly 0.
  Beats beats;
  base::DurationNs silent = 0;
  while (zero.sink.downs.empty() && silent < 40 * base::kSecond) {
    beats.advance(100 * base::kMillisecond);
    silent += 100 * base::kMillisecond;
    beats.service(zero);
    if (zero.sink.downs.empty()) CHECK(zero.channel->next_timeout() > beats.now());
  }
  REQUIRE(zero.sink.downs.size() == 1);
  CHECK(silent >= 29 * base::kSecond);
  CHECK(silent <= 31 * base::kSecond);
  CHECK(zero.sink.quiet.size() >= 25);  // every second
  CHECK(zero.sink.downs[0].cause == PeerDownCause::kSilent);
  CHECK_CONTAINS(zero.sink.downs[0].text, "SIGSTOP");
  CHECK_CONTAINS(zero.sink.downs[0].text, "MLT_SUSPENDED_TIMEOUT");
}

TEST_CASE("say_goodbye__of_a_rank_that_failed_is_a_death_after_its_last_message") {
  Couple couple;
  couple.one.channel->send(0, kType, bytes_of("why"));
  couple.one.channel->say_goodbye(true);
  REQUIRE(serve({&couple.zero, &couple.one},
                [&] { return couple.zero.sink.downs.size() == 1 && couple.one.channel->finished(); }));
  CHECK(couple.zero.sink.downs[0].cause == PeerDownCause::kLost);
  REQUIRE(couple.zero.sink.messages.size() == 1);
  CHECK(couple.zero.sink.messages[0].payload == bytes_of("why"));
}

TEST_CASE("service__heartbeats_keep_idle_peers_up_and_silence_brings_them_down") {
  Couple couple;
  const io::ControlOptions options = control_options(0, 2);
  Beats beats;
  for (int i = 0; i < 20; ++i) {  // 10 s, more than three times what brings a silent peer down
    beats.advance(options.heartbeat_ns);
    beats.service(couple.zero);
    beats.service_with_input(couple.one);
    beats.service_with_input(couple.zero);
  }
  CHECK(couple.zero.sink.downs.empty());
  CHECK(couple.one.sink.downs.empty());
  CHECK(io::counter_value(couple.zero.channel->counters(), "control_heartbeats_received") >= 19);
  // Rank 1 is alive for the kernel, which acknowledges what arrives, but runs no more.
  beats.pass(couple.zero, options.dead_after_ns - base::kMillisecond);
  CHECK(couple.zero.sink.downs.empty());
  beats.pass(couple.zero, base::kMillisecond);
  REQUIRE(couple.zero.sink.downs.size() == 1);
  CHECK(couple.zero.sink.downs[0].cause == PeerDownCause::kSilent);
  CHECK_CONTAINS(couple.zero.sink.downs[0].text, "has been silent for 3 s");
}

TEST_CASE("service__messages_stand_in_for_heartbeats") {
  Couple couple;
  const io::ControlOptions options = control_options(0, 2);
  Beats beats;
  const auto heartbeats = [&] { return io::counter_value(couple.zero.channel->counters(), "control_heartbeats_sent"); };
  beats.service(couple.zero);
  for (int i = 0; i < 4; ++i) {
    couple.zero.channel->send(1, kType, {});
    beats.advance(options.heartbeat_ns / 10 * 9);
    beats.service(couple.zero);
    CHECK(heartbeats() == 0);
  }
  couple.zero.channel->send(1, kType, {});
  beats.advance(options.heartbeat_ns - 1);
  beats.service(couple.zero);
  CHECK(heartbeats() == 0);
  // Two periods without a message, as there were, left a lost one little time to be repeated before the silence limit.
  beats.advance(1);
  CHECK(couple.zero.channel->next_timeout() <= beats.now());
  beats.service(couple.zero);
  CHECK(heartbeats() == 1);
}

TEST_CASE("service__a_heartbeat_that_is_due_soon_leaves_when_one_arrives") {
  const auto heartbeats_after = [](base::DurationNs message_at, base::DurationNs heartbeat_at) {
    Couple couple;
    Beats beats;
    beats.advance(message_at);
    beats.service(couple.zero);
    couple.zero.channel->send(1, kType, {});
    beats.advance(heartbeat_at - message_at);
    beats.service(couple.one);
    REQUIRE(io::counter_value(couple.one.channel->counters(), "control_heartbeats_sent") == 1);
    beats.service_with_input(couple.zero);
    return io::counter_value(couple.zero.channel->counters(), "control_heartbeats_sent");
  };
  const base::DurationNs period = control_options(0, 2).heartbeat_ns;
  CHECK(heartbeats_after(period / 5, period) == 1);
  CHECK(heartbeats_after(period / 10 * 7, period) == 0);
}

TEST_CASE("service__what_was_said_while_we_were_not_scheduled_counts_as_heard") {
  Couple couple;
  const io::ControlOptions options = control_options(0, 2);
  Beats beats;
  beats.advance(options.heartbeat_ns);
  beats.service(couple.one);
  // Rank 0 did not run for longer than dead_after_ns, but rank 1's heartbeat lies in its socket.
  beats.advance(2 * options.dead_after_ns);
  beats.service_with_input(couple.zero);
  CHECK(couple.zero.sink.downs.empty());
}

// epoll hands out 64 events at a time.
TEST_CASE("service__what_many_peers_said_is_all_read_before_silence_is_checked") {
  constexpr std::uint16_t kWorld = 200;
  Node zero(0, kWorld);
  const auto clients = connected_clients(zero, kWorld, kWorld);
  for (const auto& client : clients) client->say_frame(io::FrameType::kHeartbeat, {});
  for (const auto& client : clients) client->wait_until_acknowledged();
  const base::TimeNs late = io::monotonic_now() + kWorld * io::kConnectNsPerRank;
  zero.channel->service(late, zero.sink);
  CHECK(zero.sink.downs.empty());
  CHECK(io::counter_value(zero.channel->counters(), "control_heartbeats_received") == kWorld - 1);
}

TEST_CASE("service__a_peer_that_came_up_just_now_is_not_silent_while_many_others_connect") {
  const auto silent_after = [](std::uint16_t world) {
    Couple couple(control_options(0, world), control_options(1, world));
    const io::ControlOptions options = control_options(0, world);
    Beats beats;
    beats.pass(couple.zero, options.dead_after_ns);
    const bool early = !couple.zero.sink.downs.empty();
    if (!early) beats.pass(couple.zero, world * io::kConnectNsPerRank - options.dead_after_ns);
    CHECK(couple.zero.sink.downs.size() == 1);
    return early ? options.dead_after_ns : world * io::kConnectNsPerRank;
  };
  CHECK(silent_after(2) == 3 * base::kSecond);
  CHECK(silent_after(256) == 25'600 * base::kMillisecond);
}

// All ranks of a job, connected in one process, on a clock of the test's own.
class Mesh {
 public:
  explicit Mesh(std::uint16_t ranks, base::DurationNs suspended_after_ns = 0) {
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      io::ControlOptions options = control_options(rank, ranks);
      options.suspended_after_ns = suspended_after_ns;
      nodes_.push_back(std::make_unique<Node>(options));
      for (std::uint16_t to = 0; to < rank; ++to) nodes_.back()->connect_to(to, *nodes_[to]);
    }
    std::vector<Node*> all;
    for (const auto& node : nodes_) all.push_back(node.get());
    REQUIRE(serve(all, [&] {
      return std::ranges::all_of(all, [&](const Node* node) { return node->sink.ups.size() == ranks - 1U; });
    }));
    now_ = io::monotonic_now();
    pass(ranks * io::kConnectNsPerRank);  // time in which no peer is silent
  }

  Node& operator[](std::size_t rank) { return *nodes_[rank]; }
  std::size_t size() const { return nodes_.size(); }
  base::TimeNs now() const { return now_; }
  void stop(std::size_t rank) { stopped_.push_back(rank); }  // alive for the kernel, which acknowledges what arrives
  void resume() { stopped_.clear(); }

  // In steps of a tenth of a heartbeat period, in which every rank runs often enough to read what the others said.
  void pass(base::DurationNs by) {
    const base::DurationNs step = control_options(0, 2).heartbeat_ns / 10;
    for (const base::TimeNs end = now_ + by; now_ < end;) {
      now_ = std::min(end, now_ + step);
      ::usleep(500);  // a busy system may deliver late, and 60 steps are the silence limit
      for (int turn = 0; turn < 3; ++turn) {
        for (std::size_t rank = 0; rank < nodes_.size(); ++rank) {
          if (std::ranges::find(stopped_, rank) == stopped_.end())
            nodes_[rank]->channel->service(now_, nodes_[rank]->sink);
        }
      }
    }
  }
  std::uint64_t sum_of(std::string_view counter) const {
    std::uint64_t sum = 0;
    for (const auto& node : nodes_) sum += io::counter_value(node->channel->counters(), counter);
    return sum;
  }
  std::size_t downs() const {
    std::size_t sum = 0;
    for (const auto& node : nodes_) sum += node->sink.downs.size();
    return sum;
  }

 private:
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::size_t> stopped_;
  base::TimeNs now_ = 0;
};

TEST_CASE("service__an_idle_rank_exchanges_heartbeats_with_two_neighbours_however_large_the_job") {
  Mesh mesh(24);
  const std::uint64_t before = mesh.sum_of("control_heartbeats_sent");
  mesh.pass(10 * base::kSecond);
  const std::uint64_t sent = mesh.sum_of("control_heartbeats_sent") - before;
  CHECK(mesh.downs() == 0);
  CHECK(sent >= mesh.size() * 2 * 19);
  CHECK(sent <= mesh.size() * 2 * 40);  // 23 peers each would be 11 times as many
}

TEST_CASE("service__who_is_stopped_is_silent_for_neighbours_first_and_for_all_soon_after") {
  Mesh mesh(24);
  mesh.stop(7);
  mesh.pass(control_options(0, 2).dead_after_ns + base::kSecond / 2);
  CHECK(mesh[6].sink.downs.size() == 1);
  CHECK(mesh[8].sink.downs.size() == 1);
  CHECK(mesh[0].sink.downs.empty());
  mesh.pass(control_options(0, 2).dead_after_ns / 2 + base::kSecond / 2);
  for (std::size_t rank = 0; rank < mesh.size(); ++rank) {
    if (rank == 7) continue;
    REQUIRE(mesh[rank].sink.downs.size() == 1);
    CHECK(mesh[rank].sink.downs[0].rank == 7);
    CHECK(mesh[rank].sink.downs[0].cause == PeerDownCause::kSilent);
  }
}

TEST_CASE("service__who_is_stopped_for_8_s_stays_up_everywhere_if_its_host_acknowledges") {
  Mesh mesh(24, 30 * base::kSecond);
  mesh.stop(7);
  mesh.pass(8 * base::kSecond);
  mesh.resume();
  mesh.pass(4 * base::kSecond);
  CHECK(mesh.downs() == 0);
}

TEST_CASE("service__who_is_stopped_for_longer_is_silent_for_all_soon_after_its_neighbours") {
  constexpr base::DurationNs kSuspended = 10 * base::kSecond;
  Mesh mesh(24, kSuspended);
  mesh.stop(7);
  mesh.pass(kSuspended - base::kSecond / 2);
  CHECK(mesh.downs() == 0);
  mesh.pass(base::kSecond);
  CHECK(mesh[6].sink.downs.size() == 1);
  CHECK(mesh[8].sink.downs.size() == 1);
  // Told by them, the others wait no second suspension limit.
  mesh.pass(control_options(0, 2).dead_after_ns / 2 + base::kSecond / 2);
  CHECK(mesh.downs() == mesh.size() - 1);
}

TEST_CASE("service__a_peer_that_an_operation_needs_is_silent_after_the_limit_though_its_neighbours_are_stopped_too") {
  Mesh mesh(24);
  mesh[0].sink.needed = {12};
  mesh.pass(10 * base::kSecond);  // it answers
  CHECK(mesh.downs() == 0);
  for (std::size_t rank = 10; rank < 16; ++rank) mesh.stop(rank);
  mesh.pass(control_options(0, 2).dead_after_ns + 2 * control_options(0, 2).heartbeat_ns);
  REQUIRE(mesh[0].sink.downs.size() == 1);
  CHECK(mesh[0].sink.downs[0].rank == 12);
}

TEST_CASE("service__a_host_of_many_ranks_that_hangs_is_found_at_once_and_not_rank_after_rank") {
  Mesh mesh(24);
  for (std::size_t rank = 10; rank < 20; ++rank) mesh.stop(rank);
  mesh.pass(3 * control_options(0, 2).dead_after_ns);
  for (std::size_t rank = 0; rank < 10; ++rank) CHECK(mesh[rank].sink.downs.size() == 10);
}

TEST_CASE("service__a_message_that_nothing_followed_makes_its_rank_ask") {
  Mesh mesh(24);
  mesh[0].channel->send(12, kType, {});
  mesh.pass(2 * base::kSecond);
  CHECK(mesh.downs() == 0);  // it replied, and no call watches it any more
  mesh.stop(11);
  mesh.stop(12);
  mesh.stop(13);
  mesh[0].channel->send(12, kType, {});
  mesh.pass(control_options(0, 2).dead_after_ns + base::kSecond / 2);
  REQUIRE(mesh[0].sink.downs.size() == 1);
  CHECK(mesh[0].sink.downs[0].rank == 12);
}

TEST_CASE("service__who_is_told_of_a_silence_asks_and_believes_what_it_hears_itself") {
  constexpr std::uint16_t kWorld = 24;
  constexpr std::uint16_t kRanks = 4;  // that connect; 1 and 3 are neighbours of rank 0
  Node zero(0, kWorld);
  const auto clients = connected_clients(zero, kWorld, kRanks);
  for (const auto& client : clients) {
    REQUIRE(client->read()->type == static_cast<std::uint8_t>(io::FrameType::kHello));
  }
  Beats beats;
  const auto beat = [&](base::DurationNs by) {  // the neighbours of rank 0 speak all the time
    for (const base::TimeNs end = beats.now() + by; beats.now() < end;) {
      for (const std::size_t neighbour : {0U, 2U}) {
        clients[neighbour]->say_frame(io::FrameType::kHeartbeat, {});
        clients[neighbour]->wait_until_acknowledged();
      }
      beats.pass(zero, base::kSecond / 2);
    }
  };
  const auto asks = [&] { return io::counter_value(zero.channel->counters(), "control_heartbeat_requests_sent"); };
  beat(10 * base::kSecond);
  CHECK(zero.sink.downs.empty());  // rank 2 was silent, but no call watches it
  REQUIRE(asks() == 0);
  const std::array<std::byte, io::kSilentPayloadBytes> two{std::byte{2}};
  clients[0]->say_frame(io::FrameType::kSilent, two);
  clients[0]->wait_until_acknowledged();
  beats.service_with_input(zero);
  beats.pass(zero, 1);
  CHECK(asks() == 1);
  CHECK(clients[1]->read()->type == static_cast<std::uint8_t>(io::FrameType::kHeartbeatRequest));
  clients[1]->say_frame(io::FrameType::kHeartbeat, {});
  clients[1]->wait_until_acknowledged();
  beat(10 * base::kSecond);
  CHECK(zero.sink.downs.empty());
  // A rank that is not up, or none at all, changes nothing.
  for (const std::byte absent : {std::byte{9}, std::byte{200}}) {
    const std::array<std::byte, io::kSilentPayloadBytes> payload{absent};
    clients[0]->say_frame(io::FrameType::kSilent, payload);
  }
  beat(base::kSecond);
  CHECK(zero.sink.downs.empty());
  CHECK(asks() == 1);
  clients[0]->say_frame(io::FrameType::kSilent, two);
  clients[0]->wait_until_acknowledged();
  beat(2 * base::kSecond);
  REQUIRE(zero.sink.downs.size() == 1);
  CHECK(zero.sink.downs[0].rank == 2);
}

TEST_CASE("service__time_in_which_this_process_did_not_run_is_no_silence_of_its_peers") {
  Couple couple;
  const io::ControlOptions options = control_options(0, 2);
  Beats beats;
  beats.pass(couple.zero, options.heartbeat_ns);
  beats.advance(10 * options.dead_after_ns);  // the host was suspended, rank 1 with it
  beats.service(couple.zero);
  CHECK(couple.zero.sink.downs.empty());
  beats.pass(couple.zero, options.dead_after_ns);
  CHECK(couple.zero.sink.downs.size() == 1);
}

TEST_CASE("hello_timeout__grows_with_the_job") {
  CHECK(io::hello_timeout_of(2) == 5 * base::kSecond);
  CHECK(io::hello_timeout_of(256) == 25'600 * base::kMillisecond);
  CHECK(io::hello_timeout_of(65'535) == 60 * base::kSecond);
}

TEST_CASE("accept__out_of_descriptors_pauses_the_listener_and_resumes") {
  Node zero(0, 2);
  RawClient client(zero);
  std::optional<NoDescriptors> out_of_descriptors(std::in_place, client);
  zero.channel->service(io::monotonic_now(), zero.sink);
  const base::TimeNs paused_until = zero.channel->next_timeout();
  const bool still_readable = [&] {
    pollfd ready{zero.channel->poll_fd(), POLLIN, 0};
    return ::poll(&ready, 1, 0) != 0;
  }();
  out_of_descriptors.reset();
  CHECK(zero.sink.ups.empty());
  CHECK(!still_readable);
  CHECK(paused_until <= io::monotonic_now() + 100 * base::kMillisecond);
  client.say_hello(hello_of(1, 0));
  client.confirm();
  CHECK(serve({&zero}, [&] { return zero.sink.ups.size() == 1; }));
}

TEST_CASE("accept__out_of_descriptors_closes_a_client_that_has_proved_nothing") {
  Node zero(0, 2);
  RawClient idle(zero);
  REQUIRE(serve({&zero}, [&] { return io::counter_value(zero.channel->counters(), "control_accepted") == 1; }));
  RawClient client(zero);
  std::optional<NoDescriptors> out_of_descriptors(std::in_place, client);
  zero.channel->service(io::monotonic_now(), zero.sink);
  zero.channel->service(io::monotonic_now(), zero.sink);
  out_of_descriptors.reset();
  CHECK(io::counter_value(zero.channel->counters(), "control_too_many_pending") == 1);
  CHECK(io::counter_value(zero.channel->counters(), "control_accepted") == 2);
  CHECK(!idle.read());
}

TEST_CASE("service__works_over_IPv6") {
  io::ControlOptions options = control_options(0, 2);
  options.listen = io::SocketAddress::loopback(AF_INET6, 0);
  io::OsError error;
  if (io::ControlChannel::open(options, error) == nullptr) {
    MESSAGE("no IPv6 on this machine: ", error.text);
    return;
  }
  Node zero(options);
  io::ControlOptions other = control_options(1, 2);
  other.listen = options.listen;
  Node one(other);
  one.connect_to(0, zero);
  REQUIRE(serve({&zero, &one}, [&] { return zero.sink.ups.size() == 1 && one.sink.ups.size() == 1; }));
  CHECK(zero.sink.ups[0].udp_addresses.at(0).format() == "[::1]:20001");
}
