#include "unit/io/udp/scripted_socket.h"

#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace {

template <typename Function>
Function* next_definition(const char* name) {
  void* symbol = dlsym(RTLD_NEXT, name);
  Function* function = nullptr;
  static_assert(sizeof symbol == sizeof function);
  std::memcpy(&function, &symbol, sizeof function);
  return function;
}

bool take(std::deque<mlt::io_test::ScriptedCall>& calls, mlt::io_test::ScriptedCall& call) {
  if (calls.empty()) return false;
  call = calls.front();
  calls.pop_front();
  errno = call.error;
  return true;
}

bool is_segmented(const msghdr* message) {
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr;
       header = CMSG_NXTHDR(const_cast<msghdr*>(message), header)) {
    if (header->cmsg_level == IPPROTO_UDP && header->cmsg_type == UDP_SEGMENT) return true;
  }
  return false;
}

void shift_stamps(msghdr* message, long long by_ns) {
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr; header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_TIMESTAMPNS) continue;
    timespec stamp{};
    std::memcpy(&stamp, CMSG_DATA(header), sizeof stamp);
    const long long shifted = stamp.tv_sec * 1'000'000'000LL + stamp.tv_nsec + by_ns;
    stamp.tv_sec = shifted / 1'000'000'000LL;
    stamp.tv_nsec = shifted % 1'000'000'000LL;
    std::memcpy(CMSG_DATA(header), &stamp, sizeof stamp);
  }
}

}  // namespace

mlt::io_test::SocketScript& mlt::io_test::socket_script() {
  static SocketScript script;
  return script;
}

extern "C" {

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static auto* const real = next_definition<ssize_t(int, const msghdr*, int)>("sendmsg");
  mlt::io_test::ScriptedCall call;
  if (take(mlt::io_test::socket_script().sendmsg, call) && call.error != 0) return -1;
  if (const int error = mlt::io_test::socket_script().segmented_sends_fail_with; error != 0 && is_segmented(message)) {
    errno = error;
    return -1;
  }
  return real(fd, message, flags);
}

int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  static auto* const real = next_definition<int(int, mmsghdr*, unsigned, int)>("sendmmsg");
  mlt::io_test::ScriptedCall call;
  if (take(mlt::io_test::socket_script().sendmmsg, call)) {
    if (call.error != 0) return -1;
    if (call.at_most >= 0) count = std::min(count, static_cast<unsigned>(call.at_most));
  }
  return real(fd, messages, count, flags);
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static auto* const real = next_definition<ssize_t(int, msghdr*, int)>("recvmsg");
  mlt::io_test::ScriptedCall call;
  if (take(mlt::io_test::socket_script().recvmsg, call) && call.error != 0) return -1;
  const ssize_t got = real(fd, message, flags);
  if (got >= 0) shift_stamps(message, mlt::io_test::socket_script().stamps_shift_ns);
  return got;
}

}  // extern "C"
