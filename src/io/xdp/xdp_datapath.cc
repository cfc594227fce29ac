#include "io/xdp/xdp_datapath.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "io/run_view.h"
#include "io/xdp/xsk_steering.h"

namespace mlt::io {

namespace {

constexpr std::array<std::string_view, CounterTable<XdpCounter>::kSize> kXdpCounterNames = {
    "xdp_runs_sent",
    "xdp_datagrams_sent",
    "xdp_bytes_sent",
    "xdp_system_calls_send",
    "xdp_runs_received",
    "xdp_bytes_received",
    "xdp_send_would_block",
    "xdp_send_failed",
    "xdp_kernel_runs_sent",
    "xdp_kernel_runs_received",
    "xdp_route_lookups",
    "xdp_checksum_unfinished",
    "xdp_receive_malformed",
    "xdp_receive_checksum",
    "xdp_receive_ring_full",
    "xdp_receive_no_frame",
    "xdp_receive_dropped",
    "xdp_send_invalid",
    "xdp_native",
    "xdp_zero_copy",
    "xdp_device_queues",
};

// Refresh interval: routes and Ethernet addresses change when a gateway moves or a NIC is replaced.
constexpr base::DurationNs kLookUpAgainNs = base::kSecond;
// Retry interval while the kernel resolves an address.
constexpr base::DurationNs kLookUpSoonNs = 200 * base::kMicrosecond;
// Retry interval of frames that the kernel did not accept, unless a call comes sooner.
constexpr base::DurationNs kPushAgainNs = 50 * base::kMicrosecond;
// Retry interval while the interface rejects frames: it is down.
constexpr base::DurationNs kPushLaterNs = 10 * base::kMillisecond;
// One of this many calls reads the kernel's socket even while AF_XDP frames keep arriving.
constexpr std::uint32_t kKernelTurn = 16;

}  // namespace

std::unique_ptr<XdpDatapath> XdpDatapath::open(const XdpOptions& options, OsError& error) {
  if (options.socket.bind.family() == AF_UNSPEC || options.peer_count == 0) {
    error = bad_argument("cannot open an AF_XDP datapath without an address to bind to and one peer at least.");
    return nullptr;
  }
  const auto device = find_ethernet_device(options.socket.bind, error);
  if (!device) return nullptr;
  UdpOptions udp;
  udp.socket = options.socket;
  // The kernel would merge datagrams before generic XDP sees them, if a socket of the port enabled it.
  udp.socket.receive_offload = false;
  udp.peer_count = options.peer_count;
  std::unique_ptr<XdpDatapath> datapath(new XdpDatapath(options));
  datapath->device_ = *device;
  datapath->kernel_ = UdpDatapath::open(udp, error);
  if (!datapath->kernel_) return nullptr;
  datapath->guard_.emplace([whole = datapath.get()] { whole->let_go(); });
  datapath->netlink_ = Netlink::open(error);
  if (!datapath->netlink_ || !datapath->open_socket(options, error) || !datapath->steer(options, error) ||
      !datapath->watch(error)) {
    return nullptr;
  }
  datapath->report_.assign(datapath->counters_.all().begin(), datapath->counters_.all().end());
  const auto below = datapath->kernel_->counters();
  datapath->report_.insert(datapath->report_.end(), below.begin(), below.end());
  return datapath;
}

// A child that keeps these descriptors blocks the queue and the interface's XDP slot for everyone else.
void XdpDatapath::let_go() {
  if (socket_) socket_->let_go();
  if (attachment_) attachment_->let_go();
  map_.reset();
}

XdpDatapath::XdpDatapath(const XdpOptions& options) : peers_(options.peer_count), counters_(kXdpCounterNames) {}

bool XdpDatapath::open_socket(const XdpOptions& options, OsError& error) {
  XskOptions xsk;
  xsk.interface = device_.index;
  xsk.interface_name = device_.name;
  xsk.queue = options.queue;
  xsk.receive_frames = options.receive_frames;
  xsk.send_frames = options.send_frames;
  // Generic XDP does not fill the zero-copy rings of a driver.
  xsk.zero_copy = options.zero_copy && options.native;
  const std::uint32_t needed = device_.mtu_bytes + kEthernetHeaderBytes;
  xsk.frame_bytes = needed <= xsk_receive_room(2'048) ? 2'048 : 4'096;
  socket_ = XskSocket::open(xsk, error);
  if (!socket_) return false;

  const std::uint32_t headers =
      kUdpHeaderBytes + (local_address().family() == AF_INET6 ? kIpv6HeaderBytes : kIpv4HeaderBytes);
  const std::uint32_t room = std::min(device_.mtu_bytes, xsk_receive_room(xsk.frame_bytes) - kEthernetHeaderBytes);
  capabilities_ = kernel_->capabilities();
  capabilities_.max_datagram_bytes = std::min(capabilities_.max_datagram_bytes, room - headers);
  // A datagram occupies a frame, however small it is.
  capabilities_.receive_buffer_bytes = options.receive_frames * capabilities_.max_datagram_bytes;
  capabilities_.sets_dscp = true;
  capabilities_.reads_ecn = true;
  capabilities_.stamps_arrivals = false;
  capabilities_.segmentation_offload = false;
  capabilities_.receive_offload = false;
  capabilities_.name = "xdp";
  counters_.add(XdpCounter::kZeroCopy, socket_->zero_copy() ? 1 : 0);
  counters_.add(XdpCounter::kDeviceQueues, device_.receive_queues);
  return true;
}

bool XdpDatapath::steer(const XdpOptions& options, OsError& error) {
  map_ = create_socket_map(options.queue + 1, error);
  // The socket first: the program has a destination from the moment it is attached.
  if (!map_ || !put_socket(map_.get(), options.queue, socket_->fd(), error)) return false;
  if (options.native) {
    if (attach(XdpMode::kNative, options.attach_by, error)) {
      counters_.add(XdpCounter::kNative);
      return true;
    }
    // A busy queue is busy in either mode; a program that may not be loaded may not be attached; a zero-copy socket is
    // the driver's.
    if (error.number == EBUSY || error.number == EEXIST || error.code == OsErrorCode::kPermission ||
        socket_->zero_copy()) {
      return false;
    }
  }
  return attach(XdpMode::kGeneric, options.attach_by, error);
}

bool XdpDatapath::attach(XdpMode mode, XdpAttachment::Way way, OsError& error) {
  const std::uint32_t headers = kEthernetHeaderBytes + kUdpHeaderBytes +
                                (local_address().family() == AF_INET6 ? kIpv6HeaderBytes : kIpv4HeaderBytes);
  const auto instructions = steering_program(map_.get(), local_address(), capabilities_.max_datagram_bytes + headers,
                                             mode == XdpMode::kNative ? Unfinished::kRedirect : Unfinished::kPass);
  const UniqueFd program = load_xdp_program(instructions, error);
  if (!program) return false;
  attachment_ = XdpAttachment::attach(program.get(), device_.index, device_.name, mode, way, error);
  // A kernel before 5.9 has no XDP links.
  if (!attachment_ && way == XdpAttachment::Way::kLink && error.number == EINVAL) {
    OsError second;
    attachment_ =
        XdpAttachment::attach(program.get(), device_.index, device_.name, mode, XdpAttachment::Way::kNetlink, second);
  }
  return attachment_ != nullptr;
}

bool XdpDatapath::watch(OsError& error) {
  poll_fd_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  if (poll_fd_ && ::epoll_ctl(poll_fd_.get(), EPOLL_CTL_ADD, socket_->fd(), &event) == 0 &&
      ::epoll_ctl(poll_fd_.get(), EPOLL_CTL_ADD, kernel_->readable_fd(), &event) == 0) {
    return true;
  }
  error = os_error(errno, "watch the AF_XDP socket on", device_.name);
  return false;
}

// ---- peers ---------------------------------------------------------------------------------------------------------

bool XdpDatapath::set_peer(std::uint16_t rank, const SocketAddress& address, OsError& error) {
  if (!kernel_->set_peer(rank, address, error)) return false;
  Peer& peer = peers_[rank];
  peer = {};
  peer.address = address;
  look_up(0, peer);
  peer.look_up_at = 0;  // on the driver's clock, which is not known here
  return true;
}

void XdpDatapath::look_up(base::TimeNs now, Peer& peer) {
  counters_.add(XdpCounter::kRouteLookups);
  const NextHop hop = find_next_hop(*netlink_, device_.index, local_address(), peer.address);
  peer.by_kernel = hop.kind != NextHopKind::kKnown;
  peer.look_up_at = base::after(now, hop.kind == NextHopKind::kUnresolved ? kLookUpSoonNs : kLookUpAgainNs);
  if (peer.by_kernel) return;
  peer.header = UdpFrameHeader(device_.mac, hop.mac, local_address(), peer.address);
}

// ---- sending -------------------------------------------------------------------------------------------------------

SendStatus XdpDatapath::send(base::TimeNs now, const base::DatagramRun& run) {
  if (run.peer >= peers_.size() || run.path != 0 || peers_[run.peer].address.family() == AF_UNSPEC) {
    return SendStatus::kNoPeer;
  }
  const std::uint32_t largest = std::min(run.datagram_bytes, run.total_bytes);
  if (run.total_bytes > capabilities_.max_run_bytes || largest > capabilities_.max_datagram_bytes) {
    return SendStatus::kTooLarge;
  }
  Peer& peer = peers_[run.peer];
  if (now >= peer.look_up_at) look_up(now, peer);
  if (peer.by_kernel) {
    const SendStatus status = kernel_->send(now, run);
    if (status == SendStatus::kSent) counters_.add(XdpCounter::kKernelRunsSent);
    if (status == SendStatus::kFailed) kernel_failed_ = true;
    return status;
  }
  return send_frames(now, peer, run);
}

SendStatus XdpDatapath::send_frames(base::TimeNs now, const Peer& peer, const base::DatagramRun& run) {
  if (!socket_->has_room(run.datagram_count)) {
    const bool works = push_out(now);
    if (!socket_->has_room(run.datagram_count)) {
      counters_.add(works ? XdpCounter::kSendWouldBlock : XdpCounter::kSendFailed);
      return works ? SendStatus::kWouldBlock : SendStatus::kFailed;
    }
  }
  DatagramCursor cursor(run);
  DatagramView view;
  while (cursor.next(view)) {
    std::byte* frame = socket_->next_frame();
    copy_datagram(view, frame + peer.header.bytes());
    socket_->send_frame(peer.header.write(frame, view.bytes, run.traffic_class()));
  }
  if (!push_out(now)) {
    counters_.add(XdpCounter::kSendFailed);
    return SendStatus::kFailed;
  }
  counters_.add(XdpCounter::kRunsSent);
  counters_.add(XdpCounter::kDatagramsSent, run.datagram_count);
  counters_.add(XdpCounter::kBytesSent, run.total_bytes);
  return SendStatus::kSent;
}

// False if the interface failed; frames that it did not accept stay in the ring and are offered again.
bool XdpDatapath::push_out(base::TimeNs now) {
  const int number = socket_->flush(send_calls_);
  push_at_ = base::kNever;
  if (number == 0) return true;
  push_at_ = base::after(now, number == EAGAIN ? kPushAgainNs : kPushLaterNs);
  if (number == EAGAIN) return true;
  failed_errno_ = number;
  kernel_failed_ = false;
  return false;
}

std::string XdpDatapath::last_error() const {
  if (kernel_failed_) return kernel_->last_error();
  if (failed_errno_ == 0) return {};
  return os_error(failed_errno_, "send frames by", device_.name).text;
}

base::TimeNs XdpDatapath::next_timeout() const { return std::min(push_at_, kernel_->next_timeout()); }

// ---- receiving -----------------------------------------------------------------------------------------------------

int XdpDatapath::writable_fd(const base::DatagramRun& run) const {
  return run.peer < peers_.size() && peers_[run.peer].by_kernel ? kernel_->readable_fd() : socket_->writable_fd();
}

std::size_t XdpDatapath::receive(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) {
  if (push_at_ <= now) push_out(now);
  if (budget_runs == 0) return 0;
  std::size_t handed_up = 0;
  const auto from_kernel = [&](std::size_t budget) {
    const std::size_t passed = kernel_->receive(now, budget, sink);
    counters_.add(XdpCounter::kKernelRunsReceived, passed);
    handed_up += passed;
  };
  // While frames fill the budget, one run in every kKernelTurn calls comes from the kernel socket, if it has one.
  if (++turns_ % kKernelTurn == 0) from_kernel(1);
  const std::size_t left = budget_runs - handed_up;
  const auto frames = static_cast<std::uint32_t>(std::min<std::size_t>(left, socket_->received()));
  // Dropped frames cost budget too.
  for (std::uint32_t i = 0; i < frames; ++i) {
    if (hand_up(socket_->received_frame(i), sink)) ++handed_up;
  }
  if (frames > 0) socket_->give_back(frames);
  if (frames < left) from_kernel(left - frames);
  return handed_up;
}

bool XdpDatapath::hand_up(std::span<const std::byte> frame, ReceiveSink& sink) {
  ReceivedFrame received;
  switch (read_frame(frame, received)) {
    case FrameVerdict::kMalformed:
      counters_.add(XdpCounter::kReceiveMalformed);
      return false;
    case FrameVerdict::kBadChecksum:
      counters_.add(XdpCounter::kReceiveChecksum);
      return false;
    case FrameVerdict::kChecksumUnfinished:
      counters_.add(XdpCounter::kChecksumUnfinished);
      break;
    case FrameVerdict::kGood:
      break;
  }
  base::ReceivedRun run;
  run.bytes = received.payload;
  run.datagram_bytes = static_cast<std::uint32_t>(received.payload.size());
  run.ecn = received.ecn;
  counters_.add(XdpCounter::kRunsReceived);
  counters_.add(XdpCounter::kBytesReceived, received.payload.size());
  sink.on_run(run);
  return true;
}

std::span<const NamedCounter> XdpDatapath::counters() const {
  const xdp_statistics kernel = socket_->statistics();
  const auto own = counters_.all();
  std::copy(own.begin(), own.end(), report_.begin());
  const auto set = [&](XdpCounter which, std::uint64_t value) {
    report_[static_cast<std::size_t>(which)].value = value;
  };
  set(XdpCounter::kSystemCallsSend, send_calls_);
  set(XdpCounter::kReceiveRingFull, kernel.rx_ring_full);
  set(XdpCounter::kReceiveNoFrame, kernel.rx_fill_ring_empty_descs);
  set(XdpCounter::kReceiveDropped, kernel.rx_dropped);
  set(XdpCounter::kSendInvalid, kernel.tx_invalid_descs);
  const auto below = kernel_->counters();
  std::copy(below.begin(), below.end(), report_.begin() + static_cast<std::ptrdiff_t>(own.size()));
  return report_;
}

}  // namespace mlt::io
