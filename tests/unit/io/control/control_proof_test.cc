// What a client gets from a control port that does not know the job's secret: nothing, and not for long.
#include <doctest/doctest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "io/control/client_sources.h"
#include "io/control/proof.h"
#include "io/control/tcp_socket.h"
#include "unit/io/control/control_world.h"
#include "unit/io/control/raw_client.h"

using namespace mlt;
using io::FrameType;
using io::PeerDownCause;
using io::ProofRole;
using io_test::control_options;
using io_test::Couple;
using io_test::hello_of;
using io_test::Node;
using io_test::RawClient;
using io_test::serve;

namespace {

const std::string kSecret = "a secret of more than sixteen bytes";

io::ControlOptions with_secret(std::uint16_t rank, const std::string& secret = kSecret) {
  io::ControlOptions options = control_options(rank, 2);
  options.secret = secret;
  return options;
}

std::uint64_t count(const Node& node, std::string_view name) {
  return io::counter_value(node.channel->counters(), name);
}

std::vector<std::byte> payload_of(const io::Hello& hello) {
  std::vector<std::byte> payload(io::kHelloMaxBytes);
  payload.resize(io::encode_hello(hello, payload.data()));
  return payload;
}

}  // namespace

TEST_CASE("job_key__proves_role_frame_connection_and_job") {
  const io::JobKey key(kSecret, 7);
  const std::array<std::byte, 4> transcript = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  const std::array<std::byte, 2> payload = {std::byte{5}, std::byte{6}};
  const io::Proof proof = key.prove(ProofRole::kConnecting, 6, transcript, payload);
  CHECK(key.verify(proof, ProofRole::kConnecting, 6, transcript, payload));
  CHECK(!key.verify(proof, ProofRole::kListening, 6, transcript, payload));
  CHECK(!key.verify(proof, ProofRole::kConnecting, 2, transcript, payload));
  CHECK(!key.verify(proof, ProofRole::kConnecting, 6, std::span(transcript).first(3), payload));
  CHECK(!key.verify(proof, ProofRole::kConnecting, 6, transcript, std::span(payload).first(1)));
  CHECK(!key.verify(std::span(proof).first(31), ProofRole::kConnecting, 6, transcript, payload));
  CHECK(!io::JobKey(kSecret, 8).verify(proof, ProofRole::kConnecting, 6, transcript, payload));
  CHECK(!io::JobKey(kSecret + "x", 7).verify(proof, ProofRole::kConnecting, 6, transcript, payload));
  // HMAC fills a short key with zeros; the root key tells these apart.
  CHECK(!io::JobKey(kSecret + std::string(1, '\0'), 7).verify(proof, ProofRole::kConnecting, 6, transcript, payload));
  CHECK(!io::JobKey(std::string(32, '\0'), 7)
             .verify(io::JobKey("", 7).prove(ProofRole::kConnecting, 6, transcript, payload), ProofRole::kConnecting, 6,
                     transcript, payload));
  io::Proof changed = proof;
  changed[31] ^= std::byte{1};
  CHECK(!key.verify(changed, ProofRole::kConnecting, 6, transcript, payload));
}

TEST_CASE("handshake__a_client_without_the_secret_gets_no_field_of_the_job") {
  Couple couple(with_secret(0), with_secret(1));
  RawClient client(couple.zero, "another secret of sixteen bytes");
  CHECK(!client.open());  // it sees that rank 0 has another secret, and that is all
  client.say_proved(FrameType::kHello, payload_of(hello_of(1, 0)));
  CHECK(client.read_to_the_end().empty());
  CHECK(count(couple.zero, "control_unproved") == 1);
  CHECK(count(couple.zero, "control_refusals") == 0);
  CHECK(couple.zero.channel->is_up(1));
  CHECK(couple.zero.sink.ups.size() == 1);
  REQUIRE(couple.zero.sink.refusals.size() == 1);
  CHECK_CONTAINS(couple.zero.sink.refusals[0], "did not prove that it knows the job's secret");
  CHECK(couple.zero.sink.refusals[0].find(kSecret) == std::string::npos);
}

TEST_CASE("handshake__a_hello_or_anything_else_before_an_opening_is_answered_with_nothing") {
  Couple couple(with_secret(0), with_secret(1));
  for (const FrameType type : {FrameType::kHello, FrameType::kConfirm, FrameType::kHeartbeat, FrameType::kRefuse}) {
    RawClient client(couple.zero, kSecret);
    client.say_frame(type, type == FrameType::kHello ? payload_of(hello_of(1, 0)) : std::vector<std::byte>{});
    CHECK(client.read_to_the_end().empty());
  }
  CHECK(count(couple.zero, "control_malformed") == 4);
}

TEST_CASE("handshake__refuses_a_reflected_and_a_replayed_proof") {
  Node zero(with_secret(0));
  {
    RawClient client(zero, kSecret);
    REQUIRE(client.open());
    client.say_proved(FrameType::kHello, payload_of(hello_of(1, 0)), ProofRole::kListening);
    CHECK(client.read_to_the_end().empty());
  }
  // The proof of one connection is worth nothing on the next: the listening side drew another nonce.
  const std::vector<std::byte> hello = payload_of(hello_of(1, 0));
  std::vector<std::byte> recorded = hello;
  RawClient first(zero, kSecret);
  REQUIRE(first.open());
  const io::Proof proof = first.prove(FrameType::kHello, hello);
  recorded.insert(recorded.end(), proof.begin(), proof.end());
  RawClient second(zero, kSecret);
  second.open_as(first);
  second.say_frame(FrameType::kHello, recorded);
  CHECK(second.read_to_the_end().empty());
  CHECK(count(zero, "control_unproved") == 2);
  // On its own connection it is good.
  first.say_frame(FrameType::kHello, recorded);
  CHECK(first.read()->type == static_cast<std::uint8_t>(FrameType::kHello));
}

TEST_CASE("handshake__a_changed_hello_has_no_proof") {
  Node zero(with_secret(0));
  RawClient client(zero, kSecret);
  REQUIRE(client.open());
  std::vector<std::byte> hello = payload_of(hello_of(1, 0));
  const io::Proof proof = client.prove(FrameType::kHello, hello);
  hello[32] ^= std::byte{1};  // the cookie
  hello.insert(hello.end(), proof.begin(), proof.end());
  client.say_frame(FrameType::kHello, hello);
  CHECK(client.read_to_the_end().empty());
  CHECK(count(zero, "control_unproved") == 1);
}

TEST_CASE("handshake__ranks_with_other_secrets_or_jobs_do_not_meet_and_say_why") {
  bool other_job = false;
  SUBCASE("another secret") { other_job = false; }
  SUBCASE("another job") { other_job = true; }
  io::ControlOptions options = with_secret(1, other_job ? kSecret : "another secret of sixteen bytes");
  if (other_job) options.job_id = 0x11;
  Node zero(with_secret(0));
  zero.expect(1, 300 * base::kMillisecond);
  Node one(options);
  one.connect_to(0, zero);
  REQUIRE(serve({&zero, &one}, [&] { return one.sink.downs.size() == 1 && zero.sink.downs.size() == 1; }));
  CHECK(one.sink.downs[0].cause == PeerDownCause::kRefused);
  CHECK_CONTAINS(one.sink.downs[0].text, "rank 0 at " + zero.channel->listen_address().format());
  CHECK_CONTAINS(one.sink.downs[0].text, "did not prove that it knows the job's secret");
  CHECK_CONTAINS(one.sink.downs[0].text, "MLT_JOB_SECRET");
  // The one that waited in vain hears what came meanwhile.
  CHECK_CONTAINS(zero.sink.downs[0].text, "without proving that it knows the job's secret");
  CHECK(count(zero, "control_unproved") == 1);
  CHECK(count(one, "control_unproved") == 1);
  CHECK(zero.sink.ups.empty());
}

TEST_CASE("handshake__nothing_of_us_goes_to_a_listener_that_does_not_prove") {
  io::OsError error;
  const auto listener = io::listen_tcp(io::SocketAddress::loopback(AF_INET, 0), 0, error);
  REQUIRE(listener.has_value());
  Node one(with_secret(1));
  one.connect_to(0, io::SocketAddress::local_of(listener->get()), base::kSecond);
  io::UniqueFd fd;
  REQUIRE(serve({&one}, [&] {
    int number = 0;
    fd = io::accept_tcp(listener->get(), number);
    return static_cast<bool>(fd);
  }));
  std::array<std::byte, io::kFrameHeaderBytes + io::kOpeningBytes + io::kProofBytes> answer{};
  io::encode_frame_header({io::kOpeningBytes + io::kProofBytes, static_cast<std::uint8_t>(FrameType::kOpen)},
                          answer.data());
  io::encode_opening({control_options(0, 2).version, {}}, answer.data() + io::kFrameHeaderBytes);
  REQUIRE(::send(fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(answer.size()));
  REQUIRE(serve({&one}, [&] { return one.sink.downs.size() == 1; }));
  std::array<std::byte, 4'096> heard;
  std::size_t bytes = 0;
  for (ssize_t got = 0; (got = ::recv(fd.get(), heard.data() + bytes, heard.size() - bytes, 0)) > 0;) {
    bytes += static_cast<std::size_t>(got);
  }
  CHECK(bytes == io::kFrameHeaderBytes + io::kOpeningBytes);  // its opening: a version and a nonce
  CHECK(one.sink.downs[0].cause == PeerDownCause::kRefused);
}

TEST_CASE("handshake__another_version_is_named_on_both_sides") {
  Node zero(with_secret(0));
  zero.expect(1, 300 * base::kMillisecond);
  io::ControlOptions options = with_secret(1);
  options.version = 7;
  Node one(options);
  one.connect_to(0, zero);
  REQUIRE(serve({&zero, &one}, [&] { return one.sink.downs.size() == 1 && zero.sink.downs.size() == 1; }));
  CHECK(one.sink.downs[0].cause == PeerDownCause::kRefused);
  CHECK_CONTAINS(one.sink.downs[0].text, "protocol version differs: rank 0 at 127.0.0.1:");
  CHECK_CONTAINS(one.sink.downs[0].text, "has 1, rank 1 (this process) has 7. Install the same mlt release");
  CHECK_CONTAINS(zero.sink.downs[0].text, "protocol version 7, this process 1. Install the same mlt release");
  CHECK(count(zero, "control_other_version") == 1);
  // What a client of another version gets is the version: no nonce, no proof.
  RawClient client(zero, kSecret);
  CHECK(!client.open(7));
  CHECK(std::all_of(client.answer().begin() + 6, client.answer().end(), [](std::byte b) { return b == std::byte{0}; }));
  CHECK(client.answer().size() == io::kOpeningBytes);
}

TEST_CASE("handshake__versions_below_4_hear_the_version_in_a_form_that_they_know") {
  Node zero(with_secret(0));
  RawClient client(zero);
  std::vector<std::byte> hello = payload_of(hello_of(1, 0));
  hello[4] = std::byte{3};
  client.say_frame(FrameType::kOpen, hello);  // there a hello was type 1
  const auto answer = client.read();
  REQUIRE(answer.has_value());
  CHECK(answer->type == 1);
  io::Hello as_hello;
  CHECK(io::decode_hello(answer->payload, 3, as_hello) == io::HelloError::kOtherVersion);
  CHECK(as_hello.version == control_options(0, 2).version);
  CHECK(client.read_to_the_end().empty());
}

TEST_CASE("handshake__an_unproved_refusal_counts_for_the_version_only_and_of_versions_without_an_opening") {
  struct Case {
    io::RefusalReason reason;
    std::uint64_t version;
    bool counts;
  };
  for (const Case& one : {Case{io::RefusalReason::kVersion, 3, true}, Case{io::RefusalReason::kRankGone, 3, false},
                          Case{io::RefusalReason::kVersion, 4, false}, Case{io::RefusalReason::kVersion, 9, false},
                          Case{io::RefusalReason::kVersion, 0x1'0003, false}}) {
    CAPTURE(one.version);
    io::OsError error;
    const auto listener = io::listen_tcp(io::SocketAddress::loopback(AF_INET, 0), 0, error);
    REQUIRE(listener.has_value());
    Node rank(with_secret(1));
    rank.connect_to(0, io::SocketAddress::local_of(listener->get()), 200 * base::kMillisecond);
    io::UniqueFd fd;
    REQUIRE(serve({&rank}, [&] {
      int number = 0;
      fd = io::accept_tcp(listener->get(), number);
      return static_cast<bool>(fd);
    }));
    std::array<std::byte, io::kFrameHeaderBytes + io::kRefusalBytes> refusal;
    io::encode_frame_header({io::kRefusalBytes, static_cast<std::uint8_t>(FrameType::kRefuse)}, refusal.data());
    io::encode_refusal({one.reason, 0, one.version, 1}, refusal.data() + io::kFrameHeaderBytes);
    REQUIRE(::send(fd.get(), refusal.data(), refusal.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(refusal.size()));
    REQUIRE(serve({&rank}, [&] { return rank.sink.downs.size() == 1; }));
    CHECK(rank.sink.downs[0].cause == (one.counts ? PeerDownCause::kRefused : PeerDownCause::kUnreachable));
    if (one.counts) CHECK_CONTAINS(rank.sink.downs[0].text, "has 3, rank 1 (this process) has 1");
  }
}

TEST_CASE("closing__a_refused_client_that_keeps_sending_is_cut_after_a_few_bytes") {
  Couple couple(with_secret(0), with_secret(1));
  RawClient client(couple.zero, kSecret);
  io::Hello hello = hello_of(1, 0);
  hello.incarnation = 77;  // rank 1 is taken
  client.say_hello(hello);
  CHECK(client.read()->type == static_cast<std::uint8_t>(FrameType::kRefuse));
  const std::vector<std::byte> garbage(64 << 10);
  std::size_t taken = 0;
  const base::TimeNs until = io::monotonic_now() + 5 * base::kSecond;
  while (io::monotonic_now() < until) {
    const ssize_t sent = ::send(client.fd().get(), garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) taken += static_cast<std::size_t>(sent);
    if (sent < 0 && errno != EAGAIN) break;
    serve({&couple.zero}, [] { return false; }, base::kMillisecond);
  }
  CHECK(count(couple.zero, "control_drains_cut") == 1);
  CHECK(taken < 4U << 20);  // what the kernel took before it was cut; without a limit it never ends
  CHECK(couple.zero.channel->is_up(1));
}

TEST_CASE("closing__a_refused_client_that_does_not_end_is_cut_by_time") {
  Couple couple(with_secret(0), with_secret(1));
  RawClient client(couple.zero, kSecret);
  io::Hello hello = hello_of(1, 0);
  hello.incarnation = 77;
  client.say_hello(hello);
  CHECK(client.read()->type == static_cast<std::uint8_t>(FrameType::kRefuse));
  CHECK(couple.zero.channel->next_timeout() <= io::monotonic_now() + base::kSecond);
  couple.zero.channel->service(io::monotonic_now() + base::kSecond, couple.zero.sink);
  CHECK(count(couple.zero, "control_drains_cut") == 1);
}

// The connecting side is up once it has sent confirm: a listener too busy to read it in time must not end that.
TEST_CASE("handshake__waits_for_the_confirm_beyond_the_time_limit_of_clients") {
  Node zero(with_secret(0));
  RawClient client(zero, kSecret);
  REQUIRE(client.open());
  client.say_hello(hello_of(1, 0));
  CHECK(client.read()->type == static_cast<std::uint8_t>(FrameType::kHello));
  const io::ControlOptions options = with_secret(0);
  const base::TimeNs now = io::monotonic_now();
  zero.channel->service(now + options.hello_timeout_ns + options.dead_after_ns / 2, zero.sink);
  CHECK(count(zero, "control_timed_out") == 0);
  client.confirm();
  REQUIRE(serve({&zero}, [&] { return zero.sink.ups.size() == 1; }));
  // Without a confirm it ends all the same.
  Node other(with_secret(0));
  RawClient mute(other, kSecret);
  REQUIRE(mute.open());
  mute.say_hello(hello_of(1, 0));
  CHECK(mute.read()->type == static_cast<std::uint8_t>(FrameType::kHello));
  other.channel->service(io::monotonic_now() + options.hello_timeout_ns + options.dead_after_ns, other.sink);
  CHECK(count(other, "control_timed_out") == 1);
}

TEST_CASE("accept__idle_connections_are_cut_by_number_oldest_first_and_a_rank_still_comes_up") {
  Node zero(with_secret(0));
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 400; ++i) idle.push_back(std::make_unique<RawClient>(zero));
  REQUIRE(serve({&zero}, [&] { return count(zero, "control_accepted") == 400; }));
  CHECK(count(zero, "control_too_many_pending") == 400 - io::max_unproved_of(2));
  std::byte rest;
  CHECK(::recv(idle.front()->fd().get(), &rest, 1, 0) <= 0);             // the oldest is gone
  CHECK(::recv(idle.back()->fd().get(), &rest, 1, MSG_DONTWAIT) == -1);  // the newest is not
  CHECK(errno == EAGAIN);
  Node one(with_secret(1));
  one.connect_to(0, zero);
  REQUIRE(serve({&zero, &one}, [&] { return zero.sink.ups.size() == 1; }));
  zero.channel->service(io::monotonic_now() + with_secret(0).unproved_timeout_ns, zero.sink);
  CHECK(count(zero, "control_timed_out") == io::max_unproved_of(2) - 1);  // a place was taken by rank 1
}

namespace {

// Says what the next frame of the handshake is, as rank 1; true if it is answered.
bool takes_proof_of(RawClient& client) {
  client.say_hello(hello_of(1, 0));
  const auto answer = client.read();
  return answer && answer->type == static_cast<std::uint8_t>(FrameType::kHello);
}

std::vector<std::unique_ptr<RawClient>> flood(Node& node, std::size_t clients, bool open) {
  std::vector<std::unique_ptr<RawClient>> all;
  for (std::size_t i = 0; i < clients; ++i) {
    const std::uint64_t before = count(node, "control_accepted");
    all.push_back(std::make_unique<RawClient>(node, kSecret));
    REQUIRE(serve({&node}, [&] { return count(node, "control_accepted") == before + 1; }));
    if (open) REQUIRE(all.back()->open());
  }
  return all;
}

}  // namespace

TEST_CASE("accept__a_flood_from_one_address_closes_its_own_connections_only") {
  for (const bool rank_opens : {false, true}) {
    for (const bool flood_opens : {false, true}) {
      CAPTURE(rank_opens);
      CAPTURE(flood_opens);
      Node zero(with_secret(0));
      RawClient rank(zero, kSecret, "127.0.0.2");
      REQUIRE(serve({&zero}, [&] { return count(zero, "control_accepted") == 1; }));
      if (rank_opens) REQUIRE(rank.open());
      const auto others = flood(zero, 2 * io::max_unproved_of(2), flood_opens);
      CHECK(count(zero, "control_too_many_pending") == io::max_unproved_of(2) + 1);
      CHECK(takes_proof_of(rank));
    }
  }
}

TEST_CASE("accept__of_one_address_a_connection_that_has_opened_outlives_idle_ones") {
  Node zero(with_secret(0));
  RawClient rank(zero, kSecret);
  REQUIRE(rank.open());
  const auto idle = flood(zero, io::max_unproved_of(2) + 10, false);
  CHECK(count(zero, "control_too_many_pending") == 11);
  CHECK(!idle[10]->read());
  CHECK(takes_proof_of(rank));
}

TEST_CASE("accept__a_flood_from_many_addresses_closes_idle_connections_first") {
  Node zero(with_secret(0));
  RawClient rank(zero, kSecret, "127.0.0.2");
  REQUIRE(rank.open());
  std::vector<std::unique_ptr<RawClient>> others;
  for (std::size_t i = 0; i < io::max_unproved_of(2) + 10; ++i) {
    const std::string source = "127.0." + std::to_string(1 + i / 250) + "." + std::to_string(1 + i % 250);
    others.push_back(std::make_unique<RawClient>(zero, kSecret, source));
    REQUIRE(serve({&zero}, [&] { return count(zero, "control_accepted") == i + 2; }));
  }
  CHECK(takes_proof_of(rank));
}

// A place is free again once its connection has proved itself, whatever becomes of it then.
TEST_CASE("accept__connections_that_proved_themselves_hold_no_place") {
  Node zero(with_secret(0));
  for (int turn = 0; turn < 3; ++turn) {  // each replaces the one before
    RawClient client(zero, kSecret);
    CHECK(takes_proof_of(client));
  }
  const auto idle = flood(zero, io::max_unproved_of(2), false);
  CHECK(count(zero, "control_too_many_pending") == 0);
  CHECK(flood(zero, 1, false).size() == 1);
  CHECK(count(zero, "control_too_many_pending") == 1);
}

TEST_CASE("accept__what_a_flood_can_count_and_time_is_the_same_for_every_small_job") {
  for (const std::uint16_t ranks : std::initializer_list<std::uint16_t>{2, 37, 100, 192}) {
    CAPTURE(ranks);
    io::ControlOptions options = control_options(0, ranks);
    options.secret = kSecret;
    options.hello_timeout_ns = io::hello_timeout_of(ranks);
    Node zero(options);
    const auto idle = flood(zero, 256, false);
    CHECK(count(zero, "control_too_many_pending") == 0);
    const auto last = flood(zero, 1, false);
    CHECK(count(zero, "control_too_many_pending") == 1);
    const base::TimeNs now = io::monotonic_now();
    zero.channel->service(now + 25 * base::kSecond, zero.sink);
    CHECK(count(zero, "control_timed_out") == 0);
    zero.channel->service(now + 30 * base::kSecond, zero.sink);
    CHECK(count(zero, "control_timed_out") == 256);
  }
  CHECK(io::max_unproved_of(193) == 512);
  CHECK(io::max_unproved_of(448) == 512);
  CHECK(io::max_unproved_of(65'535) == 131'072);
}

TEST_CASE("client_sources__are_what_clients_of_one_host_share") {
  const auto same = [](const char* one, const char* other) {
    return io::ClientSources::of(*io::SocketAddress::from_host(one, 1)) ==
           io::ClientSources::of(*io::SocketAddress::from_host(other, 2));
  };
  CHECK(same("192.0.2.1", "192.0.2.1"));
  CHECK(!same("192.0.2.1", "192.0.2.2"));
  CHECK(same("2001:db8::1", "2001:db8::ffff:1"));
  CHECK(!same("2001:db8::1", "2001:db8:0:1::1"));
  CHECK(same("::ffff:192.0.2.1", "192.0.2.1"));
}

// They wait to be read to the end; each holds a descriptor of a process that has other uses for them.
TEST_CASE("accept__connections_that_were_turned_away_count_among_those_without_a_proof") {
  Couple couple(with_secret(0), with_secret(1));
  std::vector<std::unique_ptr<RawClient>> clients;
  constexpr std::uint64_t kClients = 300;
  for (std::uint64_t i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<RawClient>(couple.zero, kSecret));
    clients.back()->open(7);
    REQUIRE(count(couple.zero, "control_other_version") == i + 1);
  }
  CHECK(count(couple.zero, "control_too_many_pending") >= kClients - io::max_unproved_of(2));
  couple.zero.channel->service(io::monotonic_now() + base::kSecond, couple.zero.sink);
  CHECK(count(couple.zero, "control_drains_cut") <= io::max_unproved_of(2));
  CHECK(couple.zero.channel->is_up(1));
}

TEST_CASE("accept__a_flood_is_taken_in_turns_and_slowly_once_every_rank_has_come") {
  Couple couple(with_secret(0), with_secret(1));
  std::vector<std::unique_ptr<RawClient>> flood;
  for (int i = 0; i < 60; ++i) flood.push_back(std::make_unique<RawClient>(couple.zero));
  const base::TimeNs now = io::monotonic_now();
  const std::uint64_t before = count(couple.zero, "control_accepted");
  couple.zero.channel->service(now, couple.zero.sink);
  CHECK(count(couple.zero, "control_accepted") == before + 16);
  pollfd ready{couple.zero.channel->poll_fd(), POLLIN, 0};
  CHECK(::poll(&ready, 1, 0) == 0);  // the rest of the flood does not wake us ...
  CHECK(couple.zero.channel->next_timeout() <= now + 10 * base::kMillisecond);
  couple.zero.channel->service(now + 10 * base::kMillisecond, couple.zero.sink);  // ... before this
  CHECK(count(couple.zero, "control_accepted") == before + 32);
}
