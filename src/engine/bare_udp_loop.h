// The ceiling of kernel UDP on a machine: a bare UDP_SEGMENT loop that copies once, to compare the engine with.
//
// No protocol: one side sends runs of equal datagrams as fast as the socket takes them, the other receives merged runs
// (UDP_GRO) and copies each datagram's payload to its place. What is lost stays lost. The descriptors stay the
// caller's; one thread uses one at a time. Sizes in bytes, times in nanoseconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mlt::engine {

inline constexpr std::size_t kBareUdpHeaderBytes =
    40;  // as much as a data packet's header; holds the datagram's number
inline constexpr std::size_t kBareUdpMinPayload = 8;
inline constexpr std::size_t kBareUdpMaxPayload = 8'960;  // as mlt's own segments

struct BareUdpReceived {
  std::int64_t waited_ns = 0;   // from the call to the first datagram; 0 if none came
  std::int64_t elapsed_ns = 0;  // from the first datagram to the last that came
  std::size_t bytes = 0;        // payload that came and had a place; a datagram that came twice counts twice
};

// Large buffers, merged receives, and `silence_ns` as the socket's receive timeout. Throws mlt::Error.
void prepare_bare_udp(int fd, std::int64_t silence_ns);

// Sends `data` in datagrams of `payload_bytes` to the connected peer. Throws mlt::Error.
void send_bare_udp(int fd, std::span<const std::byte> data, std::size_t payload_bytes);

// Until the last datagram of `data`, or silence, which is not counted. Throws mlt::Error.
BareUdpReceived receive_bare_udp(int fd, std::span<std::byte> data, std::size_t payload_bytes);

// An all-reduce of two ranks in place, as bare: each sends one half and adds to the other what comes, then the sums
// cross. Sends and receives by turns and spins while there is nothing; both ranks call it with the same `round`, one
// more each time, and one of them is first. Bytes that came, data.size_bytes() if nothing was lost: it gives up after
// `patience_ns` before the first datagram, later after `silence_ns` without progress. Throws mlt::Error.
std::size_t all_reduce_bare_udp(int fd, std::span<float> data, bool is_first, std::uint32_t round,
                                std::size_t payload_bytes, std::int64_t patience_ns, std::int64_t silence_ns);

}  // namespace mlt::engine
