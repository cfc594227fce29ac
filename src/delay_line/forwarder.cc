#include "delay_line/forwarder.h"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/os/clock.h"

namespace mlt::delay_line {

namespace {

constexpr base::DurationNs kCountEvery = 100 * base::kMillisecond;
// What the kernel holds of a socket while the forwarder does not run, in its own accounting (a frame counts 2 to 3 KB):
// about 100 ms at 1 Gbit/s. Sent frames count until the receiver has them.
constexpr int kSocketBytes = 32 << 20;

}  // namespace

struct Forwarder::Batch {
  std::array<mmsghdr, kBatch> messages{};
  std::array<iovec, kBatch> vectors{};
  std::array<std::array<char, 64>, kBatch> controls{};
  std::array<std::uint32_t, kBatch> lengths{};
  std::array<base::TimeNs, kBatch> arrivals{};
  std::vector<pollfd> polled;
};

void Forwarder::BatchDeleter::operator()(Batch* batch) const { delete batch; }

Forwarder::Forwarder(std::span<DirectionRecord> records) : wheel_(records.size()), batch_(new Batch) {
  directions_.reserve(records.size());
  for (DirectionRecord& record : records) {
    const std::size_t from = port_of(record.from_index);
    const std::size_t to = port_of(record.to_index);
    if (!error_.empty()) return;
    directions_.push_back({&record, from, to,
                           FrameQueue(static_cast<std::uint32_t>(record.limit_frames), kBatch,
                                      static_cast<std::uint32_t>(record.frame_bytes), record.seed)});
    if (!directions_.back().queue) {
      fail("cannot map memory for " + std::to_string(record.limit_frames) + " frames");
      return;
    }
  }
  for (const Direction& one : directions_) batch_->polled.push_back({ports_[one.from].fd.get(), POLLIN, 0});
}

void Forwarder::fail(const std::string& what) { error_ = what + ": " + std::strerror(errno); }

std::size_t Forwarder::port_of(std::uint64_t index) {
  const auto known = std::ranges::find(ports_, index, &Port::index);
  if (known != ports_.end()) return static_cast<std::size_t>(known - ports_.begin());
  const std::string name = "interface " + std::to_string(index);
  // Protocol 0 until the socket is bound: otherwise it would receive from every interface.
  Port port{index, io::UniqueFd(::socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0))};
  const int fd = port.fd.get();
  const int on = 1;
  const int bytes = kSocketBytes;
  if (fd < 0) {
    fail("cannot open a packet socket");
  } else if (::setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) != 0 ||
             ::setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on) != 0 ||
             ::setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on) != 0) {
    fail("cannot set up a packet socket");
  }
  // Beyond the system's limit for root only; in a user namespace that limit applies.
  for (const auto& [forced, plain] : {std::pair{SO_RCVBUFFORCE, SO_RCVBUF}, std::pair{SO_SNDBUFFORCE, SO_SNDBUF}}) {
    if (::setsockopt(fd, SOL_SOCKET, forced, &bytes, sizeof bytes) != 0) {
      ::setsockopt(fd, SOL_SOCKET, plain, &bytes, sizeof bytes);
    }
  }
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(index);
  if (error_.empty() && ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    fail("cannot bind to " + name);
  }
  ports_.push_back(std::move(port));
  return ports_.size() - 1;
}

void Forwarder::turn() {
  base::TimeNs now = io::monotonic_now();
  for (std::uint32_t number = 0; wheel_.pop_due(now, number);) release(number, now);
  now = io::monotonic_now();
  if (now >= counted_ns_ + kCountEvery) {
    count_unread();
    counted_ns_ = now;
  }
  const base::DurationNs wait = std::clamp<base::DurationNs>(wheel_.next() - now, 0, kCountEvery);
  const timespec limit{wait / base::kSecond, wait % base::kSecond};
  if (::ppoll(batch_->polled.data(), batch_->polled.size(), &limit, nullptr) <= 0) return;
  for (std::uint32_t i = 0; i < directions_.size(); ++i) {
    if (batch_->polled[i].revents != 0) receive(i);
  }
}

void Forwarder::receive(std::uint32_t number) {
  Direction& one = directions_[number];
  Batch& batch = *batch_;
  for (std::uint32_t i = 0; i < kBatch; ++i) {
    const std::span<std::byte> space = one.queue.space(i);
    batch.vectors[i] = {space.data(), space.size()};
    msghdr& header = batch.messages[i].msg_hdr;
    header = {};
    header.msg_iov = &batch.vectors[i];
    header.msg_iovlen = 1;
    header.msg_control = batch.controls[i].data();
    header.msg_controllen = batch.controls[i].size();
  }
  // An interface that went down reports ENETDOWN once; its socket receives again when it is up.
  const int got = ::recvmmsg(ports_[one.from].fd.get(), batch.messages.data(), kBatch, MSG_DONTWAIT, nullptr);
  if (got <= 0) return;
  const base::TimeNs now = io::monotonic_now();
  const base::DurationNs offset = io::monotonic_minus_realtime_ns();
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(got); ++i) {
    msghdr& header = batch.messages[i].msg_hdr;
    batch.lengths[i] = batch.messages[i].msg_len;
    batch.arrivals[i] = now;
    for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_TIMESTAMPNS) continue;
      timespec stamp{};
      std::memcpy(&stamp, CMSG_DATA(part), sizeof stamp);
      // A clock that was set in between must not move a frame by more than the kernel may hold it.
      batch.arrivals[i] = std::clamp(io::nanoseconds(stamp) + offset, now - base::kSecond, now);
    }
  }
  const auto frames = static_cast<std::size_t>(got);
  const std::uint32_t kept =
      one.queue.hold(std::span(batch.lengths).first(frames), std::span(batch.arrivals).first(frames),
                     static_cast<base::DurationNs>(load(one.record->delay_ns)),
                     static_cast<base::DurationNs>(load(one.record->jitter_ns)));
  add(one.record->dropped_full, frames - kept);
  store(one.record->held, one.queue.size());
  wheel_.set(number, one.queue.due());
}

void Forwarder::release(std::uint32_t number, base::TimeNs now) {
  Direction& one = directions_[number];
  Batch& batch = *batch_;
  std::uint32_t due = 0;
  for (; due < kBatch; ++due) {
    const std::span<std::byte> frame = one.queue.due_frame(due, now);
    if (frame.empty()) break;
    batch.vectors[due] = {frame.data(), frame.size()};
    batch.messages[due].msg_hdr = {};
    batch.messages[due].msg_hdr.msg_iov = &batch.vectors[due];
    batch.messages[due].msg_hdr.msg_iovlen = 1;
  }
  std::uint32_t unsent = 0;
  for (std::uint32_t at = 0; at < due;) {
    const int sent = ::sendmmsg(ports_[one.to].fd.get(), batch.messages.data() + at, due - at, MSG_DONTWAIT);
    if (sent > 0) {
      at += static_cast<std::uint32_t>(sent);
    } else if (errno != EINTR) {
      ++unsent;
      ++at;
    }
  }
  one.queue.pop(due);
  add(one.record->passed, due - unsent);
  add(one.record->dropped_unsent, unsent);
  store(one.record->held, one.queue.size());
  wheel_.set(number, one.queue.due());
}

void Forwarder::count_unread() {
  for (const Direction& one : directions_) {
    tpacket_stats counted{};  // since the last call
    socklen_t bytes = sizeof counted;
    if (::getsockopt(ports_[one.from].fd.get(), SOL_PACKET, PACKET_STATISTICS, &counted, &bytes) == 0) {
      add(one.record->dropped_unread, counted.tp_drops);
    }
  }
}

}  // namespace mlt::delay_line
