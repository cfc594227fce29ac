// The XDP program that redirects this endpoint's datagrams, and nothing else, to an AF_XDP socket.
//
// A frame is redirected if it is IPv4 without options or IPv6 without extension headers, unfragmented, UDP, for this
// address and port, and no larger than a buffer. Everything else passes to the kernel: ARP, TCP, ping, other ports,
// fragments, VLAN tags, super-packets of a virtual interface, and frames of a receive queue that has no socket. It is a
// table of instructions rather than a .bpf.c file: it is short, its constants (address, port, size) are known only at
// run time, and neither building nor running mlt then needs clang.
#pragma once

#include <linux/bpf.h>

#include <cstdint>
#include <vector>

#include "io/net/socket_address.h"

namespace mlt::io {

// A frame from a kernel on this host that left the checksum to an offload. In the driver of a virtual interface such a
// frame is one datagram. In generic XDP it may also be a super-packet of several, which only the kernel can segment:
// its bytes do not show which.
enum class Unfinished : std::uint8_t { kRedirect, kPass };

// `sockets` is the descriptor of create_socket_map()'s map; `local` an address with a port, not a wildcard;
// `max_frame_bytes` includes the Ethernet header.
std::vector<bpf_insn> steering_program(int sockets, const SocketAddress& local, std::uint32_t max_frame_bytes,
                                       Unfinished unfinished);

}  // namespace mlt::io
