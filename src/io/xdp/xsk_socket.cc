#include "io/xdp/xsk_socket.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/time.h"
#include "io/os/clock.h"
#include "io/xdp/bpf_loader.h"

namespace mlt::io {

namespace {

// XDP_PACKET_HEADROOM: reserved by the kernel in front of a received packet, for programs that prepend headers.
constexpr std::uint32_t kKernelHeadroomBytes = 256;
// Packets that one system call sends in copy mode: 32 by default (XDP_MAX_TX_SKB_BUDGET, Linux 6.17).
constexpr int kMaxSendBudgetOption = 9;
constexpr std::uint32_t kSendBudget = 256;
// Frames in flight in copy mode: the kernel returns one when its packet is sent, wherever it was queued, and only this
// limit keeps the network's queues from filling. At the few Gbit/s of that mode it is what a NIC sends in 0.3 ms, more
// than it takes to report the sent frames.
constexpr std::uint32_t kCopiedFrames = 128;
constexpr int kSendBufferBytes = 8 << 20;
// The kernel releases a closed socket's queue a moment after its process has ended.
constexpr base::DurationNs kQueueReleaseNs = 500 * base::kMillisecond;
constexpr base::DurationNs kBindAgainNs = 5 * base::kMillisecond;

}  // namespace

std::uint32_t xsk_receive_room(std::uint32_t frame_bytes) { return frame_bytes - kKernelHeadroomBytes; }

std::unique_ptr<XskSocket> XskSocket::open(const XskOptions& options, OsError& error) {
  MLT_CHECK(std::has_single_bit(options.receive_frames) && std::has_single_bit(options.send_frames));
  MLT_CHECK(options.frame_bytes == 2'048 || options.frame_bytes == 4'096);
  std::unique_ptr<XskSocket> socket(new XskSocket(options));
  socket->fd_ = UniqueFd(::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  if (!socket->fd_) {
    error = xdp_error(errno, "open an AF_XDP socket on", options.interface_name);
    return nullptr;
  }
  if (!socket->allocate(error) || !socket->map_rings(error) || !socket->keep_from_children(error) ||
      !socket->bind(error)) {
    return nullptr;
  }
  return socket;
}

XskSocket::XskSocket(const XskOptions& options) : options_(options) {}

void XskSocket::let_go() {
  fd_.reset();
  for (MemoryMapping& mapping : mappings_) mapping.forget();
}

// A mapping of a ring keeps the socket open like a descriptor. Packet memory is pinned: if a child shared it, the next
// write here would go to a copy that the kernel does not know.
bool XskSocket::keep_from_children(OsError& error) {
  for (MemoryMapping& mapping : mappings_) {
    if (mapping.keep_from_children()) continue;
    error = xdp_error(errno, "keep from child processes the memory of the AF_XDP socket on", options_.interface_name);
    return false;
  }
  return true;
}

bool XskSocket::allocate(OsError& error) {
  const std::size_t bytes =
      std::size_t{options_.receive_frames + options_.send_frames} * std::size_t{options_.frame_bytes};
  MemoryMapping memory(
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_NORESERVE, -1, 0),
      bytes);
  if (!memory) {
    error = xdp_error(errno, "allocate the packet memory of", options_.interface_name);
    return false;
  }
  memory_ = memory.data();
  mappings_.push_back(std::move(memory));
  xdp_umem_reg area{};
  area.addr = reinterpret_cast<std::uintptr_t>(memory_);
  area.len = bytes;
  area.chunk_size = options_.frame_bytes;
  if (::setsockopt(fd_.get(), SOL_XDP, XDP_UMEM_REG, &area, sizeof area) != 0) {
    error = xdp_error(errno, "register the packet memory of", options_.interface_name);
    return false;
  }
  return true;
}

bool XskSocket::set_ring_size(int option, std::uint32_t entries, OsError& error) {
  if (::setsockopt(fd_.get(), SOL_XDP, option, &entries, sizeof entries) == 0) return true;
  error = xdp_error(errno, "make a ring of the AF_XDP socket on", options_.interface_name);
  return false;
}

template <typename Entry>
bool XskSocket::map_ring(const xdp_ring_offset& offsets, std::uint32_t entries, std::uint64_t page,
                         XskRingView<Entry>& view) {
  const std::size_t bytes = offsets.desc + entries * sizeof(Entry);
  MemoryMapping memory(
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_.get(), static_cast<off_t>(page)),
      bytes);
  if (!memory) return false;
  std::byte* start = memory.data();
  mappings_.push_back(std::move(memory));
  view.producer = reinterpret_cast<std::uint32_t*>(start + offsets.producer);
  view.consumer = reinterpret_cast<std::uint32_t*>(start + offsets.consumer);
  view.flags = reinterpret_cast<std::uint32_t*>(start + offsets.flags);
  view.entries = reinterpret_cast<Entry*>(start + offsets.desc);
  view.size = entries;
  return true;
}

bool XskSocket::map_rings(OsError& error) {
  const std::uint32_t receive = options_.receive_frames;
  const std::uint32_t send = options_.send_frames;
  if (!set_ring_size(XDP_UMEM_FILL_RING, receive, error) || !set_ring_size(XDP_UMEM_COMPLETION_RING, send, error) ||
      !set_ring_size(XDP_RX_RING, receive, error) || !set_ring_size(XDP_TX_RING, send, error)) {
    return false;
  }
  xdp_mmap_offsets offsets{};
  socklen_t size = sizeof offsets;
  XskRingView<std::uint64_t> fill, completed;
  XskRingView<xdp_desc> received, sent;
  if (::getsockopt(fd_.get(), SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &size) != 0 || size != sizeof offsets ||
      !map_ring(offsets.fr, receive, XDP_UMEM_PGOFF_FILL_RING, fill) ||
      !map_ring(offsets.cr, send, XDP_UMEM_PGOFF_COMPLETION_RING, completed) ||
      !map_ring(offsets.rx, receive, XDP_PGOFF_RX_RING, received) ||
      !map_ring(offsets.tx, send, XDP_PGOFF_TX_RING, sent)) {
    error = xdp_error(errno, "map the rings of the AF_XDP socket on", options_.interface_name);
    return false;
  }
  fill_ = XskFilledRing<std::uint64_t>(fill);
  completed_ = XskEmptiedRing<std::uint64_t>(completed);
  receive_ = XskEmptiedRing<xdp_desc>(received);
  send_ = XskFilledRing<xdp_desc>(sent);
  // Receive frames come first in memory, send frames behind them.
  for (std::uint32_t i = 0; i < receive; ++i) fill_.slot(i) = std::uint64_t{i} * options_.frame_bytes;
  fill_.publish(receive);
  free_.reserve(send);
  for (std::uint32_t i = send; i > 0; --i) free_.push_back(std::uint64_t{receive + i - 1} * options_.frame_bytes);
  return true;
}

bool XskSocket::bind(OsError& error) {
  // More than the system's default, if permitted: in copy mode each packet in flight counts against it.
  if (::setsockopt(fd_.get(), SOL_SOCKET, SO_SNDBUFFORCE, &kSendBufferBytes, sizeof kSendBufferBytes) != 0) {
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof kSendBufferBytes);
  }
  const std::uint32_t budget = std::min(kSendBudget, options_.send_frames);
  ::setsockopt(fd_.get(), SOL_XDP, kMaxSendBudgetOption, &budget, sizeof budget);  // older kernels lack the option
  sockaddr_xdp address{};
  address.sxdp_family = AF_XDP;
  address.sxdp_ifindex = options_.interface;
  address.sxdp_queue_id = options_.queue;
  // Without a flag of either kind the kernel tries zero copy and falls back to copying.
  address.sxdp_flags = static_cast<std::uint16_t>(XDP_USE_NEED_WAKEUP | (options_.zero_copy ? 0 : XDP_COPY));
  const base::TimeNs deadline = monotonic_now() + kQueueReleaseNs;
  int number = 0;
  do {
    if (number != 0) std::this_thread::sleep_for(std::chrono::nanoseconds(kBindAgainNs));
    number = ::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
  } while (number == EBUSY && monotonic_now() < deadline);
  if (number != 0) {
    const std::string what = "queue " + std::to_string(options_.queue) + " of " + options_.interface_name;
    error = xdp_error(number, "bind an AF_XDP socket to", what);
    if (number == EINVAL) error.text += " Does the interface have that queue (`ethtool -l`)?";
    return false;
  }
  xdp_options options{};
  socklen_t size = sizeof options;
  if (::getsockopt(fd_.get(), SOL_XDP, XDP_OPTIONS, &options, &size) == 0) {
    zero_copy_ = (options.flags & XDP_OPTIONS_ZEROCOPY) != 0;
  }
  if (!zero_copy_ && free_.size() > kCopiedFrames) free_.resize(kCopiedFrames);
  return true;
}

std::span<const std::byte> XskSocket::received_frame(std::uint32_t index) const {
  const xdp_desc& descriptor = receive_.slot(index);
  const std::uint64_t limit = std::uint64_t{options_.receive_frames} * options_.frame_bytes;
  MLT_CHECK(descriptor.addr < limit && descriptor.len <= options_.frame_bytes);
  return {memory_ + descriptor.addr, descriptor.len};
}

void XskSocket::give_back(std::uint32_t count) {
  MLT_CHECK(count <= received());
  for (std::uint32_t i = 0; i < count; ++i) {
    // The packet starts at an offset within its frame; the frame's address is returned.
    fill_.slot(i) = receive_.slot(i).addr & ~std::uint64_t{options_.frame_bytes - 1};
  }
  fill_.publish(count);
  receive_.release(count);
  if (fill_.needs_wakeup()) ::recvfrom(fd_.get(), nullptr, 0, MSG_DONTWAIT, nullptr, nullptr);
}

bool XskSocket::has_room(std::uint32_t count) {
  if (free_.size() < count) {
    const std::uint32_t done = completed_.available();
    for (std::uint32_t i = 0; i < done; ++i) free_.push_back(completed_.slot(i));
    completed_.release(done);
  }
  return free_.size() >= count;
}

std::byte* XskSocket::next_frame() {
  MLT_CHECK(!free_.empty());
  return memory_ + free_.back();
}

void XskSocket::send_frame(std::uint32_t bytes) {
  MLT_CHECK(bytes <= options_.frame_bytes);
  xdp_desc& descriptor = send_.slot(written_++);
  descriptor.addr = free_.back();
  descriptor.len = bytes;
  descriptor.options = 0;
  free_.pop_back();
}

int XskSocket::flush(std::uint64_t& calls) {
  if (written_ > 0) send_.publish(std::exchange(written_, 0));
  std::uint32_t left = send_.pending();
  while (left > 0) {
    if (!send_.needs_wakeup()) return 0;  // the driver polls the ring
    ++calls;
    const int number = ::sendto(fd_.get(), nullptr, 0, MSG_DONTWAIT, nullptr, 0) >= 0 ? 0 : errno;
    const std::uint32_t now_left = send_.pending();
    if (number != 0 && number != EAGAIN && number != EBUSY && number != ENOBUFS && number != EINTR) return number;
    if (zero_copy_ || now_left == 0) return 0;
    // A call sends a limited number of packets, or one was dropped: repeat as long as there is progress.
    if (now_left == left) return EAGAIN;
    left = now_left;
  }
  return 0;
}

xdp_statistics XskSocket::statistics() const {
  xdp_statistics values{};
  socklen_t size = sizeof values;
  ::getsockopt(fd_.get(), SOL_XDP, XDP_STATISTICS, &values, &size);
  return values;
}

}  // namespace mlt::io
