// Opening of the control channel: addresses that need a job secret, and ports that are taken.
#include "engine/control_opening.h"

#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <string>

#include "unit/engine/small_endpoint.h"

using namespace mlt;

namespace {

Options options_of(std::uint16_t rank) {
  Options options;
  options.rank = rank;
  options.ranks = 3;
  return options;
}

std::optional<Error> error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("open_control_channel__names_the_port_that_is_taken") {
  const engine::HelloNegotiation hello(0, 3, 1'432, 1U << 20);
  const auto open = [&](const Options& options) {
    return engine::open_control_channel(options, engine_test::small_config(), hello, {{.address = {}, .port = 5'000}});
  };
  Options options = options_of(0);
  const auto first = open(options);
  options.control_port = first->listen_address().port();
  CHECK(options.control_port != 0);
  const auto error = error_of([&] { open(options); });
  REQUIRE(error.has_value());
  CHECK(error->code() == ErrorCode::kPortInUse);
  CHECK(std::string(error->what()).starts_with("rank 0: "));
}

TEST_CASE("open_control_channel__listens_beyond_loopback_only_with_a_secret_or_by_choice") {
  const engine::HelloNegotiation hello(0, 3, 1'432, 1U << 20);
  const auto open = [&](const Options& options) {
    return engine::open_control_channel(options, engine_test::small_config(), hello, {{.address = {}, .port = 5'000}});
  };
  Options options = options_of(0);
  options.host = "0.0.0.0";
  const auto error = error_of([&] { open(options); });
  REQUIRE(error.has_value());
  CHECK(error->code() == ErrorCode::kConfig);
  CHECK(std::string(error->what()).find("without a job secret") != std::string::npos);
  options.insecure = true;
  CHECK(open(options) != nullptr);
  options.insecure = false;
  options.secret = "0123456789abcdef";
  CHECK(open(options) != nullptr);
}

TEST_CASE("resolve_peer__rejects_ranks_that_are_no_peers_and_addresses_beyond_loopback") {
  const Options options = options_of(1);
  CHECK(engine::resolve_peer(options, {0, "127.0.0.1", 7'000}).format() == "127.0.0.1:7000");
  for (const std::uint16_t rank : {std::uint16_t{1}, std::uint16_t{3}}) {
    const auto error = error_of([&] { engine::resolve_peer(options, {rank, "127.0.0.1", 7'000}); });
    REQUIRE(error.has_value());
    CHECK(std::string(error->what()) == "connect: rank " + std::to_string(rank) + " is not a peer of rank 1");
  }
  const auto error = error_of([&] { engine::resolve_peer(options, {2, "192.0.2.7", 7'000}); });
  REQUIRE(error.has_value());
  CHECK(std::string(error->what()).starts_with("rank 1 would connect to rank 2 at 192.0.2.7, which is not a loopback"));
}
