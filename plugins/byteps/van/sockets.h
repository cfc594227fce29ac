// The TCP sockets of the first contact: a node listens at the address that ps-lite tells the others, and answers each
// connection with what an mlt connection needs. They carry no message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace mlt::van {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Throw mlt::Error that names the address.
Descriptor listen_at(const std::string& host, std::uint16_t port);  // port 0: any
Descriptor connect_to(const std::string& host, std::uint16_t port);
// The next connection; none if `timeout_ms` passed or it was gone again.
Descriptor accept_from(const Descriptor& listener, int timeout_ms);

// Numeric addresses of a socket's ends.
std::string local_host(const Descriptor& socket);
std::string remote_host(const Descriptor& socket);
std::uint16_t local_port(const Descriptor& socket);

// All of the bytes within 5 s; false otherwise.
bool write_all(const Descriptor& socket, const void* data, std::size_t bytes);
bool read_all(const Descriptor& socket, void* data, std::size_t bytes);

}  // namespace mlt::van
