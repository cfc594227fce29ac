// A stand-in for libvma, for tests without a Mellanox NIC: the extra interface over kernel sockets, and the refusals
// that matter. Loaded with LD_PRELOAD.
//
// Like libvma it reads no control messages when it sends, has no UDP_SEGMENT and no UDP_GRO, and delivers no TOS byte.
// Unlike it, it serves every UDP socket, IPv6 too, and what it hands out without a copy it has copied once itself.
// Environment: VMA_STAND_IN_FRAGMENTS=n cuts each packet into n pieces, VMA_STAND_IN_COPY=n gives every n-th as a plain
// copy, VMA_STAND_IN_EXTRA=0 offers the extra interface without its functions, as an old libvma would.
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

namespace {

constexpr int kGetInterface = 2'800;
constexpr int kZeroCopy = 0x00040000;
constexpr std::size_t kMaxDatagramBytes = 65'535;

int setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

template <typename Function>
Function next(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) std::abort();
  Function function;
  std::memcpy(&function, &found, sizeof function);
  return function;
}

// Packets are few at a time: a receiver that keeps them finds the pool empty, like the nic's.
class Pool {
 public:
  static constexpr std::size_t kPackets = 64;
  std::byte* take() {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < kPackets; ++i) {
      if (taken_[i]) continue;
      taken_[i] = true;
      return memory_.data() + i * kMaxDatagramBytes;
    }
    return nullptr;
  }
  bool give_back(const void* packet) {
    const std::lock_guard lock(mutex_);
    const auto offset = static_cast<const std::byte*>(packet) - memory_.data();
    const std::size_t index = static_cast<std::size_t>(offset) / kMaxDatagramBytes;
    if (offset < 0 || index >= kPackets || !taken_[index]) return false;
    // A later read finds rubbish.
    std::memset(memory_.data() + index * kMaxDatagramBytes, 0xDD, kMaxDatagramBytes);
    taken_[index] = false;
    return true;
  }
  std::size_t taken() {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::count(taken_.begin(), taken_.end(), true));
  }

 private:
  std::mutex mutex_;
  std::array<bool, kPackets> taken_{};
  std::vector<std::byte> memory_ = std::vector<std::byte>(kPackets * kMaxDatagramBytes);
};

Pool& pool() {
  static Pool the_pool;
  return the_pool;
}

void append(std::byte*& at, const void* value, std::size_t size) {
  std::memcpy(at, value, size);
  at += size;
}

std::atomic<std::uint64_t> received_count{0};

// The library's layout: number of packets, then per packet its id, its number of fragments, and these.
int receive_zero_copy(int socket, void* buffer, std::size_t bytes, int* flags, sockaddr* from, socklen_t* size) {
  static const auto real_recvfrom = next<decltype(&recvfrom)>("recvfrom");
  static const int copy_every = setting("VMA_STAND_IN_COPY", 0);
  static const auto pieces = static_cast<std::size_t>(std::max(1, setting("VMA_STAND_IN_FRAGMENTS", 1)));
  if (copy_every > 0 && ++received_count % static_cast<std::uint64_t>(copy_every) == 0) {
    return static_cast<int>(real_recvfrom(socket, buffer, bytes, *flags, from, size));
  }
  if (bytes < 3 * sizeof(std::size_t) + pieces * sizeof(iovec)) {
    errno = ENOBUFS;
    return -1;
  }
  std::byte* packet = pool().take();
  if (packet == nullptr) {
    errno = EAGAIN;
    return -1;
  }
  const ssize_t got = real_recvfrom(socket, packet, kMaxDatagramBytes, *flags, from, size);
  if (got <= 0) {
    const int number = errno;
    pool().give_back(packet);
    errno = number;
    return static_cast<int>(got);
  }
  *flags |= kZeroCopy;
  auto* at = static_cast<std::byte*>(buffer);
  const std::size_t one = 1;
  const auto total = static_cast<std::size_t>(got);
  const std::size_t count = std::min(pieces, total);
  append(at, &one, sizeof one);
  append(at, &packet, sizeof packet);
  append(at, &count, sizeof count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t start = total * i / count;
    const iovec piece{packet + start, total * (i + 1) / count - start};
    append(at, &piece, sizeof piece);
  }
  return static_cast<int>(got);
}

int free_packets(int, void* packets, std::size_t count) {
  void* id = nullptr;
  std::memcpy(&id, packets, sizeof id);
  if (count == 1 && pool().give_back(id)) return 0;
  errno = ENOENT;
  return -1;
}

struct Table {
  void* register_receive_callback = nullptr;
  int (*receive)(int, void*, std::size_t, int*, sockaddr*, socklen_t*) = receive_zero_copy;
  int (*free)(int, void*, std::size_t) = free_packets;
};

}  // namespace

extern "C" {

// For tests: packets that were received and not given back.
std::size_t vma_stand_in_packets_held() { return pool().taken(); }

int getsockopt(int socket, int level, int name, void* value, socklen_t* size) noexcept {
  static const auto real = next<int (*)(int, int, int, void*, socklen_t*)>("getsockopt");
  if (socket != -1 || level != SOL_SOCKET || name != kGetInterface) return real(socket, level, name, value, size);
  static Table table;
  if (setting("VMA_STAND_IN_EXTRA", 1) == 0) table = {nullptr, nullptr, nullptr};
  const Table* answer = &table;
  if (*size < sizeof answer) {
    errno = EINVAL;
    return -1;
  }
  std::memcpy(value, &answer, sizeof answer);
  *size = sizeof answer;
  return 0;
}

int setsockopt(int socket, int level, int name, const void* value, socklen_t size) noexcept {
  static const auto real = next<int (*)(int, int, int, const void*, socklen_t)>("setsockopt");
  if (level == IPPROTO_UDP && (name == UDP_SEGMENT || name == UDP_GRO)) {
    errno = ENOPROTOOPT;
    return -1;
  }
  return real(socket, level, name, value, size);
}

ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  static const auto real = next<decltype(&sendmsg)>("sendmsg");
  msghdr plain = *message;
  plain.msg_control = nullptr;
  plain.msg_controllen = 0;
  return real(socket, &plain, flags);
}

int sendmmsg(int socket, mmsghdr* messages, unsigned count, int flags) {
  for (unsigned i = 0; i < count; ++i) {
    const ssize_t sent = sendmsg(socket, &messages[i].msg_hdr, flags);
    if (sent < 0) return i > 0 ? static_cast<int>(i) : -1;
    messages[i].msg_len = static_cast<unsigned>(sent);
  }
  return static_cast<int>(count);
}

ssize_t recvmsg(int socket, msghdr* message, int flags) {
  static const auto real = next<decltype(&recvmsg)>("recvmsg");
  const ssize_t got = real(socket, message, flags);
  if (got >= 0) message->msg_controllen = 0;
  return got;
}

}  // extern "C"
