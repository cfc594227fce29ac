// Does MSG_ZEROCOPY pay for runs of 64 KB? Goodput and the sender's CPU time against the copying send, for runs that
// are one piece of memory and for runs as the transport makes them: a header and a slice of the tensor per datagram.
//
//     bench_udp_zerocopy [seconds per round] [rounds]              both ends on loopback, variants in turns
//     bench_udp_zerocopy receive ADDRESS PORT SECONDS              one end, for namespaces or machines
//     bench_udp_zerocopy send ADDRESS PORT SECONDS VARIANT         the other end; VARIANT as the first mode prints it
//
// "copied" is the part of the notifications in which the kernel says that it copied after all (loopback, veth and
// drivers without scatter-gather make it do so). Output: one JSON object per variant.
#include <time.h>
// After time.h, whose timespec it needs.
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "io/net/socket_address.h"
#include "io/os/clock.h"

using namespace mlt;

namespace {

constexpr std::size_t kDatagrams = 44;
constexpr std::size_t kDatagramBytes = 1'440;
constexpr std::size_t kHeaderBytes = 40;
constexpr std::size_t kRunBytes = kDatagrams * kDatagramBytes;
constexpr std::size_t kTensorBytes = 64U << 20;
constexpr int kBufferBytes = 8 << 20;
// Runs whose memory the kernel may still read, before the sender waits for notifications.
constexpr std::uint64_t kMaxInFlight = 64;

struct Variant {
  const char* name;
  bool zerocopy;
  bool slices;
};
constexpr std::array<Variant, 4> kVariants = {{{"copy-whole", false, false},
                                               {"zerocopy-whole", true, false},
                                               {"copy-slices", false, true},
                                               {"zerocopy-slices", true, true}}};

struct Sent {
  std::uint64_t bytes = 0;
  std::uint64_t refused = 0;
  int refusal = 0;  // errno of the last refusal that was not about room
  std::uint64_t notified = 0;
  std::uint64_t copied = 0;
  double cpu_seconds = 0;
};

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int open_socket(const io::SocketAddress& bind) {
  const int fd = ::socket(bind.family(), SOCK_DGRAM | SOCK_NONBLOCK, 0);
  if (fd < 0 || ::bind(fd, bind.raw(), bind.raw_size()) != 0) {
    std::perror("open a UDP socket");
    std::exit(1);
  }
  for (const int option : {SO_RCVBUF, SO_SNDBUF, SO_RCVBUFFORCE, SO_SNDBUFFORCE}) {
    ::setsockopt(fd, SOL_SOCKET, option, &kBufferBytes, sizeof kBufferBytes);
  }
  const int on = 1;
  ::setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on);
  return fd;
}

// Takes the notifications that wait.
void take_notifications(int fd, Sent& sent) {
  for (;;) {
    alignas(cmsghdr) std::array<std::byte, 256> control;
    msghdr message{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (::recvmsg(fd, &message, MSG_ERRQUEUE) < 0) return;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
      sock_extended_err error{};
      std::memcpy(&error, CMSG_DATA(header), sizeof error);
      if (error.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
      const std::uint64_t runs = error.ee_data - error.ee_info + 1;
      sent.notified += runs;
      if ((error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0) sent.copied += runs;
    }
  }
}

Sent send_for(double seconds, const io::SocketAddress& to, const Variant& variant) {
  const int fd = open_socket(io::SocketAddress::from_host(to.family() == AF_INET6 ? "::" : "0.0.0.0", 0).value());
  const int segment = kDatagramBytes;
  const int on = 1;
  ::setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment);
  if (variant.zerocopy && ::setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) != 0) {
    std::perror("SO_ZEROCOPY");
    std::exit(1);
  }
  std::vector<std::byte> tensor(kTensorBytes, std::byte{1});
  std::vector<std::byte> headers(kDatagrams * kHeaderBytes, std::byte{2});
  std::array<iovec, 2 * kDatagrams> vectors;
  Sent sent;
  std::uint64_t taken = 0;
  const double cpu = cpu_seconds();
  const base::TimeNs end = io::monotonic_now() + static_cast<base::DurationNs>(seconds * 1e9);
  std::size_t at = 0;
  while (io::monotonic_now() < end) {
    if (at + kRunBytes > tensor.size()) at = 0;
    msghdr message{};
    message.msg_name = const_cast<sockaddr*>(to.raw());
    message.msg_namelen = to.raw_size();
    message.msg_iov = vectors.data();
    if (variant.slices) {
      for (std::size_t i = 0; i < kDatagrams; ++i) {
        vectors[2 * i] = {headers.data() + i * kHeaderBytes, kHeaderBytes};
        vectors[2 * i + 1] = {tensor.data() + at + i * (kDatagramBytes - kHeaderBytes), kDatagramBytes - kHeaderBytes};
      }
      message.msg_iovlen = 2 * kDatagrams;
    } else {
      vectors[0] = {tensor.data() + at, kRunBytes};
      message.msg_iovlen = 1;
    }
    if (::sendmsg(fd, &message, variant.zerocopy ? MSG_ZEROCOPY : 0) >= 0) {
      sent.bytes += kRunBytes;
      at += kRunBytes;
      ++taken;
    } else if (errno == EAGAIN || errno == ENOBUFS) {
      pollfd writable{fd, POLLOUT, 0};
      ::poll(&writable, 1, 1);
    } else {
      sent.refusal = errno;
      if (++sent.refused == 1'000) break;
    }
    if (!variant.zerocopy) continue;
    take_notifications(fd, sent);
    while (taken - sent.notified > kMaxInFlight && io::monotonic_now() < end) {
      pollfd notice{fd, 0, 0};
      ::poll(&notice, 1, 1);
      take_notifications(fd, sent);
    }
  }
  sent.cpu_seconds = cpu_seconds() - cpu;
  ::close(fd);
  return sent;
}

void print_sent(const Variant& variant, const Sent& sent, double gigabits) {
  const double gigabytes = static_cast<double>(sent.bytes) / 1e9;
  std::printf("{\"variant\": \"%s\"", variant.name);
  if (gigabits >= 0) std::printf(", \"gbit_per_s\": %.2f", gigabits);
  if (sent.bytes > 0) std::printf(", \"sender_cpu_s_per_gb\": %.3f", sent.cpu_seconds / gigabytes);
  if (sent.notified > 0) {
    std::printf(", \"copied\": %.2f", static_cast<double>(sent.copied) / static_cast<double>(sent.notified));
  }
  if (sent.refused > 0) std::printf(", \"refused\": \"%s\"", strerrorname_np(sent.refusal));
  std::printf("}\n");
}

// Bytes that arrived within `seconds` of the first.
double receive_for(double seconds, int fd) {
  std::vector<std::byte> buffer(65'536);
  std::uint64_t bytes = 0;
  base::TimeNs start = 0;
  base::TimeNs now = 0;
  while (start == 0 || now - start < static_cast<base::DurationNs>(seconds * 1e9)) {
    pollfd ready{fd, POLLIN, 0};
    if (::poll(&ready, 1, 500) == 0 && start == 0) return 0;
    for (ssize_t got = 0; (got = ::recv(fd, buffer.data(), buffer.size(), 0)) > 0;) {
      if (start == 0) start = io::monotonic_now();
      bytes += static_cast<std::uint64_t>(got);
      if (bytes % (1U << 24) < 65'536 && io::monotonic_now() - start > static_cast<base::DurationNs>(seconds * 1e9)) {
        break;
      }
    }
    now = io::monotonic_now();
  }
  return static_cast<double>(bytes) * 8 / static_cast<double>(now - start);
}

struct Round {
  double gigabits = 0;
  Sent sent;
};

Round loopback_round(double seconds, const Variant& variant) {
  const int receiver = open_socket(io::SocketAddress::loopback(AF_INET, 0));
  const io::SocketAddress to = io::SocketAddress::local_of(receiver);
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) std::abort();
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(receiver);
    const Sent sent = send_for(seconds, to, variant);
    ::_exit(::write(pipe[1], &sent, sizeof sent) == sizeof sent ? 0 : 1);
  }
  Round round;
  round.gigabits = receive_for(seconds * 0.9, receiver);
  if (::read(pipe[0], &round.sent, sizeof round.sent) != sizeof round.sent) std::abort();
  ::waitpid(child, nullptr, 0);
  for (const int fd : {pipe[0], pipe[1], receiver}) ::close(fd);
  return round;
}

int usage(const char* name) {
  std::fprintf(stderr,
               "usage: %s [seconds per round] [rounds]\n       %s receive ADDRESS PORT SECONDS\n"
               "       %s send ADDRESS PORT SECONDS VARIANT\n",
               name, name, name);
  return 2;
}

int one_end(int argc, char** argv) {
  const auto address =
      io::SocketAddress::from_host(argv[2], static_cast<std::uint16_t>(argc > 3 ? std::atoi(argv[3]) : 0));
  const double seconds = argc > 4 ? std::atof(argv[4]) : 0;
  if (!address || address->port() == 0 || !(seconds > 0)) return usage(argv[0]);
  if (argc == 5 && std::strcmp(argv[1], "receive") == 0) {
    std::printf("{\"gbit_per_s\": %.2f}\n", receive_for(seconds, open_socket(*address)));
    return 0;
  }
  for (const Variant& variant : kVariants) {
    if (argc != 6 || std::strcmp(argv[5], variant.name) != 0) continue;
    print_sent(variant, send_for(seconds, *address, variant), -1);
    return 0;
  }
  return usage(argv[0]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && (std::strcmp(argv[1], "receive") == 0 || std::strcmp(argv[1], "send") == 0)) {
    return one_end(argc, argv);
  }
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.5;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  if (!(seconds > 0) || rounds < 1) return usage(argv[0]);
  std::array<std::vector<Round>, kVariants.size()> results;
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < kVariants.size(); ++i) results[i].push_back(loopback_round(seconds, kVariants[i]));
  }
  for (std::size_t i = 0; i < kVariants.size(); ++i) {
    std::vector<Round>& all = results[i];
    std::sort(all.begin(), all.end(), [](const Round& a, const Round& b) { return a.gigabits < b.gigabits; });
    print_sent(kVariants[i], all[all.size() / 2].sent, all[all.size() / 2].gigabits);
  }
  return 0;
}
