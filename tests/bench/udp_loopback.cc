// Goodput of UdpDatapath between two processes on loopback, next to a plain UDP_SEGMENT loop without any of our code.
//
//     bench_udp_loopback [seconds per round] [rounds]
//
// Every run is 44 datagrams of 1,440 bytes; the receiver copies every byte once, as an endpoint does. The sender does
// not pace, so what counts is what the receiver got. Rounds of the variants alternate, so that a noisy machine hits all
// alike; the table gives medians and extremes. Output: one JSON object per variant.
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "io/fault/fault_datapath.h"
#include "io/os/clock.h"
#include "io/udp/udp_datapath.h"
#include "io/udp/udp_paths_datapath.h"

using namespace mlt;

namespace {

constexpr std::uint32_t kDatagrams = 44;
constexpr std::uint32_t kHeaderBytes = 40;
constexpr std::uint32_t kDatagramBytes = 1'440;
constexpr std::uint32_t kRunBytes = kDatagrams * kDatagramBytes;
constexpr std::size_t kTensorBytes = 64U << 20;
constexpr std::uint32_t kBufferBytes = 8U << 20;

struct Result {
  std::uint64_t bytes = 0;
  base::DurationNs elapsed_ns = 0;
  double gigabits() const { return static_cast<double>(bytes) * 8 / static_cast<double>(elapsed_ns); }
};

// Where received bytes are copied to, walking through a tensor like an endpoint would.
class Destination {
 public:
  void copy(const std::byte* from, std::size_t size) {
    if (at_ + size > tensor_.size()) at_ = 0;
    std::memcpy(tensor_.data() + at_, from, size);
    at_ += size;
    bytes_ += size;
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::vector<std::byte> tensor_ = std::vector<std::byte>(kTensorBytes);
  std::size_t at_ = 0;
  std::uint64_t bytes_ = 0;
};

// From the first byte received until `seconds` later.
template <typename ReceiveSome>
Result measure(double seconds, int fd, const Destination& destination, ReceiveSome receive_some) {
  pollfd ready{fd, POLLIN, 0};
  while (destination.bytes() == 0) {
    ::poll(&ready, 1, 1'000);
    receive_some();
  }
  const base::TimeNs start = io::monotonic_now();
  const std::uint64_t before = destination.bytes();
  const base::TimeNs end = start + static_cast<base::DurationNs>(seconds * 1e9);
  base::TimeNs now = start;
  while (now < end) {
    if (!receive_some()) ::poll(&ready, 1, 10);
    now = io::monotonic_now();
  }
  return {destination.bytes() - before, now - start};
}

// A child that sends until it is killed.
template <typename SendForever>
pid_t start_sender(SendForever send_forever) {
  const pid_t child = ::fork();
  if (child < 0) std::abort();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // never outlives the measurement, however that ends
    send_forever();
    ::_exit(0);
  }
  return child;
}

void stop(pid_t child) {
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

std::unique_ptr<io::NetworkDatapath> open_datapath(bool offload, std::uint8_t paths) {
  io::UdpOptions options;
  options.socket.bind = io::SocketAddress::loopback(AF_INET, 0);
  options.socket.receive_buffer_bytes = options.socket.send_buffer_bytes = kBufferBytes;
  options.socket.receive_offload = offload;
  options.segmentation_offload = offload;
  options.peer_count = 2;
  io::OsError error;
  std::unique_ptr<io::NetworkDatapath> datapath;
  if (paths == 1) {
    datapath = io::UdpDatapath::open(options, error);
  } else {
    std::vector<io::PathSpec> specs(paths);
    for (io::PathSpec& spec : specs) spec.bind = options.socket.bind;
    datapath = io::UdpPathsDatapath::open(options, specs, error);
  }
  if (datapath == nullptr) {
    std::fprintf(stderr, "%s\n", error.text.c_str());
    std::exit(1);
  }
  return datapath;
}

// With several paths, runs take them in turns.
Result datapath_round(double seconds, bool offload, double drop = 0, std::uint8_t paths = 1) {
  const auto receiver = open_datapath(offload, paths);
  std::vector<io::SocketAddress> to;
  for (std::uint8_t path = 0; path < paths; ++path) to.push_back(receiver->path_address(path));
  const pid_t sender = start_sender([to, offload, drop, paths] {
    auto udp = open_datapath(offload, paths);
    io::OsError error;
    udp->set_peer_paths(1, to, error);
    std::unique_ptr<io::Datapath> datapath = std::move(udp);
    if (drop > 0) {
      io::FaultOptions faults;
      faults.drop = drop;
      datapath = io::FaultDatapath::wrap(std::move(datapath), faults, error);
    }
    const std::vector<std::byte> tensor(kTensorBytes, std::byte{1});
    base::DatagramRun run;
    run.peer = 1;
    run.datagram_count = kDatagrams;
    run.datagram_bytes = kDatagramBytes;
    run.total_bytes = kRunBytes;
    run.slice_count = 2 * kDatagrams;
    constexpr std::size_t kPayload = kDatagramBytes - kHeaderBytes;
    for (std::size_t at = 0;;) {
      if (at + kDatagrams * kPayload > tensor.size()) at = 0;
      for (std::uint32_t i = 0; i < kDatagrams; ++i) {
        std::byte* header = run.scratch.data() + i * kHeaderBytes;
        std::memset(header, static_cast<int>(i), kHeaderBytes);
        run.slices[2 * i] = {header, kHeaderBytes};
        run.slices[2 * i + 1] = {tensor.data() + at, kPayload};
        at += kPayload;
      }
      run.path = static_cast<std::uint8_t>((run.path + 1) % paths);
      pollfd writable{datapath->writable_fd(run), POLLOUT, 0};
      while (datapath->send(0, run) == io::SendStatus::kWouldBlock) ::poll(&writable, 1, 1);
    }
  });
  class Sink final : public io::ReceiveSink {
   public:
    void on_run(const base::ReceivedRun& run) override {
      for (std::size_t at = 0; at < run.bytes.size(); at += run.datagram_bytes) {
        destination.copy(run.bytes.data() + at, std::min<std::size_t>(run.datagram_bytes, run.bytes.size() - at));
      }
    }
    Destination destination;
  } sink;
  const Result result =
      measure(seconds, receiver->readable_fd(), sink.destination, [&] { return receiver->receive(0, 16, sink) > 0; });
  stop(sender);
  return result;
}

int open_plain() {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
  const int bytes = kBufferBytes;
  const int on = 1;
  for (const int option : {SO_RCVBUF, SO_SNDBUF, SO_RCVBUFFORCE, SO_SNDBUFFORCE}) {
    ::setsockopt(fd, SOL_SOCKET, option, &bytes, sizeof bytes);
  }
  ::setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on);
  const io::SocketAddress any = io::SocketAddress::loopback(AF_INET, 0);
  if (fd < 0 || ::bind(fd, any.raw(), any.raw_size()) != 0) std::abort();
  return fd;
}

// `batch` messages per recvmmsg(); 0: recvmsg(), one at a time.
Result plain_round(double seconds, std::size_t batch) {
  const int receiver = open_plain();
  const io::SocketAddress to = io::SocketAddress::local_of(receiver);
  const pid_t sender = start_sender([to] {
    const int fd = open_plain();
    const int segment = kDatagramBytes;
    ::setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment);
    const std::vector<std::byte> tensor(kTensorBytes, std::byte{1});
    pollfd writable{fd, POLLOUT, 0};
    for (std::size_t at = 0;; at += kRunBytes) {
      if (at + kRunBytes > tensor.size()) at = 0;
      while (::sendto(fd, tensor.data() + at, kRunBytes, 0, to.raw(), to.raw_size()) < 0) ::poll(&writable, 1, 1);
    }
  });
  Destination destination;
  const std::size_t slots = std::max<std::size_t>(batch, 1);
  std::vector<std::byte> buffers(slots << 16);
  std::vector<iovec> vectors(slots);
  std::vector<mmsghdr> messages(slots);
  for (std::size_t i = 0; i < slots; ++i) {
    vectors[i] = {buffers.data() + (i << 16), 65'535};
    messages[i].msg_hdr.msg_iov = &vectors[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const Result result = measure(seconds, receiver, destination, [&] {
    if (batch == 0) {
      bool any = false;
      for (int i = 0; i < 16; ++i) {
        const ssize_t got = ::recvmsg(receiver, &messages[0].msg_hdr, 0);
        if (got <= 0) break;
        destination.copy(buffers.data(), static_cast<std::size_t>(got));
        any = true;
      }
      return any;
    }
    const int got = ::recvmmsg(receiver, messages.data(), static_cast<unsigned>(slots), 0, nullptr);
    for (int i = 0; i < got; ++i) {
      const auto slot = static_cast<std::size_t>(i);
      destination.copy(buffers.data() + (slot << 16), messages[slot].msg_len);
    }
    return got > 0;
  });
  stop(sender);
  ::close(receiver);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.5;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  if (!(seconds > 0) || rounds < 1) {
    std::fprintf(stderr, "usage: %s [seconds per round] [rounds], both positive\n", argv[0]);
    return 2;
  }
  const struct {
    const char* name;
    Result (*round)(double);
  } variants[] = {
      {"UdpDatapath", [](double s) { return datapath_round(s, true); }},
      {"UdpPathsDatapath, 4 paths", [](double s) { return datapath_round(s, true, 0, 4); }},
      {"UdpDatapath, 1 % dropped by FaultDatapath", [](double s) { return datapath_round(s, true, 0.01); }},
      {"plain UDP_SEGMENT, recvmsg", [](double s) { return plain_round(s, 0); }},
      {"plain UDP_SEGMENT, recvmmsg of 8", [](double s) { return plain_round(s, 8); }},
      {"UdpDatapath without offload", [](double s) { return datapath_round(s, false); }},
  };
  std::array<std::vector<double>, std::size(variants)> results;
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < std::size(variants); ++i) results[i].push_back(variants[i].round(seconds).gigabits());
  }
  for (std::size_t i = 0; i < std::size(variants); ++i) {
    std::vector<double>& gigabits = results[i];
    std::sort(gigabits.begin(), gigabits.end());
    std::printf("{\"variant\": \"%s\", \"gbit_per_s_median\": %.2f, \"min\": %.2f, \"max\": %.2f, \"rounds\": %zu}\n",
                variants[i].name, gigabits[gigabits.size() / 2], gigabits.front(), gigabits.back(), gigabits.size());
  }
  return 0;
}
