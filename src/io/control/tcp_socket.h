// Non-blocking TCP sockets for the control channel: a listener, and a connect in progress.
#pragma once

#include <cstdint>
#include <optional>

#include "base/time.h"
#include "io/net/socket_address.h"
#include "io/os/os_error.h"
#include "io/os/unique_fd.h"

namespace mlt::io {

// Binds and listens with SO_REUSEADDR, so that a job can restart while connections of the previous run linger. Every
// packet of the accepted connections carries `dscp` (6 bits), including the first.
std::optional<UniqueFd> listen_tcp(const SocketAddress& address, std::uint8_t dscp, OsError& error);

// Starts to connect; the descriptor polls writable once that has succeeded or failed (connect_result()). Packets carry
// `dscp` (6 bits). `source`: the address to connect from, its port apart; the system chooses if it is none or a
// wildcard.
std::optional<UniqueFd> start_connect_tcp(const SocketAddress& address, const SocketAddress& source, std::uint8_t dscp,
                                          OsError& error);

// Empty if no connection is pending (`number` is then 0), or on an error (errno in `number`).
UniqueFd accept_tcp(int listener, int& number);

// 0 once connected, else errno. A socket that has connected to itself, which TCP allows on loopback when there is no
// listener, counts as refused.
int connect_result(int fd);

// Time since the remote host last acknowledged anything, which its kernel does while the process is stopped; a
// multiple of 1 ms. Empty if the system does not report it.
std::optional<base::DurationNs> acknowledgement_age(int fd);

// Whether the remote host has acknowledged all that was written, and the end of it. True if the system does not tell.
bool is_all_acknowledged(int fd);

}  // namespace mlt::io
