// Two network namespaces joined by a virtual cable, for tests and measurements that need a real Ethernet interface.
// Nothing has a name: the kernel removes all of it with the last descriptor, however the program ends. Needs root and
// iproute2. What cannot be done is thrown.
#pragma once

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "io/os/unique_fd.h"

namespace mlt::io_test {

// Runs `work` in a new thread whose network namespace is `descriptor`, or a new one if that is negative.
inline void in_namespace(int descriptor, const std::function<void()>& work) {
  std::exception_ptr failure;
  std::thread([&] {
    try {
      if ((descriptor < 0 ? ::unshare(CLONE_NEWNET) : ::setns(descriptor, CLONE_NEWNET)) != 0) {
        throw std::runtime_error("cannot enter a network namespace");
      }
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

inline io::UniqueFd own_namespace() { return io::UniqueFd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)); }

inline bool shell(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class VethPair {
 public:
  static constexpr const char* kInterface = "mlt0";  // on both ends
  static constexpr const char* kIpv4[2] = {"10.77.0.1", "10.77.0.2"};
  static constexpr const char* kIpv6[2] = {"fd77::1", "fd77::2"};

  // Why none can be made here; empty if one can.
  static std::string missing() {
    if (::geteuid() != 0) return "needs root";
    if (!shell("ip -V > /dev/null 2>&1")) return "needs iproute2";
    bool made = false;
    std::thread([&] { made = ::unshare(CLONE_NEWNET) == 0 && shell("ip link add type veth 2> /dev/null"); }).join();
    return made ? "" : "this kernel, or sandbox, has no network namespaces with veth";
  }

  explicit VethPair(int mtu = 1'500) {
    for (io::UniqueFd& end : ends_) in_namespace(-1, [&] { end = own_namespace(); });
    const std::string other = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(ends_[1].get());
    run(0, std::string("ip link add ") + kInterface + " type veth peer name " + kInterface + " netns " + other);
    for (const int end : {0, 1}) {
      const std::string strict = "link set lo up\nlink set mlt0 mtu " + std::to_string(mtu) + " up\naddress add " +
                                 kIpv4[end] + "/24 dev mlt0\n";
      // Without IPv6 in the kernel the second command fails, and so does what needs it.
      const std::string loose = std::string("address add ") + kIpv6[end] + "/64 dev mlt0 nodad";
      run(end, "printf '" + strict + "' | ip -batch - && { ip " + loose + " 2> /dev/null || true; }");
    }
    for (const int end : {0, 1}) inside(end, wait_until_plugged);
  }

  // In the namespace of end 0 or 1; the sockets that `work` opens stay there.
  void inside(int end, const std::function<void()>& work) const { in_namespace(ends_[end].get(), work); }
  void run(int end, const std::string& command) const {
    inside(end, [&] {
      if (!shell(command)) throw std::runtime_error("failed: " + command);
    });
  }
  int descriptor(int end) const { return ends_[end].get(); }

 private:
  // Until the kernel has noticed that the cable is plugged in, it drops what is sent.
  static void wait_until_plugged() {
    const io::UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    for (int tries = 0; tries < 1'000; ++tries) {
      ifreq request{};
      std::strncpy(request.ifr_name, kInterface, IFNAMSIZ - 1);
      if (::ioctl(fd.get(), SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_RUNNING) != 0) return;
      ::usleep(5'000);  // only between two checks
    }
    throw std::runtime_error("the cable between the namespaces never came up");
  }

  io::UniqueFd ends_[2];
};

}  // namespace mlt::io_test
