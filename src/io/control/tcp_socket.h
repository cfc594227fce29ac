// Non-blocking TCP sockets for the control channel: a listener, and a connection that is being made.
#pragma once

#include <cstdint>
#include <optional>

#include "io/net/socket_address.h"
#include "io/os/os_error.h"
#include "io/os/unique_fd.h"

namespace mlt::io {

// Bound and listening; SO_REUSEADDR is set, so that a job restarts while its predecessor's connections linger. Every
// packet of the connections it accepts carries `dscp` (6 bits), the first one too.
std::optional<UniqueFd> listen_tcp(const SocketAddress& address, std::uint8_t dscp, OsError& error);

// Starts to connect; the descriptor polls writable when that has succeeded or failed (connect_result()). Its packets
// carry `dscp` (6 bits).
std::optional<UniqueFd> start_connect_tcp(const SocketAddress& address, std::uint8_t dscp, OsError& error);

// Empty if nobody is waiting, or on an error, which is then in `number` (0 if nobody is waiting).
UniqueFd accept_tcp(int listener, int& number);

// 0 once connected, errno if that failed. A socket that ended up connected to itself, which TCP allows on loopback when
// nobody listens, counts as refused.
int connect_result(int fd);

}  // namespace mlt::io
