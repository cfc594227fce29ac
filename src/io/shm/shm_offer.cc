#include "io/shm/shm_offer.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/bytes.h"

namespace mlt::io {

namespace {

// PROTOCOL 23.1.3: The offer MUST be one message of 24 bytes: "MLTS" (32 bits), 1 (16), the connecting side's rank
//     (16), its cookie (64), bytes of a ring (32), segment bytes (32).
constexpr std::size_t kOfferBytes = 24;
constexpr std::uint32_t kOfferMagic = 0x53544C4D;  // "MLTS"
constexpr std::uint16_t kOfferVersion = 1;         // of the segment's layout
constexpr std::size_t kDescriptors = 3;

std::array<std::byte, kOfferBytes> encode(const ShmOffer& offer) {
  std::array<std::byte, kOfferBytes> bytes;
  base::store_le32(bytes.data(), kOfferMagic);
  base::store_le16(bytes.data() + 4, kOfferVersion);
  base::store_le16(bytes.data() + 6, offer.rank);
  base::store_le64(bytes.data() + 8, offer.cookie);
  base::store_le32(bytes.data() + 16, offer.ring_bytes);
  base::store_le32(bytes.data() + 20, offer.segment_bytes);
  return bytes;
}

bool decode(std::span<const std::byte> bytes, ShmOffer& offer) {
  if (bytes.size() != kOfferBytes || base::load_le32(bytes.data()) != kOfferMagic ||
      base::load_le16(bytes.data() + 4) != kOfferVersion) {
    return false;
  }
  offer.rank = base::load_le16(bytes.data() + 6);
  offer.cookie = base::load_le64(bytes.data() + 8);
  offer.ring_bytes = base::load_le32(bytes.data() + 16);
  offer.segment_bytes = base::load_le32(bytes.data() + 20);
  return true;
}

UniqueFd open_socket() { return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

// The name begins with a zero byte: it is in no file system, and disappears with the socket.
socklen_t fill_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

// Space for the maximum number of descriptors in one message: all that arrive are closed, not leaked.
constexpr std::size_t kMaxDescriptors = 253;

// False if the message is not an offer. Nothing: it has not arrived yet.
std::optional<bool> receive_offer(int fd, ShmListener::Taken& taken) {
  std::array<std::byte, kOfferBytes + 1> bytes;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> ancillary;
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = ancillary.data();
  message.msg_controllen = ancillary.size();
  const ssize_t size = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0) return errno == EAGAIN || errno == EINTR ? std::nullopt : std::optional(false);
  std::vector<UniqueFd> descriptors;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(header) + i * sizeof(int), sizeof received);
      descriptors.emplace_back(received);
    }
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || descriptors.size() != kDescriptors ||
      !decode(std::span(bytes).first(static_cast<std::size_t>(size)), taken.offer)) {
    return false;
  }
  taken.descriptors = {std::move(descriptors[0]), std::move(descriptors[1]), std::move(descriptors[2])};
  return true;
}

}  // namespace

std::string shm_address(std::uint64_t job_id, std::uint64_t incarnation) {
  char text[64];
  // PROTOCOL 23.1.1: A rank that takes offers MUST listen, with a socket of type SOCK_SEQPACKET, at the abstract Unix
  //     address ...
  std::snprintf(text, sizeof text, "mlt-%016" PRIx64 "-%016" PRIx64, job_id, incarnation);
  return text;
}

bool is_same_user(int fd) {
  ucred other{};
  socklen_t size = sizeof other;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && size == sizeof other &&
         other.uid == ::geteuid();
}

bool offer_shm(const std::string& address, const ShmOffer& offer, const ShmDescriptors& give, OsError& error) {
  const UniqueFd fd = open_socket();
  if (!fd) {
    error = os_error(errno, "open", "a Unix socket");
    return false;
  }
  sockaddr_un name;
  const socklen_t length = fill_address(address, name);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0) {
    if (errno != ECONNREFUSED) error = os_error(errno, "offer shared memory at", address);
    return false;
  }
  // PROTOCOL 23.1.4: Each side MUST refuse the other if its effective user is another one, as the kernel reports it
  //     (SO_PEERCRED).
  if (!is_same_user(fd.get())) {
    error = bad_argument("the rank at the other end runs as another user");
    return false;
  }
  const auto bytes = encode(offer);
  const std::array<int, kDescriptors> descriptors = {give.memory.get(), give.creator_bell.get(),
                                                     give.joiner_bell.get()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof descriptors)> ancillary{};
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = ancillary.data();
  message.msg_controllen = ancillary.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptors);
  std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof descriptors);
  if (::sendmsg(fd.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) != static_cast<ssize_t>(bytes.size())) {
    error = os_error(errno, "hand over", "shared memory");
    return false;
  }
  return true;
}

std::optional<ShmListener> ShmListener::open(const std::string& address, std::uint16_t ranks, OsError& error) {
  UniqueFd fd = open_socket();
  if (!fd) {
    error = os_error(errno, "open", "a Unix socket");
    return std::nullopt;
  }
  sockaddr_un name;
  const socklen_t length = fill_address(address, name);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    error = os_error(errno, "take offers of shared memory at", address);
    return std::nullopt;
  }
  return ShmListener(std::move(fd), ranks);
}

void ShmListener::accept_all() {
  // At most the backlog: a client that connects continuously cannot keep the loop going.
  for (int i = 0; i < SOMAXCONN; ++i) {
    UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) return;
    // PROTOCOL 23.1.4: Each side MUST refuse the other if its effective user is another one, as the kernel reports it
    //     (SO_PEERCRED).
    if (!is_same_user(fd.get())) {
      ++refused_;
      continue;
    }
    if (unread_.size() >= ranks_) {
      ++refused_;
      unread_.erase(unread_.begin());
    }
    unread_.push_back(std::move(fd));
  }
}

void ShmListener::read_offers() {
  std::vector<UniqueFd> silent;
  for (UniqueFd& fd : unread_) {
    Taken taken;
    const std::optional<bool> valid = receive_offer(fd.get(), taken);
    if (!valid) {
      silent.push_back(std::move(fd));
    } else if (!*valid || taken.offer.rank >= ranks_ || waiting_.size() >= ranks_) {
      ++refused_;
    } else {
      waiting_.push_back(std::move(taken));
    }
  }
  unread_ = std::move(silent);
}

std::optional<ShmListener::Taken> ShmListener::take(std::uint16_t rank, std::uint64_t cookie) {
  accept_all();
  read_offers();
  std::optional<Taken> found;
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    if (at->offer.rank != rank) {
      ++at;
      continue;
    }
    // PROTOCOL 23.1.3: The cookie that the listening side's hello gave to the rank proves whose offer it is.
    if (at->offer.cookie == cookie) {
      found = std::move(*at);
    } else {
      ++refused_;
    }
    at = waiting_.erase(at);
  }
  return found;
}

}  // namespace mlt::io
