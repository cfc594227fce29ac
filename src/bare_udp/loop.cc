#include "bare_udp/loop.h"

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

#include "collective/reduction.h"
#include "io/os/os_error.h"
#include "mlt.h"

#ifndef UDP_GRO  // newer than glibc 2.28 (manylinux_2_28)
#define UDP_GRO 104
#endif

namespace mlt::bare_udp {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxRunBytes = 65'507;  // max bytes of one system call: the max payload of UDP over IPv4
constexpr std::size_t kMaxRunSegments = 64;   // max segments; UDP_MAX_SEGMENTS of older kernels
constexpr int kSocketBufferBytes = 8 << 20;

[[noreturn]] void fail(std::string_view action) {
  throw Error(ErrorCode::kSystem, io::os_error(errno, action, "the bare UDP loop's socket").text);
}

std::size_t run_length(std::size_t payload_bytes) {
  if (payload_bytes < kMinPayload || payload_bytes > kMaxPayload) {
    throw Error(ErrorCode::kConfig,
                "bare UDP loop: a payload of " + std::to_string(payload_bytes) + " bytes; give 8 to 8960");
  }
  return std::min(kMaxRunSegments, kMaxRunBytes / (kHeaderBytes + payload_bytes));
}

std::size_t datagrams_of(std::size_t bytes, std::size_t payload_bytes) {
  return (bytes + payload_bytes - 1) / payload_bytes;
}

// Sends a tensor batch by batch. Each datagram carries a number: phase in the upper half, index in the lower.
class RunSender {
 public:
  RunSender(int fd, std::size_t payload_bytes)
      : fd_(fd),
        payload_bytes_(payload_bytes),
        max_datagrams_(run_length(payload_bytes)),
        headers_(max_datagrams_ * kHeaderBytes),
        vectors_(2 * max_datagrams_) {}

  // Sends one batch of the datagrams of `data` from `first` on. Returns the index after it, or `first` if the socket
  // accepts none now, which happens only with MSG_DONTWAIT.
  std::size_t send(std::span<const std::byte> data, std::size_t first, std::uint32_t phase, int flags) {
    const std::size_t count = std::min(max_datagrams_, datagrams_of(data.size(), payload_bytes_) - first);
    gather(data, first, count, phase);
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(std::uint16_t))> control{};
    msghdr message{};
    message.msg_iov = vectors_.data();
    message.msg_iovlen = 2 * count;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = IPPROTO_UDP;
    header->cmsg_type = UDP_SEGMENT;
    header->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
    const auto segment = static_cast<std::uint16_t>(kHeaderBytes + payload_bytes_);
    std::memcpy(CMSG_DATA(header), &segment, sizeof segment);
    while (::sendmsg(fd_, &message, flags) < 0) {
      // An earlier datagram reached a closed port, or the interface's queue is full: this loop repairs neither.
      if (errno == ECONNREFUSED || errno == EINTR) continue;
      if (errno == ENOBUFS) break;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return first;
      fail("send on");
    }
    return first + count;
  }

 private:
  // Fills the iovecs with header and payload in turn.
  void gather(std::span<const std::byte> data, std::size_t first, std::size_t count, std::uint32_t phase) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t number = std::uint64_t{phase} << 32 | (first + i);
      std::byte* const header = headers_.data() + i * kHeaderBytes;
      std::memcpy(header, &number, sizeof number);
      const std::size_t at = (first + i) * payload_bytes_;
      vectors_[2 * i] = {header, kHeaderBytes};
      vectors_[2 * i + 1] = {const_cast<std::byte*>(data.data()) + at, std::min(payload_bytes_, data.size() - at)};
    }
  }

  int fd_;
  std::size_t payload_bytes_;
  std::size_t max_datagrams_;
  std::vector<std::byte> headers_;
  std::vector<iovec> vectors_;
};

// One receive call; 0 bytes if no datagram is available, or none arrived within the socket's receive timeout.
std::size_t receive_run(int fd, std::span<std::byte> buffer, int flags) {
  for (;;) {
    const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), flags);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR && errno != ECONNREFUSED) fail("receive on");
  }
}

// Calls `take(number, payload)` for each datagram of a batch.
template <typename Take>
void for_each_datagram(std::span<const std::byte> run, std::size_t payload_bytes, const Take& take) {
  for (std::size_t at = 0; at + kHeaderBytes < run.size(); at += kHeaderBytes + payload_bytes) {
    std::uint64_t number = 0;
    std::memcpy(&number, run.data() + at, sizeof number);
    const std::size_t begin = at + kHeaderBytes;
    take(number, run.subspan(begin, std::min(payload_bytes, run.size() - begin)));
  }
}

}  // namespace

void prepare(int fd, std::int64_t silence_ns) {
  for (const int option : {SO_RCVBUF, SO_SNDBUF, SO_RCVBUFFORCE, SO_SNDBUFFORCE}) {
    // Forced if the process has the privilege, otherwise up to the system's limit.
    ::setsockopt(fd, SOL_SOCKET, option, &kSocketBufferBytes, sizeof kSocketBufferBytes);
  }
  const int on = 1;
  if (::setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on) != 0) fail("switch on UDP_GRO of");
  const timeval silence{silence_ns / 1'000'000'000, (silence_ns % 1'000'000'000) / 1'000};
  if (::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence) != 0) fail("set the receive timeout of");
}

void send(int fd, std::span<const std::byte> data, std::size_t payload_bytes) {
  RunSender sender(fd, payload_bytes);
  const std::size_t datagrams = datagrams_of(data.size(), payload_bytes);
  for (std::size_t next = 0; next < datagrams;) next = sender.send(data, next, 0, 0);
}

Received receive(int fd, std::span<std::byte> data, std::size_t payload_bytes) {
  (void)run_length(payload_bytes);  // validates it
  const std::size_t datagrams = datagrams_of(data.size(), payload_bytes);
  std::array<std::byte, 65'536> buffer;
  Received received;
  const Clock::time_point called = Clock::now();
  Clock::time_point start = called, last = called;
  for (bool over = datagrams == 0; !over;) {
    const std::size_t size = receive_run(fd, buffer, 0);
    if (size == 0) break;
    if (received.bytes == 0) start = Clock::now();
    for_each_datagram(std::span(buffer).first(size), payload_bytes, [&](std::uint64_t number, auto payload) {
      if (number >= datagrams) return;  // not of this tensor
      const std::span<std::byte> place = data.subspan(number * payload_bytes);
      const std::size_t here = std::min(payload.size(), place.size());
      std::memcpy(place.data(), payload.data(), here);
      received.bytes += here;
      over = over || number + 1 == datagrams;
    });
    last = Clock::now();
  }
  received.waited_ns = std::chrono::nanoseconds(start - called).count();
  received.elapsed_ns = std::chrono::nanoseconds(last - start).count();
  return received;
}

std::size_t all_reduce(int fd, std::span<float> data, bool is_first, std::uint32_t round, std::size_t payload_bytes,
                       std::int64_t patience_ns, std::int64_t silence_ns) {
  const std::span<float> lower = data.first(data.size() / 2), upper = data.subspan(lower.size());
  const std::span<std::byte> own = std::as_writable_bytes(is_first ? lower : upper);
  const std::span<std::byte> other = std::as_writable_bytes(is_first ? upper : lower);
  // Phase 0: send the other half, add arriving data to the own half. Phase 1: send the sum, receive the other's.
  const std::array<std::span<std::byte>, 2> out{other, own}, in{own, other};
  std::array<std::size_t, 2> sent{}, arrived{};
  RunSender sender(fd, payload_bytes);
  std::array<std::byte, 65'536> buffer;
  const collective::Kernel& sum = *collective::kernel_of(wire::ElementType::kFloat32, collective::Reduction::kSum);
  bool overtaken = false;
  const auto take = [&](std::uint64_t number, std::span<const std::byte> payload) {
    const std::uint64_t phase = (number >> 32) - std::uint64_t{2} * round;
    overtaken = overtaken || (number >> 32) > std::uint64_t{2} * round + 1;
    const std::size_t at = static_cast<std::uint32_t>(number) * payload_bytes;
    if (phase > 1 || at >= in[phase].size()) return;  // not of this tensor
    const std::size_t here = std::min(payload.size(), in[phase].size() - at);
    if (phase == 0) {
      sum.combine(in[0].data() + at, payload.data(), here / sizeof(float));
    } else {
      std::memcpy(in[1].data() + at, payload.data(), here);
    }
    arrived[phase] += here;
  };
  Clock::time_point last = Clock::now();
  // Data of a later round: the other rank has ended this one, and what is missing of it was lost.
  for (std::size_t phase = 0; phase < 2 && !overtaken;) {
    const std::size_t datagrams = datagrams_of(out[phase].size(), payload_bytes), before = sent[phase];
    if (before < datagrams) {
      sent[phase] = sender.send(out[phase], before, 2 * round + static_cast<std::uint32_t>(phase), MSG_DONTWAIT);
    }
    const std::size_t size = receive_run(fd, buffer, MSG_DONTWAIT);
    for_each_datagram(std::span(buffer).first(size), payload_bytes, take);
    if (sent[phase] == datagrams && arrived[phase] >= in[phase].size()) {
      ++phase;
    } else if (size > 0 || sent[phase] > before) {
      last = Clock::now();
    } else if (Clock::now() - last > std::chrono::nanoseconds(arrived[0] == 0 ? patience_ns : silence_ns)) {
      break;
    }
  }
  return arrived[0] + arrived[1];
}

}  // namespace mlt::bare_udp
