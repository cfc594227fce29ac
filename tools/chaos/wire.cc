// mlt_chaos_wire A MAC_A B MAC_B: a network with faults on command, in place of a spine switch's forwarding.
//
// Runs in the switch's namespace, whose kernel forwards nothing. IPv4 frames received on interface A leave by B, to
// MAC_B, and vice versa: at once, later, never, twice, or damaged. Commands are read from standard input, one per line:
//   set delay_us=15000 drop=0.1 duplicate=0 reorder=0 corrupt=0 seed=7     (omitted values become 0)
//   counters
// A delay preserves the order of packets, also when it ends; `reorder` holds single packets for 2 ms. Corruption flips
// one bit behind the IP header, which the receiver's checksum detects. `counters` prints a line: forwarded, dropped (by
// command, or rejected by sockets and queues), duplicated, reordered, corrupted.
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <queue>
#include <sstream>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/time.h"

namespace {

using mlt::base::TimeNs;

constexpr std::uint32_t kHostsNetwork = 0x0A4D0000;  // 10.77.0.0/16: the hosts of a testbed
constexpr TimeNs kReorderNs = 2 * mlt::base::kMillisecond;
constexpr int kBatch = 64;

TimeNs now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return TimeNs{t.tv_sec} * mlt::base::kSecond + t.tv_nsec;
}

struct Side {
  int fd = -1;
  std::array<unsigned char, ETH_ALEN> own{};
  std::array<unsigned char, ETH_ALEN> neighbour{};
  TimeNs last_due_ns = 0;
};

struct Held {
  TimeNs due_ns = 0;
  std::uint64_t number = 0;
  std::size_t side = 0;
  std::vector<unsigned char> frame;
  bool operator<(const Held& other) const {  // for a priority queue: the earliest on top
    return due_ns != other.due_ns ? due_ns > other.due_ns : number > other.number;
  }
};

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "mlt_chaos_wire: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

class Wire {
 public:
  Wire(const char* const* arguments) {
    for (std::size_t i = 0; i < 2; ++i) open(sides_[i], arguments[2 * i], arguments[2 * i + 1]);
  }

  void run() {
    std::string input;
    while (true) {
      std::array<pollfd, 3> fds = {{{sides_[0].fd, POLLIN, 0}, {sides_[1].fd, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}}};
      const TimeNs wait = held_.empty() ? mlt::base::kSecond : std::max<TimeNs>(held_.top().due_ns - now_ns(), 0);
      const timespec limit{wait / mlt::base::kSecond, wait % mlt::base::kSecond};
      if (ppoll(fds.data(), fds.size(), &limit, nullptr) < 0 && errno != EINTR) die("poll");
      for (std::size_t i = 0; i < 2; ++i) receive(i);
      release();
      if (fds[2].revents == 0) continue;
      std::array<char, 512> text{};
      const ssize_t got = read(STDIN_FILENO, text.data(), text.size());
      if (got <= 0) return;
      input.append(text.data(), static_cast<std::size_t>(got));
      for (std::size_t end = input.find('\n'); end != std::string::npos; end = input.find('\n')) {
        command(input.substr(0, end));
        input.erase(0, end + 1);
      }
    }
  }

 private:
  static void open(Side& side, const char* interface, const char* neighbour) {
    side.fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, htons(ETH_P_IP));
    if (side.fd < 0) die("packet socket");
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_IP);
    address.sll_ifindex = static_cast<int>(if_nametoindex(interface));
    if (bind(side.fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) die(interface);
    const int bytes = 64 << 20;
    if (setsockopt(side.fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) != 0) die("receive buffer");
    if (setsockopt(side.fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0) die("send buffer");
    socklen_t length = sizeof address;
    if (getsockname(side.fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) die("own address");
    std::memcpy(side.own.data(), address.sll_addr, ETH_ALEN);
    auto& mac = side.neighbour;
    if (std::sscanf(neighbour, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &mac[0], &mac[1], &mac[2], &mac[3], &mac[4], &mac[5]) !=
        ETH_ALEN) {
      errno = EINVAL;
      die(neighbour);
    }
  }

  void receive(std::size_t side) {
    std::array<unsigned char, 2048> frame{};
    for (int i = 0; i < kBatch; ++i) {
      sockaddr_ll from{};
      socklen_t length = sizeof from;
      const ssize_t got =
          recvfrom(sides_[side].fd, frame.data(), frame.size(), MSG_TRUNC, reinterpret_cast<sockaddr*>(&from), &length);
      if (got < 0) return;
      if (from.sll_pkttype != PACKET_HOST || got < ETH_HLEN + 20) continue;
      if (static_cast<std::size_t>(got) > frame.size()) {
        ++dropped_;
        continue;
      }
      std::uint32_t target = 0;
      std::memcpy(&target, frame.data() + ETH_HLEN + 16, sizeof target);
      if ((ntohl(target) & 0xFFFF0000) != kHostsNetwork) continue;
      treat(1 - side, {frame.data(), frame.data() + got});
    }
  }

  void treat(std::size_t side, std::vector<unsigned char> frame) {
    if (dice_.chance(options_["drop"])) {
      ++dropped_;
      return;
    }
    std::memcpy(frame.data(), sides_[side].neighbour.data(), ETH_ALEN);
    std::memcpy(frame.data() + ETH_ALEN, sides_[side].own.data(), ETH_ALEN);
    if (dice_.chance(options_["corrupt"])) {
      ++corrupted_;
      const std::size_t begin = ETH_HLEN + std::size_t{4} * (frame[ETH_HLEN] & 15U);
      if (begin < frame.size()) {
        frame[begin + dice_.below(frame.size() - begin)] ^= static_cast<unsigned char>(1U << dice_.below(8));
      }
    }
    Side& out = sides_[side];
    const TimeNs now = now_ns();
    TimeNs due = std::max(now + static_cast<TimeNs>(options_["delay_us"] * 1e3), out.last_due_ns);
    if (dice_.chance(options_["reorder"])) {
      ++reordered_;
      due += kReorderNs;
    } else {
      out.last_due_ns = due;
    }
    if (dice_.chance(options_["duplicate"])) {
      ++duplicated_;
      hold(side, due, frame);
    }
    hold(side, due, std::move(frame));
  }

  void hold(std::size_t side, TimeNs due, std::vector<unsigned char> frame) {
    held_.push({due, ++number_, side, std::move(frame)});
  }

  void release() {
    const TimeNs now = now_ns();
    while (!held_.empty() && held_.top().due_ns <= now) {
      const Held& next = held_.top();
      const ssize_t sent = send(sides_[next.side].fd, next.frame.data(), next.frame.size(), 0);
      ++(sent < 0 ? dropped_ : forwarded_);
      held_.pop();
    }
  }

  void command(const std::string& line) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "counters") return print_counters();
    options_.clear();
    for (std::string pair; words >> pair;) {
      const std::size_t equals = pair.find('=');
      if (equals != std::string::npos) options_[pair.substr(0, equals)] = std::atof(pair.c_str() + equals + 1);
    }
    if (options_["seed"] > 0) dice_ = mlt::base::Prng(static_cast<std::uint64_t>(options_["seed"]));
  }

  void print_counters() {
    for (const Side& side : sides_) {
      tpacket_stats stats{};
      socklen_t length = sizeof stats;
      if (getsockopt(side.fd, SOL_PACKET, PACKET_STATISTICS, &stats, &length) == 0) dropped_ += stats.tp_drops;
    }
    std::printf("%llu %llu %llu %llu %llu\n", forwarded_, dropped_, duplicated_, reordered_, corrupted_);
    std::fflush(stdout);
  }

  std::array<Side, 2> sides_;
  std::map<std::string, double> options_;
  mlt::base::Prng dice_{1};
  std::priority_queue<Held> held_;
  std::uint64_t number_ = 0;
  unsigned long long forwarded_ = 0;
  unsigned long long dropped_ = 0;
  unsigned long long duplicated_ = 0;
  unsigned long long reordered_ = 0;
  unsigned long long corrupted_ = 0;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::fprintf(stderr, "usage: mlt_chaos_wire INTERFACE MAC INTERFACE MAC\n");
    return 2;
  }
  Wire(arguments + 1).run();
}
