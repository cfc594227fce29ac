// The TCP sockets of the first contact: a node listens at the address that ps-lite tells the others, and answers each
// connection with what an mlt connection needs. They carry no message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "io/os/unique_fd.h"

namespace mlt::van {

// Throw mlt::Error that names the address.
io::UniqueFd listen_at(const std::string& host, std::uint16_t port);  // port 0: any
io::UniqueFd connect_to(const std::string& host, std::uint16_t port);
// The next connection; none if `timeout_ms` passed or it was gone again.
io::UniqueFd accept_from(const io::UniqueFd& listener, int timeout_ms);

// Numeric addresses of a socket's ends.
std::string local_host(const io::UniqueFd& socket);
std::string remote_host(const io::UniqueFd& socket);
std::uint16_t local_port(const io::UniqueFd& socket);

// All of the bytes within 5 s; false otherwise.
bool write_all(const io::UniqueFd& socket, const void* data, std::size_t bytes);
bool read_all(const io::UniqueFd& socket, void* data, std::size_t bytes);

}  // namespace mlt::van
