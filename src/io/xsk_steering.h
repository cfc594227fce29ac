// The XDP program that decides which frames go to an AF_XDP socket: our datagrams, and nothing else.
//
// A frame is redirected if it is IPv4 without options or IPv6 without extension headers, no fragment, UDP, for our
// address and our port, and no larger than a buffer of ours. Everything else passes to the kernel: ARP, TCP, ping,
// other ports, fragments, VLAN tags, super-packets of a virtual interface, and frames of a receive queue that has no
// socket. It is a table of instructions rather than a .bpf.c file, for it is short, its constants (address, port, size)
// are known only at run time, and so neither building nor running mlt takes clang.
#pragma once

#include <linux/bpf.h>

#include <cstdint>
#include <vector>

#include "io/socket_address.h"

namespace mlt::io {

// `sockets` is the descriptor of create_socket_map()'s table; `local` an address with a port, no wildcard;
// `max_frame_bytes` counts the Ethernet header.
std::vector<bpf_insn> steering_program(int sockets, const SocketAddress& local, std::uint32_t max_frame_bytes);

}  // namespace mlt::io
