// Goodput of the datapaths between two processes over a virtual Ethernet cable: kernel UDP with and without offload,
// AF_XDP in the driver and in the stack.
//
//     bench_datapath_veth [seconds per round] [rounds]
//
// Every run is 44 datagrams of 1,440 bytes; the sender does not pace, so what counts is what the receiver got, and what
// it did not get is given as lost. The receiver copies every byte once, as an endpoint does. Rounds of the variants
// alternate, so that a noisy machine hits all alike; medians, extremes, and the ratio to the first variant's median.
// CPU is the sender's, per datagram sent: on a virtual cable that includes most of the kernel's work for the receiver.
// Makes its own namespaces and needs root. Output: one JSON object per variant.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "bench/arguments.h"
#include "io/os/clock.h"
#include "io/udp/udp_datapath.h"
#include "io/xdp/xdp_datapath.h"
#include "support/veth_pair.h"

using namespace mlt;
using io_test::VethPair;

namespace {

constexpr std::uint32_t kDatagrams = 44;
constexpr std::uint32_t kHeaderBytes = 40;
constexpr std::uint32_t kDatagramBytes = 1'440;
constexpr std::size_t kTensorBytes = 64U << 20;

enum class Kind { kUdp, kUdpPerPacket, kXdpNative, kXdpGeneric };

struct Result {
  double gigabits = 0;
  double lost = 0;
  double sender_ns_per_datagram = 0;
};

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::exit(1);
}

std::unique_ptr<io::NetworkDatapath> open_datapath(Kind kind, const char* host) {
  io::OsError error;
  std::unique_ptr<io::NetworkDatapath> datapath;
  io::UdpOptions udp;
  udp.socket.bind = *io::SocketAddress::from_host(host, 0);
  udp.socket.receive_buffer_bytes = udp.socket.send_buffer_bytes = 8U << 20;
  udp.socket.receive_offload = udp.segmentation_offload = kind == Kind::kUdp;
  udp.peer_count = 2;
  if (kind == Kind::kUdp || kind == Kind::kUdpPerPacket) {
    datapath = io::UdpDatapath::open(udp, error);
  } else {
    io::XdpOptions xdp;
    xdp.socket = udp.socket;
    xdp.peer_count = 2;
    xdp.native = kind == Kind::kXdpNative;
    datapath = io::XdpDatapath::open(xdp, error);
  }
  if (!datapath) fail(error.text);
  return datapath;
}

class Sink final : public io::ReceiveSink {
 public:
  void on_run(const base::ReceivedRun& run) override {
    for (std::size_t at = 0; at < run.bytes.size(); at += run.datagram_bytes) {
      const std::size_t size = std::min<std::size_t>(run.datagram_bytes, run.bytes.size() - at);
      if (at_ + size > tensor_.size()) at_ = 0;
      std::memcpy(tensor_.data() + at_, run.bytes.data() + at, size);
      at_ += size;
      bytes += size;
    }
  }
  std::uint64_t bytes = 0;

 private:
  std::vector<std::byte> tensor_ = std::vector<std::byte>(kTensorBytes);
  std::size_t at_ = 0;
};

// Sends for so long; returns how many datagrams were taken.
std::uint64_t send_for(double seconds, io::Datapath& datapath) {
  const std::vector<std::byte> tensor(kTensorBytes, std::byte{1});
  const auto run = std::make_unique<base::DatagramRun>();
  run->peer = 1;
  run->datagram_count = kDatagrams;
  run->datagram_bytes = kDatagramBytes;
  run->total_bytes = kDatagrams * kDatagramBytes;
  run->slice_count = 2 * kDatagrams;
  constexpr std::size_t kPayload = kDatagramBytes - kHeaderBytes;
  std::uint64_t sent = 0;
  std::size_t at = 0;
  const base::TimeNs end = io::monotonic_now() + static_cast<base::DurationNs>(seconds * 1e9);
  while (io::monotonic_now() < end) {
    if (at + kDatagrams * kPayload > tensor.size()) at = 0;
    for (std::uint32_t i = 0; i < kDatagrams; ++i) {
      std::byte* header = run->scratch.data() + i * kHeaderBytes;
      std::memset(header, static_cast<int>(i), kHeaderBytes);
      run->slices[2 * i] = {header, kHeaderBytes};
      run->slices[2 * i + 1] = {tensor.data() + at, kPayload};
      at += kPayload;
    }
    pollfd writable{datapath.readable_fd(), POLLOUT, 0};
    io::SendStatus status = io::SendStatus::kWouldBlock;
    while ((status = datapath.send(io::monotonic_now(), *run)) == io::SendStatus::kWouldBlock &&
           io::monotonic_now() < end) {
      ::poll(&writable, 1, 1);
    }
    if (status == io::SendStatus::kFailed) fail(datapath.last_error());
    if (status == io::SendStatus::kSent) sent += kDatagrams;
  }
  return sent;
}

Result measure(const VethPair& cable, Kind kind, double seconds) {
  std::unique_ptr<io::NetworkDatapath> receiver;
  cable.inside(1, [&] { receiver = open_datapath(kind, VethPair::kIpv4[1]); });
  int report[2];
  if (::pipe(report) != 0) fail("no pipe");
  const pid_t child = ::fork();
  if (child < 0) fail("no process");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // never outlives the measurement, however that ends
    if (::setns(cable.descriptor(0), CLONE_NEWNET) != 0) fail("cannot enter the namespace");
    const auto sender = open_datapath(kind, VethPair::kIpv4[0]);
    io::OsError error;
    if (!sender->set_peer(1, receiver->local_address(), error)) fail(error.text);
    const std::uint64_t sent = send_for(seconds, *sender);
    const bool written = ::write(report[1], &sent, sizeof sent) == sizeof sent;
    ::_exit(written ? 0 : 1);
  }
  ::close(report[1]);
  Sink sink;
  base::TimeNs first = 0, last = 0;
  pollfd ready[2] = {{receiver->readable_fd(), POLLIN, 0}, {report[0], POLLIN, 0}};
  bool ended = false;
  while (true) {
    const base::TimeNs now = io::monotonic_now();
    if (receiver->receive(now, 16, sink) > 0) {
      if (first == 0) first = now;
      last = now;
      continue;
    }
    if (ended) break;
    ::poll(ready, 2, 100);
    ended = (ready[1].revents & (POLLIN | POLLHUP)) != 0;
  }
  std::uint64_t sent = 0;
  if (::read(report[0], &sent, sizeof sent) != sizeof sent || sent == 0 || last <= first) fail("nothing was sent");
  ::close(report[0]);
  rusage usage{};
  ::wait4(child, nullptr, 0, &usage);
  const auto cpu_s = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  Result result;
  result.gigabits = static_cast<double>(sink.bytes) * 8 / static_cast<double>(last - first);
  result.lost = 1 - static_cast<double>(sink.bytes) / (static_cast<double>(sent) * kDatagramBytes);
  result.sender_ns_per_datagram = (cpu_s(usage.ru_utime) + cpu_s(usage.ru_stime)) * 1e9 / static_cast<double>(sent);
  return result;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const mlt::bench::Arguments arguments(argc, argv, "[seconds per round] [rounds], both positive");
  const double seconds = arguments.number(1, 0.5, 0.001);
  const int rounds = arguments.number(2, 7);
  if (const std::string missing = VethPair::missing(); !missing.empty()) fail(missing);
  const VethPair cable;
  const struct {
    const char* name;
    Kind kind;
  } variants[] = {{"udp, a packet each", Kind::kUdpPerPacket},
                  {"udp, UDP_SEGMENT and UDP_GRO", Kind::kUdp},
                  {"xdp, native, copy mode", Kind::kXdpNative},
                  {"xdp, generic, copy mode", Kind::kXdpGeneric}};
  std::array<std::vector<double>, std::size(variants)> gigabits, lost, cpu;
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < std::size(variants); ++i) {
      const Result result = measure(cable, variants[i].kind, seconds);
      gigabits[i].push_back(result.gigabits);
      lost[i].push_back(result.lost);
      cpu[i].push_back(result.sender_ns_per_datagram);
    }
  }
  for (std::size_t i = 0; i < std::size(variants); ++i) {
    std::printf(
        "{\"variant\": \"%s\", \"gbit_per_s_median\": %.2f, \"min\": %.2f, \"max\": %.2f, \"ratio\": %.2f, "
        "\"lost_median\": %.3f, \"sender_cpu_ns_per_datagram\": %.0f, \"rounds\": %d}\n",
        variants[i].name, median(gigabits[i]), *std::min_element(gigabits[i].begin(), gigabits[i].end()),
        *std::max_element(gigabits[i].begin(), gigabits[i].end()), median(gigabits[i]) / median(gigabits[0]),
        median(lost[i]), median(cpu[i]), rounds);
  }
  return 0;
}
