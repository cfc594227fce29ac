// The ceiling of kernel UDP on this machine: the bare UDP_SEGMENT loop of src/bare_udp between two processes.
//
// Reads one line per round from standard input, writes the receiver's goodput of that round (payload bytes that arrived
// per second) and the fraction that arrived, and ends with the input.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bare_udp/loop.h"

namespace {

constexpr std::size_t kPayload = 1'440;
constexpr std::int64_t kSilenceNs = 50'000'000;

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
  mlt::bare_udp::prepare(fd, kSilenceNs);
  return fd;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t bytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 64U << 20;
  sockaddr_in sender_address, receiver_address;
  const int sender = bound_socket(sender_address), receiver = bound_socket(receiver_address);
  require(::connect(sender, reinterpret_cast<sockaddr*>(&receiver_address), sizeof receiver_address) == 0, "connect");
  int start_pipe[2];
  require(::pipe(start_pipe) == 0, "pipe");
  std::vector<std::byte> data(bytes, std::byte{1});  // touched

  const pid_t child = ::fork();
  require(child >= 0, "fork");
  if (child == 0) {
    ::close(start_pipe[1]);
    char go = 0;
    while (::read(start_pipe[0], &go, 1) == 1) mlt::bare_udp::send(sender, data, kPayload);
    ::_exit(0);
  }
  ::close(start_pipe[0]);
  std::array<char, 64> line;
  while (std::fgets(line.data(), static_cast<int>(line.size()), stdin) != nullptr) {
    require(::write(start_pipe[1], "g", 1) == 1, "start the sender");
    const mlt::bare_udp::Received received = mlt::bare_udp::receive(receiver, data, kPayload);
    const double seconds = 1e-9 * static_cast<double>(received.elapsed_ns);
    std::printf("%.6e %.6f\n", static_cast<double>(received.bytes) / seconds,
                static_cast<double>(received.bytes) / static_cast<double>(bytes));
    std::fflush(stdout);
  }
  ::close(start_pipe[1]);
  ::waitpid(child, nullptr, 0);
}
