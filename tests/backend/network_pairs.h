// Pairs of endpoints that need more than a socket on loopback: AF_XDP on both ends of a virtual cable, or on one, and
// libvma's stand-in, where this process runs under it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "io/datapath.h"

namespace mlt::io_test {

// Two endpoints, rank 0 and rank 1, that reach each other.
struct Pair {
  std::shared_ptr<void> keep;  // what both stand on
  std::unique_ptr<io::Datapath> zero, one;
};

// Why there can be no AF_XDP here; empty if there can.
std::string xdp_missing();

enum class XdpKind { kUdp, kUdpWithoutOffload, kNative, kGeneric };
// One end each. Both have found each other: where both sides can, every run goes past the kernel.
Pair xdp_pair(XdpKind zero, XdpKind one, bool ipv6);

// Whether this process runs under libvma, or its stand-in.
bool has_vma();
Pair vma_pair(const char* host);
// Packets that the stand-in lent and did not get back.
std::size_t vma_packets_held();

}  // namespace mlt::io_test
