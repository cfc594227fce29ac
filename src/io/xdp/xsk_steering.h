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

#include "io/net/socket_address.h"

namespace mlt::io {

// What a kernel on this machine sent and left the checksum of to a card that never was. In the driver of a virtual
// interface such a frame is one datagram. In generic XDP it may as well be a super-packet of several, which only the
// kernel knows how to cut: nothing in its bytes tells.
enum class Unfinished : std::uint8_t { kRedirect, kPass };

// `sockets` is the descriptor of create_socket_map()'s table; `local` an address with a port, no wildcard;
// `max_frame_bytes` counts the Ethernet header.
std::vector<bpf_insn> steering_program(int sockets, const SocketAddress& local, std::uint32_t max_frame_bytes,
                                       Unfinished unfinished);

}  // namespace mlt::io
