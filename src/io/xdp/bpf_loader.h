// Loads an XDP program and attaches it to an interface, using bpf(2) directly.
//
// Absent on purpose: libbpf, object files, BTF, pinning. The only program is a short table of instructions
// (xsk_steering.h), so nothing has to be compiled, shipped or found at run time, and a wheel built without clang
// includes it. A program attached by a link is removed with the link's last descriptor, so a killed process leaves
// nothing behind.
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

// Causes of AF_XDP errors and their remedies; `action` reads after "cannot".
OsError xdp_error(int number, std::string_view action, std::string_view object);

// A map from receive queue number (0 .. queues-1) to AF_XDP socket. Empty for queues without a socket, or once it is
// closed.
UniqueFd create_socket_map(std::uint32_t queues, OsError& error);
bool put_socket(int map, std::uint32_t queue, int socket, OsError& error);

UniqueFd load_xdp_program(std::span<const bpf_insn> instructions, OsError& error);

enum class XdpMode : std::uint8_t {
  kNative,   // in the driver, before the kernel builds its own packet
  kGeneric,  // in the stack: works with every Ethernet device
};

// A program attached to an interface for the lifetime of this object.
class XdpAttachment {
 public:
  enum class Way : std::uint8_t {
    kLink,     // ends with this process, even if killed (Linux 5.9)
    kNetlink,  // stays if the process is killed; without its socket it then passes everything on
  };
  // `interface_name` is for the error only. Null on failure.
  static std::unique_ptr<XdpAttachment> attach(int program, unsigned interface, const std::string& interface_name,
                                               XdpMode mode, Way way, OsError& error);
  XdpAttachment(const XdpAttachment&) = delete;
  XdpAttachment& operator=(const XdpAttachment&) = delete;
  ~XdpAttachment();

  // In a forked child: releases the program, which belongs to the parent.
  void let_go();

 private:
  XdpAttachment() = default;

  UniqueFd link_;
  std::optional<Netlink> netlink_;  // of the interface's namespace; empty: attached by a link
  unsigned interface_ = 0;
  XdpMode mode_ = XdpMode::kNative;
};

}  // namespace mlt::io
