// Detects whether this process runs under LD_PRELOAD=libvma.so, and declares the two calls of its extra API that mlt
// uses.
//
// libvma serves sockets in user space, bypassing the kernel, on Mellanox NICs. Its extra API is obtained from the
// library at run time, so that mlt neither links to it nor needs its headers: declared here is the part that zero-copy
// receive needs. Absent on purpose: the completion queue API, rings, callbacks. Source: vma_extra.h of libvma 9.8.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>

namespace mlt::io {

// The library's structures are packed; a packet ends in `fragments` entries of iovec.
struct [[gnu::packed]] VmaPacket {
  void* id;
  std::size_t fragments;
};
struct [[gnu::packed]] VmaPackets {
  std::size_t count;
  VmaPacket first;
};

// The start of its table of functions; the functions after these three differ between versions.
struct VmaInterface {
  void* register_receive_callback;
  // Like recvfrom(); with kVmaZeroCopy in *flags on return, `buffer` holds a VmaPackets, else the data, copied.
  int (*receive_zero_copy)(int socket, void* buffer, std::size_t bytes, int* flags, sockaddr* from, socklen_t* size);
  // Returns packets to libvma; required for each received one.
  int (*free_packets)(int socket, VmaPacket* packets, std::size_t count);
};

inline constexpr int kVmaGetInterface = 2'800;   // SO_VMA_GET_API
inline constexpr int kVmaZeroCopy = 0x00040000;  // MSG_VMA_ZCOPY

struct Vma {
  // libvma is loaded. `zero_copy` is null if its API cannot receive without a copy.
  bool present = false;
  const VmaInterface* zero_copy = nullptr;
};

// Detects once; the result holds for the life of the process, as a library cannot be preloaded later.
const Vma& find_vma();

}  // namespace mlt::io
