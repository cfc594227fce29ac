// Upper limit of kernel UDP on a host: a bare UDP_SEGMENT loop with one copy, for comparison with the engine.
//
// No protocol: one rank sends batches of equal datagrams as fast as the socket accepts them. The other receives merged
// batches (UDP_GRO) and copies each payload to its offset. Lost data is not repaired. The caller owns the descriptors;
// one thread at a time may use each. Sizes in bytes, times in nanoseconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mlt::bare_udp {

inline constexpr std::size_t kHeaderBytes = 40;  // size of a data packet's header; holds the datagram's number
inline constexpr std::size_t kMinPayload = 8;
inline constexpr std::size_t kMaxPayload = 8'960;  // as mlt's own segments

struct Received {
  std::int64_t waited_ns = 0;   // from the call to the first datagram; 0 if none arrived
  std::int64_t elapsed_ns = 0;  // from the first datagram to the last that arrived
  std::size_t bytes = 0;        // payload that arrived and had an offset; duplicates count twice
};

// Sets large buffers, merged receives, and `silence_ns` as receive timeout. Throws mlt::Error.
void prepare(int fd, std::int64_t silence_ns);

// Sends `data` in datagrams of `payload_bytes` to the connected peer. Throws mlt::Error.
void send(int fd, std::span<const std::byte> data, std::size_t payload_bytes);

// Receives until the last datagram of `data` or a receive timeout, whose time does not count. Throws mlt::Error.
Received receive(int fd, std::span<std::byte> data, std::size_t payload_bytes);

// An in-place all-reduce of two ranks, as bare: each sends one half and adds arriving data to the other, then they
// exchange the sums. Alternates sending and receiving, and spins while idle. Both ranks pass the same `round`, one more
// each time; one rank sets is_first. Returns the bytes that arrived, data.size_bytes() without loss. It stops after
// `patience_ns` before the first datagram, later after `silence_ns` without progress, and at once when data of a later
// round arrives. Throws mlt::Error.
std::size_t all_reduce(int fd, std::span<float> data, bool is_first, std::uint32_t round, std::size_t payload_bytes,
                       std::int64_t patience_ns, std::int64_t silence_ns);

}  // namespace mlt::bare_udp
