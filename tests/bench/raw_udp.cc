// The ceiling of kernel UDP on this machine: a bare UDP_SEGMENT loop between two processes that copies once.
//
// No protocol: one process sends runs of equal datagrams as fast as the socket takes them, the other receives merged
// runs (UDP_GRO) and copies each datagram's payload to its place in a buffer, which it touched before. Reads one line
// per round from standard input, writes the receiver's goodput of that round (payload bytes that arrived per second)
// and the fraction that arrived, and ends with the input.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr std::size_t kHeader = 40, kPayload = 1'440, kDatagram = kHeader + kPayload;
constexpr std::size_t kRun = 44;  // datagrams in one system call: what fits 64 KB

void require(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::exit(1);
}

int bound_socket(sockaddr_in& address) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  require(fd >= 0, "socket");
  address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  require(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "bind");
  socklen_t size = sizeof address;
  require(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0, "getsockname");
  for (const int option : {SO_RCVBUF, SO_SNDBUF, SO_RCVBUFFORCE, SO_SNDBUFFORCE}) {
    const int bytes = 8 << 20;
    ::setsockopt(fd, SOL_SOCKET, option, &bytes,
                 sizeof bytes);  // forced where there is the right to, else up to the system's limit
  }
  return fd;
}

// Sends `datagrams` datagrams whose headers carry their number; payloads come straight from `data`.
void send_all(int fd, const std::vector<std::byte>& data, std::size_t datagrams) {
  std::vector<std::byte> headers(kRun * kHeader);
  std::array<iovec, 2 * kRun> vectors;
  for (std::size_t first = 0; first < datagrams; first += kRun) {
    const std::size_t count = std::min(kRun, datagrams - first);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t number = first + i;
      std::memcpy(headers.data() + i * kHeader, &number, sizeof number);
      vectors[2 * i] = {headers.data() + i * kHeader, kHeader};
      vectors[2 * i + 1] = {const_cast<std::byte*>(data.data()) + number * kPayload, kPayload};
    }
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(std::uint16_t))> control{};
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = 2 * count;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = IPPROTO_UDP;
    header->cmsg_type = UDP_SEGMENT;
    header->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
    const std::uint16_t segment = kDatagram;
    std::memcpy(CMSG_DATA(header), &segment, sizeof segment);
    require(::sendmsg(fd, &message, 0) >= 0, "sendmsg");
  }
}

struct Received {
  double seconds = 0;
  std::size_t datagrams = 0;
};

// Until the last datagram or 50 ms of silence, which ends a round whose tail was lost; the silence is not counted.
Received receive_all(int fd, std::vector<std::byte>& data, std::size_t datagrams) {
  std::vector<std::byte> buffer(65'536);
  Received received;
  std::chrono::steady_clock::time_point start{}, last{};
  while (true) {
    iovec vector{buffer.data(), buffer.size()};
    alignas(cmsghdr) std::array<char, 64> control{};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(fd, &message, 0);
    if (got <= 0) break;
    if (received.datagrams == 0) start = std::chrono::steady_clock::now();
    std::uint64_t number = 0;
    for (std::size_t at = 0; at + kDatagram <= static_cast<std::size_t>(got); at += kDatagram) {
      std::memcpy(&number, buffer.data() + at, sizeof number);
      std::memcpy(data.data() + number * kPayload, buffer.data() + at + kHeader, kPayload);
      ++received.datagrams;
    }
    last = std::chrono::steady_clock::now();
    if (number + 1 == datagrams) break;
  }
  received.seconds = std::chrono::duration<double>(last - start).count();
  return received;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t bytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 64U << 20;
  const std::size_t datagrams = bytes / kPayload;
  sockaddr_in sender_address, receiver_address;
  const int sender = bound_socket(sender_address), receiver = bound_socket(receiver_address);
  const int on = 1;
  require(::setsockopt(receiver, IPPROTO_UDP, UDP_GRO, &on, sizeof on) == 0, "UDP_GRO");
  const timeval silence{0, 50'000};
  require(::setsockopt(receiver, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence) == 0, "SO_RCVTIMEO");
  require(::connect(sender, reinterpret_cast<sockaddr*>(&receiver_address), sizeof receiver_address) == 0, "connect");
  int start_pipe[2];
  require(::pipe(start_pipe) == 0, "pipe");
  std::vector<std::byte> data(datagrams * kPayload, std::byte{1});  // touched

  const pid_t child = ::fork();
  require(child >= 0, "fork");
  if (child == 0) {
    ::close(start_pipe[1]);
    char go = 0;
    while (::read(start_pipe[0], &go, 1) == 1) send_all(sender, data, datagrams);
    ::_exit(0);
  }
  ::close(start_pipe[0]);
  std::array<char, 64> line;
  while (std::fgets(line.data(), static_cast<int>(line.size()), stdin) != nullptr) {
    require(::write(start_pipe[1], "g", 1) == 1, "start the sender");
    const Received received = receive_all(receiver, data, datagrams);
    const double goodput = static_cast<double>(received.datagrams * kPayload) / received.seconds;
    std::printf("%.6e %.6f\n", goodput, static_cast<double>(received.datagrams) / static_cast<double>(datagrams));
    std::fflush(stdout);
  }
  ::close(start_pipe[1]);
  ::waitpid(child, nullptr, 0);
}
