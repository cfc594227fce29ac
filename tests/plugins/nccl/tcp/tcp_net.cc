// A plain TCP plugin with NCCL's table of version 8: what the mlt plugin is compared with, and a second subject of the
// driver. One socket for each connection; whichever request is tested, its connection moves on, as in NCCL's own socket
// network with its defaults. Errors have no text: this is no product.
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "plugins/nccl/net_table.h"

namespace {

using namespace mlt::nccl;

struct Connection;

struct Request {
  Connection* connection = nullptr;
  char* data = nullptr;
  std::size_t capacity = 0;
  std::uint64_t size = 0;  // of what is sent; of a receive once `moved` is 8 or more
  std::size_t moved = 0;   // with the 8 bytes of the size in front
  bool is_done = false;
  bool is_free = true;
};

struct Connection {
  int socket = -1;
  bool sends = false;
  std::array<Request, 2 * kMaxRequests> requests;
  std::deque<Request*> queue;
};

constexpr std::size_t kSizeBytes = sizeof(std::uint64_t);
std::mutex connecting_mutex;
std::map<std::uint32_t, int> connecting;  // port and process of the handle -> socket

sockaddr_in own_address() {
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  const char* wanted = std::getenv("NCCL_SOCKET_IFNAME");
  ifaddrs* list = nullptr;
  if (wanted == nullptr || ::getifaddrs(&list) != 0) return own;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr != nullptr && one->ifa_addr->sa_family == AF_INET && std::strcmp(one->ifa_name, wanted) == 0) {
      own.sin_addr = reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
    }
  }
  ::freeifaddrs(list);
  return own;
}

Connection* connection_of(int socket, bool sends) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  auto* made = new Connection;
  made->socket = socket;
  made->sends = sends;
  return made;
}

// False if the connection ended.
bool move_head(Connection& own, bool& blocked) {
  Request& head = *own.queue.front();
  auto* size = reinterpret_cast<char*>(&head.size);
  iovec parts[2];
  int count = 0;
  if (head.moved < kSizeBytes) parts[count++] = {size + head.moved, kSizeBytes - head.moved};
  if (own.sends || head.moved >= kSizeBytes) {
    if (!own.sends && head.size > head.capacity) return false;
    const std::size_t at = head.moved > kSizeBytes ? head.moved - kSizeBytes : 0;
    if (head.size > at) parts[count++] = {head.data + at, head.size - at};
  }
  if (count > 0) {
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<std::size_t>(count);
    const ssize_t moved = own.sends ? ::sendmsg(own.socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
                                    : ::recvmsg(own.socket, &message, MSG_DONTWAIT);
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      blocked = true;
      return true;
    }
    if (moved <= 0) return false;
    head.moved += static_cast<std::size_t>(moved);
  }
  if (head.moved >= kSizeBytes && head.moved == kSizeBytes + head.size) {
    head.is_done = true;
    own.queue.pop_front();
  }
  return true;
}

Result start(void* connection, void* data, std::size_t capacity, std::size_t size, void** request) {
  auto& own = *static_cast<Connection*>(connection);
  *request = nullptr;
  for (Request& one : own.requests) {
    if (!one.is_free) continue;
    one = {&own, static_cast<char*>(data), capacity, size, 0, false, false};
    own.queue.push_back(&one);
    *request = &one;
    return kSuccess;
  }
  return kSuccess;
}

char net_name[] = "plain-tcp";

}  // namespace

extern "C" __attribute__((visibility("default"))) const TableV8 ncclNetPlugin_v8;

const TableV8 ncclNetPlugin_v8 = {
    .name = net_name,
    .init = [](Logger) { return kSuccess; },
    .devices =
        [](int* count) {
          *count = 1;
          return kSuccess;
        },
    .properties =
        [](int, PropertiesV8* properties) {
          *properties = PropertiesV8{net_name, nullptr, 0, kHostMemory, 0, 10'000, 0, 0, 1'024, 1, kNoDeviceOffload, 0};
          return kSuccess;
        },
    .listen =
        [](int, void* handle, void** listener) {
          sockaddr_in own = own_address();
          socklen_t size = sizeof own;
          const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
          if (socket < 0 || ::bind(socket, reinterpret_cast<sockaddr*>(&own), size) != 0 || ::listen(socket, 16) != 0 ||
              ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size) != 0) {
            return kSystemError;
          }
          std::memcpy(handle, &own, sizeof own);
          *listener = new int(socket);
          return kSuccess;
        },
    .connect =
        [](int, void* handle, void** connection, void**) {
          sockaddr_in to;
          std::memcpy(&to, handle, sizeof to);
          *connection = nullptr;
          const std::lock_guard lock(connecting_mutex);
          const std::uint32_t key = to.sin_addr.s_addr ^ (std::uint32_t{to.sin_port} << 16);
          auto [found, is_new] = connecting.emplace(key, -1);
          if (is_new) found->second = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
          const int result = ::connect(found->second, reinterpret_cast<sockaddr*>(&to), sizeof to);
          if (result != 0 && (errno == EINPROGRESS || errno == EALREADY)) return kSuccess;
          if (result == 0 || errno == EISCONN) *connection = connection_of(found->second, true);
          connecting.erase(found);
          return *connection != nullptr ? kSuccess : kRemoteError;
        },
    .accept =
        [](void* listener, void** connection, void**) {
          const int socket = ::accept4(*static_cast<int*>(listener), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
          *connection = socket < 0 ? nullptr : connection_of(socket, false);
          return kSuccess;
        },
    .register_memory =
        [](void* connection, void*, std::size_t, int, void** memory) {
          *memory = connection;
          return kSuccess;
        },
    .register_dma_buf = nullptr,
    .deregister_memory = [](void*, void*) { return kSuccess; },
    .send = [](void* connection, void* data, int size, int, void*,
               void** request) { return start(connection, data, 0, static_cast<std::size_t>(size), request); },
    .receive =
        [](void* connection, int, void** data, int* sizes, int*, void**, void** request) {
          return start(connection, data[0], static_cast<std::size_t>(sizes[0]), 0, request);
        },
    .flush =
        [](void*, int, void**, int*, void**, void** request) {
          *request = nullptr;
          return kSuccess;
        },
    .test =
        [](void* request, int* done, int* sizes) {
          auto& own = *static_cast<Request*>(request);
          *done = 0;
          for (bool blocked = false; !blocked && !own.is_done;) {
            if (!move_head(*own.connection, blocked)) return kRemoteError;
          }
          if (!own.is_done) return kSuccess;
          *done = 1;
          if (sizes != nullptr) sizes[0] = static_cast<int>(own.size);
          own.is_free = true;
          return kSuccess;
        },
    .close_send =
        [](void* connection) {
          auto* own = static_cast<Connection*>(connection);
          ::close(own->socket);
          delete own;
          return kSuccess;
        },
    .close_receive =
        [](void* connection) {
          auto* own = static_cast<Connection*>(connection);
          ::close(own->socket);
          delete own;
          return kSuccess;
        },
    .close_listener =
        [](void* listener) {
          auto* socket = static_cast<int*>(listener);
          ::close(*socket);
          delete socket;
          return kSuccess;
        },
    .device_memory = nullptr,
    .receive_consumed = nullptr,
};
