#include "bare_udp/loop.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "io/os/unique_fd.h"
#include "mlt.h"

namespace mlt::bare_udp {

namespace {

constexpr std::int64_t kSilenceNs = 50'000'000;
constexpr std::byte kUntouched{0xEE};

struct Pair {
  io::UniqueFd sender, receiver;
};

sockaddr_in bind_loopback(int fd) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  socklen_t size = sizeof address;
  REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return address;
}

Pair connected_pair() {
  Pair pair{io::UniqueFd(::socket(AF_INET, SOCK_DGRAM, 0)), io::UniqueFd(::socket(AF_INET, SOCK_DGRAM, 0))};
  bind_loopback(pair.sender.get());
  const sockaddr_in to = bind_loopback(pair.receiver.get());
  REQUIRE(::connect(pair.sender.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  prepare(pair.sender.get(), kSilenceNs);
  prepare(pair.receiver.get(), kSilenceNs);
  return pair;
}

std::vector<std::byte> numbered(std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 7 % 253);
  return data;
}

}  // namespace

TEST_CASE("bare_udp_loop__every_byte_has_its_place") {
  // One datagram, a last one that is shorter, several runs, whole datagrams only.
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1'441}, std::size_t{200'001}, std::size_t{1'440 * 88}}) {
    const Pair pair = connected_pair();
    const std::vector<std::byte> data = numbered(bytes);
    std::vector<std::byte> into(bytes, kUntouched);
    send(pair.sender.get(), data, 1'440);
    const Received received = receive(pair.receiver.get(), into, 1'440);
    CHECK(received.bytes == bytes);
    CHECK(into == data);
    CHECK(received.elapsed_ns < kSilenceNs);  // it did not wait for silence
  }
}

TEST_CASE("bare_udp_loop__silence_ends_a_round_and_is_not_counted") {
  const Pair pair = connected_pair();
  std::vector<std::byte> into(3 * 1'440, kUntouched);
  CHECK(receive(pair.receiver.get(), into, 1'440).bytes == 0);
  // Of a tensor of three datagrams the first two come.
  const std::vector<std::byte> data = numbered(2 * 1'440);
  send(pair.sender.get(), data, 1'440);
  const Received received = receive(pair.receiver.get(), into, 1'440);
  CHECK(received.bytes == data.size());
  CHECK(received.elapsed_ns < kSilenceNs);
  CHECK(std::memcmp(into.data(), data.data(), data.size()) == 0);
  CHECK(into.back() == kUntouched);
}

TEST_CASE("bare_udp_loop__a_number_beyond_the_tensor_writes_nothing") {
  const Pair pair = connected_pair();
  std::vector<std::byte> into(1'440, kUntouched), hostile(kHeaderBytes + 1'440, std::byte{1});
  for (const std::uint64_t number : {std::uint64_t{1}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    std::memcpy(hostile.data(), &number, sizeof number);
    REQUIRE(::send(pair.sender.get(), hostile.data(), hostile.size(), 0) > 0);
  }
  REQUIRE(::send(pair.sender.get(), hostile.data(), kHeaderBytes, 0) > 0);  // a header and nothing else
  REQUIRE(::send(pair.sender.get(), hostile.data(), 3, 0) > 0);
  CHECK(receive(pair.receiver.get(), into, 1'440).bytes == 0);
  CHECK(into == std::vector<std::byte>(1'440, kUntouched));
}

TEST_CASE("bare_udp_loop__refuses_payloads_that_do_not_fit") {
  const Pair pair = connected_pair();
  std::vector<std::byte> data(100);
  for (const std::size_t payload : {std::size_t{0}, kMinPayload - 1, kMaxPayload + 1}) {
    CHECK_THROWS_AS(send(pair.sender.get(), data, payload), Error);
    CHECK_THROWS_AS(receive(pair.receiver.get(), data, payload), Error);
  }
}

}  // namespace mlt::bare_udp
