#include "engine/bare_udp_loop.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "io/os_error.h"
#include "mlt.h"

namespace mlt::engine {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostRunBytes = 65'507;  // one system call: the most that UDP over IPv4 carries
constexpr std::size_t kMostRun = 64;           // segments; the kernel's UDP_MAX_SEGMENTS of old
constexpr int kSocketBufferBytes = 8 << 20;

[[noreturn]] void fail(std::string_view action) {
  throw Error(ErrorCode::kSystem, io::os_error(errno, action, "the bare UDP loop's socket").text);
}

std::size_t run_length(std::size_t payload_bytes) {
  if (payload_bytes < kBareUdpLeastPayload || payload_bytes > kBareUdpMostPayload) {
    throw Error(ErrorCode::kConfig,
                "bare UDP loop: a payload of " + std::to_string(payload_bytes) + " bytes; give 8 to 8960");
  }
  return std::min(kMostRun, kMostRunBytes / (kBareUdpHeaderBytes + payload_bytes));
}

// Fills `vectors` with header and payload in turn, for the datagrams from `first` on; returns how many vectors.
std::size_t gather(std::span<const std::byte> data, std::size_t payload_bytes, std::size_t first, std::size_t count,
                   std::vector<std::byte>& headers, std::vector<iovec>& vectors) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t number = first + i;
    std::byte* const header = headers.data() + i * kBareUdpHeaderBytes;
    std::memcpy(header, &number, sizeof number);
    const std::size_t at = number * payload_bytes;
    vectors[2 * i] = {header, kBareUdpHeaderBytes};
    vectors[2 * i + 1] = {const_cast<std::byte*>(data.data()) + at, std::min(payload_bytes, data.size() - at)};
  }
  return 2 * count;
}

}  // namespace

void prepare_bare_udp(int fd, std::int64_t silence_ns) {
  for (const int option : {SO_RCVBUF, SO_SNDBUF, SO_RCVBUFFORCE, SO_SNDBUFFORCE}) {
    // Forced where there is the right to, else up to the system's limit.
    ::setsockopt(fd, SOL_SOCKET, option, &kSocketBufferBytes, sizeof kSocketBufferBytes);
  }
  const int on = 1;
  if (::setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on) != 0) fail("switch on UDP_GRO of");
  const timeval silence{silence_ns / 1'000'000'000, (silence_ns % 1'000'000'000) / 1'000};
  if (::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence) != 0) fail("set the receive timeout of");
}

void send_bare_udp(int fd, std::span<const std::byte> data, std::size_t payload_bytes) {
  const std::size_t most = run_length(payload_bytes);
  const std::size_t datagrams = (data.size() + payload_bytes - 1) / payload_bytes;
  std::vector<std::byte> headers(most * kBareUdpHeaderBytes);
  std::vector<iovec> vectors(2 * most);
  for (std::size_t first = 0; first < datagrams; first += most) {
    const std::size_t count = std::min(most, datagrams - first);
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(std::uint16_t))> control{};
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = gather(data, payload_bytes, first, count, headers, vectors);
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = IPPROTO_UDP;
    header->cmsg_type = UDP_SEGMENT;
    header->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
    const auto segment = static_cast<std::uint16_t>(kBareUdpHeaderBytes + payload_bytes);
    std::memcpy(CMSG_DATA(header), &segment, sizeof segment);
    while (::sendmsg(fd, &message, 0) < 0) {
      // An earlier datagram met a closed port, or the interface's queue is full: nothing here repairs either.
      if (errno == ECONNREFUSED || errno == EINTR) continue;
      if (errno == ENOBUFS) break;
      fail("send on");
    }
  }
}

BareUdpReceived receive_bare_udp(int fd, std::span<std::byte> data, std::size_t payload_bytes) {
  (void)run_length(payload_bytes);  // checks it
  const std::size_t datagrams = (data.size() + payload_bytes - 1) / payload_bytes;
  const std::size_t step = kBareUdpHeaderBytes + payload_bytes;
  std::array<std::byte, 65'536> buffer;
  BareUdpReceived received;
  const Clock::time_point called = Clock::now();
  Clock::time_point start = called, last = called;
  for (bool over = datagrams == 0; !over;) {
    const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EINTR || errno == ECONNREFUSED)) continue;
    if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK) fail("receive on");
    if (got <= 0) break;
    if (received.bytes == 0) start = Clock::now();
    const auto size = static_cast<std::size_t>(got);
    for (std::size_t at = 0; at + kBareUdpHeaderBytes < size; at += step) {
      std::uint64_t number = 0;
      std::memcpy(&number, buffer.data() + at, sizeof number);
      if (number >= datagrams) continue;  // not of this tensor
      const std::size_t place = number * payload_bytes;
      const std::size_t here = std::min({payload_bytes, size - at - kBareUdpHeaderBytes, data.size() - place});
      std::memcpy(data.data() + place, buffer.data() + at + kBareUdpHeaderBytes, here);
      received.bytes += here;
      over = over || number + 1 == datagrams;
    }
    last = Clock::now();
  }
  received.waited_ns = std::chrono::nanoseconds(start - called).count();
  received.elapsed_ns = std::chrono::nanoseconds(last - start).count();
  return received;
}

}  // namespace mlt::engine
