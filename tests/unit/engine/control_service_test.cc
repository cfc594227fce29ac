// The control channel as the turns of an event loop serve it: two channels in one process.
#include "engine/control_service.h"

#include <doctest/doctest.h>
#include <poll.h>

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "engine/control_opening.h"
#include "io/os/clock.h"
#include "unit/engine/small_endpoint.h"

using namespace mlt;

namespace {

struct ServiceRank final : io::ControlSink {
  explicit ServiceRank(std::uint16_t own) : hello(own, 3, 1'432, 1U << 20) {
    Options options;
    options.rank = own;
    options.ranks = 3;
    channel = engine::open_control_channel(options, config, hello, {{.address = {}, .port = 5'000}});
    service.emplace(endpoint, *channel);
  }
  void on_peer_up(const io::PeerHello&) override { is_up = true; }
  void on_message(std::uint16_t, std::uint8_t type, std::span<const std::byte> payload) override {
    if (type == engine::kFailureMessage) failure = engine::failure_reason(payload);
  }
  void on_peer_down(std::uint16_t, io::PeerDownCause why, const std::string&) override { cause = why; }
  void on_refused(const io::SocketAddress&, const std::string&) override {}
  bool needs(std::uint16_t) const override { return false; }
  base::TimeNs datagram_at(std::uint16_t) const override { return 0; }
  void on_quiet(std::uint16_t) override {}

  core::EndpointConfig config = engine_test::small_config();
  core::Endpoint endpoint{config};
  engine::HelloNegotiation hello;
  std::unique_ptr<io::ControlChannel> channel;
  std::optional<engine::ControlService> service;
  bool is_up = false;
  std::string failure;  // what it reported before its end
  std::optional<io::PeerDownCause> cause;
};

// Connects the two, and returns how many of their turns served something. Advances `now`.
std::size_t bring_up(ServiceRank& low, ServiceRank& high, base::TimeNs& now, base::TimeNs until) {
  io::OsError error;
  REQUIRE(low.channel->expect(now, 1, until, error));
  REQUIRE(high.channel->connect_to(now, 0, low.channel->listen_address(), until, error));
  std::size_t served = 0;
  while (!(low.is_up && high.is_up) && now < until) {
    served += low.service->service(now, low) ? 1U : 0U;
    served += high.service->service(now, high) ? 1U : 0U;
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // only between two turns
    now = io::monotonic_now();
  }
  REQUIRE(low.is_up);
  REQUIRE(high.is_up);
  return served;
}

}  // namespace

TEST_CASE("service__serves_the_channel_when_it_is_readable_until_both_ranks_are_up_and_goodbye_ends_it") {
  ServiceRank low(0), high(1);
  base::TimeNs now = io::monotonic_now();
  const base::TimeNs until = now + 10 * base::kSecond;
  CHECK(bring_up(low, high, now, until) > 0);

  // Goodbye waits until the peer ends the connection too, which it does in its own turns.
  std::thread other([&] {
    while (!high.cause && io::monotonic_now() < until) {
      high.service->service(io::monotonic_now(), high);
      std::this_thread::sleep_for(std::chrono::microseconds(100));  // only between two turns
    }
  });
  const base::TimeNs before = now;
  low.service->say_goodbye(now, low);
  other.join();
  CHECK(high.cause == io::PeerDownCause::kGoodbye);
  // It waits for a second at most, and the other thread may get no CPU for longer.
  CHECK((low.channel->finished() || now - before >= base::kSecond));
}

TEST_CASE("say_goodbye__does_not_wait_long_for_a_process_that_does_not_read_once_its_host_has_it") {
  ServiceRank low(0), high(1);
  base::TimeNs now = io::monotonic_now();
  const base::TimeNs until = now + 10 * base::kSecond;
  bring_up(low, high, now, until);
  const base::TimeNs before = now;
  low.service->say_goodbye(now, low);
  CHECK_FALSE(low.channel->finished());
  CHECK(low.channel->is_goodbye_acknowledged());
  CHECK(now - before >= base::kSecond);
  // Seven seconds are for hosts that do not acknowledge.
  CHECK(now - before < 7 * base::kSecond);
  high.service->service(io::monotonic_now(), high);
  CHECK(high.cause == io::PeerDownCause::kGoodbye);
}

TEST_CASE("leave_at_exit__tells_the_exit_status_that_is_known_after_the_operations_have_ended") {
  for (const int status : {0, 3}) {
    CAPTURE(status);
    ServiceRank low(0), high(1);
    base::TimeNs now = io::monotonic_now();
    const base::TimeNs until = now + 30 * base::kSecond;
    bring_up(low, high, now, until);
    engine::ExitWait exit;
    exit.begin(30 * base::kSecond);
    bool have_ended = false;
    std::thread leaving([&] { low.service->leave_at_exit(now, exit, [&] { have_ended = true; }); });
    exit.wait_operations_ended();
    CHECK(have_ended);
    CHECK_FALSE(high.cause);  // no frame says it before the status is known
    exit.set_status(status);
    exit.set_status(9);  // the first counts
    while (!high.cause && io::monotonic_now() < until) {
      high.service->service(io::monotonic_now(), high);
      std::this_thread::sleep_for(std::chrono::microseconds(100));  // only between two turns
    }
    leaving.join();
    CHECK(high.cause == (status == 0 ? io::PeerDownCause::kGoodbye : io::PeerDownCause::kLost));
    CHECK(high.failure == (status == 0 ? "" : "ended with exit status 3"));
  }
}

TEST_CASE("leave_at_exit__of_a_process_that_goes_on_is_an_orderly_end_after_its_time") {
  ServiceRank low(0), high(1);
  base::TimeNs now = io::monotonic_now();
  const base::TimeNs until = now + 30 * base::kSecond;
  bring_up(low, high, now, until);
  engine::ExitWait exit;
  exit.begin(10 * base::kMillisecond);
  low.service->leave_at_exit(now, exit, [] {});
  high.service->service(io::monotonic_now(), high);
  CHECK(high.cause == io::PeerDownCause::kGoodbye);
}

TEST_CASE("service__does_not_check_a_quiet_descriptor_again_within_50_us") {
  ServiceRank low(0), high(1);
  const base::TimeNs now = io::monotonic_now();
  const base::TimeNs until = now + 10 * base::kSecond;
  io::OsError error;
  REQUIRE(low.channel->expect(now, 1, until, error));
  low.service->service(now, low);  // what was due
  REQUIRE(now < low.channel->next_timeout());
  // The connection makes the listener's descriptor readable.
  REQUIRE(high.channel->connect_to(now, 0, low.channel->listen_address(), until, error));
  high.service->service(now, high);
  pollfd readable{low.channel->poll_fd(), POLLIN, 0};
  REQUIRE(::poll(&readable, 1, 10'000) == 1);
  low.service->on_quiet(now);
  CHECK_FALSE(low.service->service(now + 49 * base::kMicrosecond, low));
  CHECK(low.service->service(now + 50 * base::kMicrosecond, low));
}

TEST_CASE("failure_reason__shows_printable_text_of_limited_length") {
  const std::string text = "ended by ValueError\n\x1b[31m\xff";
  CHECK(engine::failure_reason(std::as_bytes(std::span(text))) == "ended by ValueError??[31m?");
  const std::string longer(3 * engine::kMaxFailureBytes, 'x');
  CHECK(engine::failure_reason(std::as_bytes(std::span(longer))).size() == engine::kMaxFailureBytes);
  CHECK(engine::failure_reason({}).empty());
}
