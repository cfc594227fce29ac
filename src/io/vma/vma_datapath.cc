#include "io/vma/vma_datapath.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace mlt::io {

namespace {

constexpr std::array<std::string_view, CounterTable<VmaCounter>::kSize> kVmaCounterNames = {
    "vma_zero_copy_received", "vma_fragments_joined", "vma_copied_received",     "vma_receive_failed",
    "vma_marks_set",          "vma_mark_failed",      "vma_zero_copy_available",
};

constexpr std::size_t kMaxDatagramBytes = 65'535;

}  // namespace

std::unique_ptr<VmaDatapath> VmaDatapath::open(const UdpOptions& options, OsError& error) {
  const Vma& vma = find_vma();
  if (!vma.present) {
    error = bad_argument(
        "this process does not run under libvma: start it with LD_PRELOAD=libvma.so, or use the kernel's UDP "
        "(datapath=\"udp\", MLT_DATAPATH=udp).");
    return nullptr;
  }
  UdpOptions plain = options;
  plain.segmentation_offload = false;
  plain.socket.receive_offload = false;
  auto socket = UdpDatapath::open(plain, error);
  if (!socket) return nullptr;
  return std::unique_ptr<VmaDatapath>(new VmaDatapath(std::move(socket), vma.zero_copy));
}

VmaDatapath::VmaDatapath(std::unique_ptr<UdpDatapath> socket, const VmaInterface* zero_copy)
    : socket_(std::move(socket)),
      zero_copy_(zero_copy),
      capabilities_(socket_->capabilities()),
      counters_(kVmaCounterNames),
      buffer_(kMaxDatagramBytes),
      joined_(kMaxDatagramBytes) {
  capabilities_.segmentation_offload = false;
  capabilities_.receive_offload = false;
  capabilities_.reads_ecn = false;
  capabilities_.stamps_arrivals = false;
  capabilities_.name = "vma";
  counters_.add(VmaCounter::kZeroCopyAvailable, zero_copy_ != nullptr ? 1 : 0);
  report_.assign(counters_.all().begin(), counters_.all().end());
  report_.insert(report_.end(), socket_->counters().begin(), socket_->counters().end());
}

// ---- sending -------------------------------------------------------------------------------------------------------

void VmaDatapath::set_mark(std::uint8_t traffic_class) {
  if (mark_ == traffic_class) return;
  const int value = traffic_class;
  const bool is_ipv6 = local_address().family() == AF_INET6;
  const int level = is_ipv6 ? static_cast<int>(IPPROTO_IPV6) : static_cast<int>(IPPROTO_IP);
  if (::setsockopt(readable_fd(), level, is_ipv6 ? IPV6_TCLASS : IP_TOS, &value, sizeof value) != 0) {
    counters_.add(VmaCounter::kMarkFailed);
    return;
  }
  mark_ = traffic_class;
  counters_.add(VmaCounter::kMarksSet);
}

SendStatus VmaDatapath::send(base::TimeNs now, const base::DatagramRun& run) {
  if (mark_ != run.traffic_class() && socket_->next_timeout() != base::kNever) {
    // Datagrams of an earlier run wait in the socket's datapath and need its mark: they go first.
    class NoSink final : public ReceiveSink {
      void on_run(const base::ReceivedRun&) override {}
    } no_sink;
    socket_->receive(now, 0, no_sink);
    if (socket_->next_timeout() != base::kNever) return SendStatus::kWouldBlock;
  }
  set_mark(run.traffic_class());
  return socket_->send(now, run);
}

// ---- receiving -----------------------------------------------------------------------------------------------------

std::size_t VmaDatapath::receive(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) {
  // Sends what is queued there; without the extra API it also receives, by the socket calls that libvma intercepts.
  const std::size_t plain = socket_->receive(now, zero_copy_ == nullptr ? budget_runs : 0, sink);
  if (zero_copy_ == nullptr) return plain;
  std::size_t handed_up = 0;
  for (std::size_t attempt = 0; attempt < budget_runs; ++attempt) {
    bool delivered = false;
    if (!receive_one(sink, delivered)) break;
    if (delivered) ++handed_up;
  }
  return handed_up;
}

// False when nothing is left to read.
bool VmaDatapath::receive_one(ReceiveSink& sink, bool& delivered) {
  int flags = MSG_DONTWAIT;
  const int got =
      zero_copy_->receive_zero_copy(readable_fd(), buffer_.data(), buffer_.size(), &flags, nullptr, nullptr);
  if (got < 0) {
    if (errno == EINTR) return true;
    // An ICMP error for a datagram that this side sent: it is unrelated to what can be read.
    if (errno == ECONNREFUSED) return true;
    if (errno != EAGAIN) counters_.add(VmaCounter::kReceiveFailed);
    return false;
  }
  if ((flags & kVmaZeroCopy) != 0) {
    VmaPackets packets;
    std::memcpy(&packets, buffer_.data(), sizeof packets);
    if (packets.count == 0) return false;
    // libvma returns one packet per call (its free_packets() could not step over the fragments of more).
    hand_up_packet(reinterpret_cast<VmaPacket*>(buffer_.data() + offsetof(VmaPackets, first)), sink, delivered);
    return true;
  }
  if (got == 0) return false;
  counters_.add(VmaCounter::kCopiedReceived);
  base::ReceivedRun run;
  run.bytes = std::span<const std::byte>(buffer_).first(static_cast<std::size_t>(got));
  run.datagram_bytes = static_cast<std::uint32_t>(got);
  delivered = true;
  sink.on_run(run);
  return true;
}

void VmaDatapath::hand_up_packet(VmaPacket* packet, ReceiveSink& sink, bool& delivered) {
  const auto* fragments = reinterpret_cast<const std::byte*>(packet) + sizeof(VmaPacket);
  const std::size_t room = static_cast<std::size_t>(buffer_.data() + buffer_.size() - fragments) / sizeof(iovec);
  const std::size_t count = std::min(packet->fragments, room);
  base::ReceivedRun run;
  std::size_t joined = 0;
  for (std::size_t i = 0; i < count; ++i) {
    iovec fragment;
    std::memcpy(&fragment, fragments + i * sizeof fragment, sizeof fragment);
    if (count == 1) {
      run.bytes = {static_cast<const std::byte*>(fragment.iov_base), fragment.iov_len};
    } else {
      const std::size_t size = std::min(fragment.iov_len, joined_.size() - joined);
      std::memcpy(joined_.data() + joined, fragment.iov_base, size);
      joined += size;
    }
  }
  if (count > 1) {
    run.bytes = std::span<const std::byte>(joined_).first(joined);
    counters_.add(VmaCounter::kFragmentsJoined);
  }
  if (!run.bytes.empty()) {
    run.datagram_bytes = static_cast<std::uint32_t>(run.bytes.size());
    counters_.add(VmaCounter::kZeroCopyReceived);
    delivered = true;
    sink.on_run(run);
  }
  zero_copy_->free_packets(readable_fd(), packet, 1);
}

std::span<const NamedCounter> VmaDatapath::counters() const {
  const auto own = counters_.all();
  const auto below = socket_->counters();
  std::copy(own.begin(), own.end(), report_.begin());
  std::copy(below.begin(), below.end(), report_.begin() + static_cast<std::ptrdiff_t>(own.size()));
  return report_;
}

}  // namespace mlt::io
