// Loads an XDP program and hangs it on an interface, by bpf(2) itself.
//
// Absent on purpose: libbpf, object files, BTF, pinning. The one program we need is a short table of instructions
// (xsk_steering.h), so nothing has to be compiled, shipped or found at run time, and a wheel built without clang can do
// it. What is attached by a link goes with the last descriptor of it, so a killed process leaves nothing behind.
#pragma once

#include <linux/bpf.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "io/net/netlink.h"
#include "io/os/os_error.h"
#include "io/os/unique_fd.h"

namespace mlt::io {

// What AF_XDP may be refused for, and what then; `action` reads after "cannot".
OsError xdp_error(int number, std::string_view action, std::string_view object);

// A table from receive queue number (0 .. queues-1) to AF_XDP socket. Empty where no socket was put, or where it died.
UniqueFd create_socket_map(std::uint32_t queues, OsError& error);
bool put_socket(int map, std::uint32_t queue, int socket, OsError& error);

UniqueFd load_xdp_program(std::span<const bpf_insn> instructions, OsError& error);

enum class XdpMode : std::uint8_t {
  kNative,   // in the driver, before the kernel makes a packet of its own
  kGeneric,  // in the stack: works with every Ethernet device
};

// A program on an interface, for as long as this lives.
class XdpAttachment {
 public:
  enum class Way : std::uint8_t {
    kLink,     // ends with this process, however that ends (Linux 5.9)
    kNetlink,  // stays if the process is killed; with its socket gone it then passes everything on
  };
  // `interface_name` is for the error only. Null on failure.
  static std::unique_ptr<XdpAttachment> attach(int program, unsigned interface, const std::string& interface_name,
                                               XdpMode mode, Way way, OsError& error);
  XdpAttachment(const XdpAttachment&) = delete;
  XdpAttachment& operator=(const XdpAttachment&) = delete;
  ~XdpAttachment();

  // In a forked child: the program stays, and it is the parent's alone.
  void let_go();

 private:
  XdpAttachment() = default;

  UniqueFd link_;
  std::optional<Netlink> netlink_;  // of the interface's namespace; nothing: there is a link
  unsigned interface_ = 0;
  XdpMode mode_ = XdpMode::kNative;
};

}  // namespace mlt::io
