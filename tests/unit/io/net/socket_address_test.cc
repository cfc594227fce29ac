#include "io/net/socket_address.h"

#include <doctest/doctest.h>
#include <netinet/in.h>

#include <cstring>

using namespace mlt;
using io::SocketAddress;

TEST_CASE("parse__reads_what_format_writes") {
  for (const char* text :
       {"127.0.0.1:5000", "0.0.0.0:0", "255.1.2.3:65535", "[::1]:1", "[2001:db8::1]:5000", "[fe80::1%lo]:80"}) {
    CAPTURE(text);
    const auto address = SocketAddress::parse(text);
    REQUIRE(address.has_value());
    CHECK(address->format() == text);
    CHECK(*SocketAddress::parse(address->format()) == *address);
  }
}

TEST_CASE("parse__refuses_what_is_no_address") {
  for (const char* text :
       {"", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:5x", "127.0.0.1: 5",
        "256.0.0.1:5", "localhost:5", "::1:5", "[::1]", "[::1]5", "[::1:5", "[127.0.0.1]:5", "[fe80::1%]:5",
        "[fe80::1%no-such-interface]:5", "[fe80::1%0]:5", "1.2.3.4:5:6"}) {
    CAPTURE(text);
    CHECK(!SocketAddress::parse(text).has_value());
  }
}

TEST_CASE("equality__looks_at_family_host_port_and_scope") {
  const auto parse = [](const char* text) { return *SocketAddress::parse(text); };
  CHECK(parse("127.0.0.1:5") == parse("127.0.0.1:5"));
  CHECK(!(parse("127.0.0.1:5") == parse("127.0.0.1:6")));
  CHECK(!(parse("127.0.0.1:5") == parse("127.0.0.2:5")));
  CHECK(!(parse("[::1]:5") == parse("127.0.0.1:5")));
  CHECK(!(parse("[fe80::1%1]:5") == parse("[fe80::1]:5")));
  CHECK(SocketAddress() == SocketAddress());
}

TEST_CASE("with_port__changes_the_port_only") {
  CHECK(SocketAddress::parse("10.1.2.3:5")->with_port(77).format() == "10.1.2.3:77");
  CHECK(SocketAddress::parse("[fe80::1%lo]:5")->with_port(77).format() == "[fe80::1%lo]:77");
  CHECK(SocketAddress().with_port(77).format() == "(no address)");
}

TEST_CASE("is_wildcard__of_either_family") {
  CHECK(SocketAddress::parse("0.0.0.0:5")->is_wildcard());
  CHECK(SocketAddress::parse("[::]:5")->is_wildcard());
  CHECK(!SocketAddress::parse("127.0.0.1:5")->is_wildcard());
  CHECK(!SocketAddress().is_wildcard());
}

TEST_CASE("resolve__numbers_need_no_resolver_and_names_without_answer_say_so") {
  io::OsError error;
  CHECK(SocketAddress::resolve("10.0.0.1", 5, error)->format() == "10.0.0.1:5");
  const auto local = SocketAddress::resolve("localhost", 5, error);
  REQUIRE_MESSAGE(local.has_value(), error.text);
  CHECK(local->port() == 5);
  const std::string too_long(300, 'a');  // refused by the resolver itself: no test waits for a name server
  CHECK(!SocketAddress::resolve(too_long, 5, error).has_value());
  CHECK(error.code != io::OsErrorCode::kNone);
  CHECK(error.text.find(too_long) != std::string::npos);
}

TEST_CASE("socket_address__is_as_short_as_the_longer_family_and_keeps_no_other") {
  CHECK(sizeof(SocketAddress) == sizeof(sockaddr_in6));
  sockaddr_storage unix_address{};
  unix_address.ss_family = AF_UNIX;
  CHECK(SocketAddress::from_raw(unix_address).family() == AF_UNSPEC);
  const SocketAddress scoped = *SocketAddress::from_host("fe80::1%1", 7);
  sockaddr_storage raw{};
  std::memcpy(&raw, scoped.raw(), scoped.raw_size());
  CHECK(SocketAddress::from_raw(raw) == scoped);
}
