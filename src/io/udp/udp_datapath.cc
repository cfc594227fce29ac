#include "io/udp/udp_datapath.h"

#include <netinet/in.h>
#include <netinet/udp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "io/net/header_sizes.h"
#include "io/net/interface.h"
#include "io/os/clock.h"

#ifndef UDP_GRO  // newer than glibc 2.28 (manylinux_2_28)
#define UDP_GRO 104
#endif

namespace mlt::io {

namespace {

constexpr std::array<std::string_view, CounterTable<UdpCounter>::kSize> kUdpCounterNames = {
    "udp_runs_sent",         "udp_datagrams_sent",      "udp_bytes_sent",       "udp_system_calls_send",
    "udp_runs_received",     "udp_bytes_received",      "udp_send_would_block", "udp_send_no_buffers",
    "udp_send_too_large",    "udp_send_forbidden",      "udp_send_failed",      "udp_icmp_errors",
    "udp_partial_runs",      "udp_datagrams_abandoned", "udp_offload_disabled", "udp_receive_truncated",
    "udp_receive_overflows", "udp_receive_empty",       "udp_receive_failed",
};

constexpr std::uint32_t kMaxIpPacketBytes = 65'535;

// Retry interval of the rest of a run that the socket did not accept, unless a call comes sooner.
constexpr base::DurationNs kBacklogRetryNs = 50 * base::kMicrosecond;

// Whether an ICMP message for an earlier datagram left this error on the socket. It is unrelated to the current run.
bool is_pending_icmp_error(int number) {
  return number == ECONNREFUSED || number == EHOSTUNREACH || number == ENETUNREACH || number == EHOSTDOWN ||
         number == EPROTO || number == ENOPROTOOPT;
}

template <typename Value>
void append_control(msghdr& message, std::size_t capacity, int level, int type, Value value) {
  auto* header = reinterpret_cast<cmsghdr*>(static_cast<std::byte*>(message.msg_control) + message.msg_controllen);
  MLT_CHECK(message.msg_controllen + CMSG_SPACE(sizeof value) <= capacity);
  header->cmsg_level = level;
  header->cmsg_type = type;
  header->cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(CMSG_DATA(header), &value, sizeof value);
  message.msg_controllen += CMSG_SPACE(sizeof value);
}

}  // namespace

std::unique_ptr<UdpDatapath> UdpDatapath::open(const UdpOptions& options, OsError& error) {
  if (options.peer_count == 0) {
    error = bad_argument("cannot open a UDP datapath for 0 peers; peer_count is the world size.");
    return nullptr;
  }
  constexpr std::uint32_t kMaxFlowLabel = 0xF'FFFF;
  if (options.flow_label > kMaxFlowLabel || (options.flow_label != 0 && options.socket.bind.family() != AF_INET6)) {
    error = bad_argument("flow label " + std::to_string(options.flow_label) + " for " + options.socket.bind.format() +
                         ": it has 20 bits, and only IPv6 has one.");
    return nullptr;
  }
  UdpSocketOptions socket_options = options.socket;
  socket_options.flow_labels = options.flow_label != 0;
  auto socket = UdpSocket::open(socket_options, error);
  if (!socket) return nullptr;
  const auto interface = find_interface(socket->local_address(), error);
  if (!interface) return nullptr;
  const std::uint32_t headers = kUdpHeaderBytes + (socket->is_ipv6() ? kIpv6HeaderBytes : kIpv4HeaderBytes) +
                                UdpSocket::segment_list_bytes(options.segments.size());
  const std::uint32_t packet_bytes = std::min(interface->mtu_bytes, kMaxIpPacketBytes);
  if (packet_bytes <= headers) {
    error = bad_argument("interface " + interface->name + " has an MTU of " + std::to_string(interface->mtu_bytes) +
                         " bytes, too small for any datagram; raise it (`ip link set ... mtu`).");
    return nullptr;
  }
  std::unique_ptr<UdpDatapath> datapath(new UdpDatapath(std::move(*socket), options));
  // After the constructor's probe, which goes to this very socket and would be misrouted.
  if (!options.segments.empty() && !datapath->socket_.set_segments(options.segments, error)) return nullptr;
  datapath->capabilities_.max_datagram_bytes = packet_bytes - headers;
  datapath->capabilities_.busy_poll = options.socket.busy_poll_us > 0;
  return datapath;
}

UdpDatapath::UdpDatapath(UdpSocket socket, const UdpOptions& options)
    : socket_(std::move(socket)),
      path_(options.path),
      flow_label_(options.flow_label),
      device_(options.socket.device),
      counters_(kUdpCounterNames),
      peers_(options.peer_count),
      receive_buffer_(kMaxIpPacketBytes) {
  capabilities_.max_run_segments = base::kMaxRunSegments;
  capabilities_.max_run_bytes = base::kMaxRunBytes;
  capabilities_.receive_buffer_bytes = socket_.granted_receive_bytes();
  capabilities_.sets_dscp = true;
  capabilities_.reads_ecn = socket_.reads_ecn();
  capabilities_.stamps_arrivals = socket_.stamps_arrivals();
  capabilities_.segmentation_offload = options.segmentation_offload && socket_.probe_segmentation_offload();
  capabilities_.receive_offload = socket_.receive_offload();
  capabilities_.name = "udp";
}

bool UdpDatapath::set_peer(std::uint16_t rank, const SocketAddress& address, OsError& error) {
  if (rank >= peers_.size()) {
    error = bad_argument("rank " + std::to_string(rank) + " is not below the world size " +
                         std::to_string(peers_.size()) + ".");
    return false;
  }
  if (address.family() != socket_.local_address().family() || address.port() == 0) {
    error = bad_argument("rank " + std::to_string(rank) + " cannot be reached at " + address.format() +
                         " from a socket bound to " + socket_.local_address().format() +
                         ": every rank needs a port and the same IP version.");
    return false;
  }
  peers_[rank] = flow_label_ != 0 ? address.with_flow_label(flow_label_) : address;
  return true;
}

void UdpDatapath::prepare(msghdr& message, const base::DatagramRun& run, std::uint16_t segment_bytes) {
  const SocketAddress& to = peers_[run.peer];
  message = {};
  message.msg_name = const_cast<sockaddr*>(to.raw());
  message.msg_namelen = to.raw_size();
  message.msg_control = send_control_.data();
  const int traffic_class = run.traffic_class();
  if (socket_.is_ipv6()) {
    append_control(message, send_control_.size(), IPPROTO_IPV6, IPV6_TCLASS, traffic_class);
  } else {
    append_control(message, send_control_.size(), IPPROTO_IP, IP_TOS, traffic_class);
  }
  if (segment_bytes != 0) append_control(message, send_control_.size(), IPPROTO_UDP, UDP_SEGMENT, segment_bytes);
}

SendStatus UdpDatapath::send(base::TimeNs now, const base::DatagramRun& run) {
  if (run.peer >= peers_.size() || run.path != path_ || peers_[run.peer].family() == AF_UNSPEC)
    return SendStatus::kNoPeer;
  if (run.total_bytes > capabilities_.max_run_bytes ||
      std::min(run.datagram_bytes, run.total_bytes) > capabilities_.max_datagram_bytes) {
    return SendStatus::kTooLarge;
  }
  if (!backlog_.empty() && !flush_backlog(now)) {
    counters_.add(UdpCounter::kSendWouldBlock);
    return SendStatus::kWouldBlock;
  }
  SendStatus status = SendStatus::kSent;
  if (run.datagram_count > 1 && !capabilities_.segmentation_offload) {
    status = send_parts(now, run);
  } else {
    status = send_whole(run);
    // The interface, or the path's MTU: a send without UDP_SEGMENT returns which.
    if (status == SendStatus::kFailed && run.datagram_count > 1 && (failed_errno_ == EIO || failed_errno_ == EINVAL)) {
      status = send_parts(now, run);
      if (status == SendStatus::kSent) {
        capabilities_.segmentation_offload = false;
        counters_.add(UdpCounter::kOffloadDisabled);
      }
    }
  }
  if (status == SendStatus::kSent) {
    counters_.add(UdpCounter::kRunsSent);
    counters_.add(UdpCounter::kDatagramsSent, run.datagram_count);
    counters_.add(UdpCounter::kBytesSent, run.total_bytes);
  }
  return status;
}

SendStatus UdpDatapath::send_whole(const base::DatagramRun& run) {
  MLT_CHECK(run.slice_count <= run.slices.size());
  std::size_t sum = 0;
  for (std::uint32_t i = 0; i < run.slice_count; ++i) {
    // The kernel only reads through iov_base.
    vectors_[i] = {const_cast<std::byte*>(run.slices[i].data), run.slices[i].size};
    sum += run.slices[i].size;
  }
  MLT_CHECK(sum == run.total_bytes);
  msghdr message;
  prepare(message, run, run.datagram_count > 1 ? static_cast<std::uint16_t>(run.datagram_bytes) : std::uint16_t{0});
  message.msg_iov = vectors_.data();
  message.msg_iovlen = run.slice_count;
  // Each pending error is reported once, so a few tries clear the socket.
  for (int tries = 0;; ++tries) {
    counters_.add(UdpCounter::kSystemCallsSend);
    if (::sendmsg(socket_.fd(), &message, MSG_NOSIGNAL) >= 0) return SendStatus::kSent;
    constexpr int kMaxTries = 4;
    if (tries == kMaxTries || (errno != EINTR && !is_pending_icmp_error(errno))) return refused(errno, run.peer);
    if (errno != EINTR) counters_.add(UdpCounter::kIcmpErrors);
  }
}

SendStatus UdpDatapath::send_each(const base::DatagramRun& run, std::uint32_t& taken) {
  DatagramCursor cursor(run);
  DatagramView view;
  std::uint32_t count = 0;
  std::size_t vector = 0;
  while (cursor.next(view)) {
    msghdr& message = messages_[count++].msg_hdr;
    if (count == 1) {
      prepare(message, run, 0);
    } else {
      message = messages_[0].msg_hdr;
    }
    message.msg_iov = vectors_.data() + vector;
    message.msg_iovlen = view.slices.size();
    for (const base::Slice& slice : view.slices) {
      vectors_[vector++] = {const_cast<std::byte*>(slice.data), slice.size};
    }
  }
  taken = 0;
  for (int tries = 0;; ++tries) {
    counters_.add(UdpCounter::kSystemCallsSend);
    const int sent = ::sendmmsg(socket_.fd(), messages_.data() + taken, count - taken, MSG_NOSIGNAL);
    if (sent > 0) taken += static_cast<std::uint32_t>(sent);
    if (taken == count) return SendStatus::kSent;
    if (sent > 0) {
      tries = 0;  // the next call reports the reason
      continue;
    }
    constexpr int kMaxTries = 4;
    if (tries == kMaxTries || (errno != EINTR && !is_pending_icmp_error(errno))) return refused(errno, run.peer);
    if (errno != EINTR) counters_.add(UdpCounter::kIcmpErrors);
  }
}

SendStatus UdpDatapath::send_parts(base::TimeNs now, const base::DatagramRun& run) {
  std::uint32_t taken = 0;
  const SendStatus status = send_each(run, taken);
  if (taken == 0 || taken == run.datagram_count) return status;
  if (status != SendStatus::kWouldBlock) {
    counters_.add(UdpCounter::kDatagramsAbandoned, run.datagram_count - taken);
    return SendStatus::kSent;
  }
  counters_.add(UdpCounter::kPartialRuns);
  backlog_.assign(run, taken);
  backlog_due_ = base::after(now, kBacklogRetryNs);
  return SendStatus::kSent;
}

bool UdpDatapath::flush_backlog(base::TimeNs now) {
  std::uint32_t taken = 0;
  const SendStatus status = send_each(backlog_.run(), taken);
  backlog_.remove_front(taken);
  if (status == SendStatus::kWouldBlock) {
    backlog_due_ = base::after(now, kBacklogRetryNs);
    return false;
  }
  counters_.add(UdpCounter::kDatagramsAbandoned, backlog_.run().datagram_count);
  backlog_.clear();
  backlog_due_ = base::kNever;
  return true;
}

SendStatus UdpDatapath::refused(int number, std::uint16_t peer) {
  switch (number) {
    case EAGAIN:
      counters_.add(UdpCounter::kSendWouldBlock);
      return SendStatus::kWouldBlock;
    case ENOBUFS:
    case ENOMEM:
      counters_.add(UdpCounter::kSendNoBuffers);
      return SendStatus::kWouldBlock;
    case EMSGSIZE:
      counters_.add(UdpCounter::kSendTooLarge);
      return SendStatus::kTooLarge;
    default:
      break;
  }
  failed_errno_ = number;
  failed_peer_ = peer;
  counters_.add(number == EPERM ? UdpCounter::kSendForbidden : UdpCounter::kSendFailed);
  return SendStatus::kFailed;
}

std::string UdpDatapath::last_error() const {
  if (failed_errno_ == 0) return {};
  return os_error(failed_errno_, "send datagrams to rank " + std::to_string(failed_peer_) + " at",
                  peers_[failed_peer_].format())
      .text;
}

std::size_t UdpDatapath::receive(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) {
  if (!backlog_.empty()) flush_backlog(now);
  std::size_t handed_up = 0;
  const base::DurationNs realtime_offset_ns = monotonic_minus_realtime_ns();
  // Dropped datagrams cost budget too: a flood of empty ones must not monopolise the owner's thread.
  for (std::size_t attempt = 0; attempt < budget_runs; ++attempt) {
    bool delivered = false;
    if (!receive_one(now, realtime_offset_ns, sink, delivered)) {
      drained_ns_ = now;
      break;
    }
    if (delivered) ++handed_up;
  }
  return handed_up;
}

// False when nothing is left to read. One recvmsg() per merged run: with receive offload each carries up to 64 KB, and
// recvmmsg() over several buffers measured no faster (tests/bench/udp_loopback.cc) while it leaves the cache.
bool UdpDatapath::receive_one(base::TimeNs now, base::DurationNs realtime_offset_ns, ReceiveSink& sink,
                              bool& delivered) {
  iovec vector{receive_buffer_.data(), receive_buffer_.size()};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = receive_control_.data();
  message.msg_controllen = receive_control_.size();
  const ssize_t got = ::recvmsg(socket_.fd(), &message, 0);
  if (got < 0) {
    if (errno == EAGAIN) return false;
    if (errno == EINTR) return true;
    if (is_pending_icmp_error(errno)) {
      counters_.add(UdpCounter::kIcmpErrors);
      return true;
    }
    counters_.add(UdpCounter::kReceiveFailed);
    return false;
  }
  if (got == 0) {
    counters_.add(UdpCounter::kReceiveEmpty);
    return true;
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    counters_.add(UdpCounter::kReceiveTruncated);
    return true;
  }
  base::ReceivedRun run;
  run.bytes = std::span<const std::byte>(receive_buffer_.data(), static_cast<std::size_t>(got));
  run.datagram_bytes = static_cast<std::uint32_t>(got);
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    int value = 0;
    if (header->cmsg_level == IPPROTO_UDP && header->cmsg_type == UDP_GRO) {
      std::memcpy(&value, CMSG_DATA(header), sizeof value);
      if (value > 0) run.datagram_bytes = std::min(run.datagram_bytes, static_cast<std::uint32_t>(value));
    } else if (header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_TOS) {
      std::uint8_t traffic_class = 0;  // this one message is a byte, not an int
      std::memcpy(&traffic_class, CMSG_DATA(header), sizeof traffic_class);
      run.ecn = static_cast<base::Ecn>(traffic_class & 3);
    } else if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_TIMESTAMPNS) {
      timespec arrival{};
      std::memcpy(&arrival, CMSG_DATA(header), sizeof arrival);
      // The wall clock may have been set since the stamp. What is read now cannot have arrived before the socket was
      // last empty.
      const base::TimeNs stamp = nanoseconds(arrival) + realtime_offset_ns;
      run.arrival_ns = stamp >= drained_ns_ && stamp <= now ? stamp : now;
    } else if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SO_RXQ_OVFL) {
      std::uint32_t overflows = 0;
      std::memcpy(&overflows, CMSG_DATA(header), sizeof overflows);
      const std::uint32_t more = overflows - std::exchange(receive_overflows_, overflows);
      run.after_drop = more > 0;
      counters_.add(UdpCounter::kReceiveOverflows, more);
    } else if (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_TCLASS) {
      std::memcpy(&value, CMSG_DATA(header), sizeof value);
      run.ecn = static_cast<base::Ecn>(value & 3);
    }
  }
  counters_.add(UdpCounter::kRunsReceived);
  counters_.add(UdpCounter::kBytesReceived, static_cast<std::uint64_t>(got));
  delivered = true;
  sink.on_run(run);
  return true;
}

}  // namespace mlt::io
