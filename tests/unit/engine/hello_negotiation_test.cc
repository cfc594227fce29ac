// What a rank offers in its hello, and what a pair uses.
#include "engine/hello_negotiation.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "wire/packet.h"

using namespace mlt;
using engine::HelloNegotiation;

namespace {

io::Hello hello_of(std::uint16_t rank, std::uint16_t to, std::uint32_t segment_bytes) {
  io::Hello hello;
  hello.rank = rank;
  hello.cookie = (std::uint64_t{0xABCDEF} << 16) | to;
  hello.segment_bytes = segment_bytes;
  hello.window_bytes = 1'000'000;
  hello.early_segments = 12;
  hello.early_transfers = 13;
  return hello;
}

}  // namespace

TEST_CASE("hello_negotiation__draws_an_incarnation_and_a_cookie_per_rank") {
  const HelloNegotiation first(1, 300, 1'432, 1U << 20), second(1, 300, 1'432, 1U << 20);
  CHECK(first.incarnation() != second.incarnation());
  REQUIRE(first.cookies().size() == 300);
  std::set<std::uint64_t> random_parts;
  for (std::uint16_t rank = 0; rank < 300; ++rank) {
    CHECK(wire::cookie_rank(first.cookies()[rank]) == rank);
    random_parts.insert(first.cookies()[rank] >> 16);
    random_parts.insert(second.cookies()[rank] >> 16);
  }
  CHECK(random_parts.size() == 600);
}

TEST_CASE("window_bytes__is_a_share_of_the_receive_buffer_and_16_segments_at_least") {
  CHECK(HelloNegotiation(0, 1, 1'432, 3'000'000).window_bytes() == 1'000'000);
  CHECK(HelloNegotiation(0, 2, 1'432, 3'000'000).window_bytes() == 1'000'000);
  CHECK(HelloNegotiation(0, 5, 1'432, 3'000'000).window_bytes() == 250'000);
  CHECK(HelloNegotiation(0, 100, 1'432, 3'000'000).window_bytes() == 125'000);
  CHECK(HelloNegotiation(0, 100, 8'960, 3'000'000).window_bytes() == 16 * 8'960);
}

TEST_CASE("negotiate__takes_the_smaller_segment_and_each_sides_own_limits") {
  const HelloNegotiation own(2, 4, 8'960, 3'000'000);
  std::string error;
  const auto up = own.negotiate(hello_of(3, 2, 1'437), error);
  REQUIRE(up.has_value());
  CHECK(up->peer == 3);
  CHECK(up->segment_bytes == 1'432);
  CHECK(up->local_cookie == own.cookies()[3]);
  CHECK(up->remote_cookie == hello_of(3, 2, 0).cookie);
  CHECK(up->window_bytes == 1'000'000);
  CHECK(up->own_window_bytes == own.window_bytes());
  CHECK(up->early_segments == 12);
  CHECK(up->early_transfers == 13);
  CHECK_FALSE(up->holds_back);
  CHECK(own.negotiate(hello_of(3, 2, 60'000), error)->segment_bytes == 8'960);
}

TEST_CASE("negotiate__rejects_a_hello_without_segment_bytes_or_with_another_ranks_cookie") {
  const HelloNegotiation own(2, 4, 8'960, 3'000'000);
  std::string error;
  CHECK_FALSE(own.negotiate(hello_of(3, 2, 7), error).has_value());
  CHECK(error.starts_with("rank 3 sent a hello with an invalid cookie or segment size"));
  error.clear();
  CHECK_FALSE(own.negotiate(hello_of(3, 1, 1'432), error).has_value());
  CHECK(error.starts_with("rank 3 sent a hello with an invalid cookie or segment size"));
}
