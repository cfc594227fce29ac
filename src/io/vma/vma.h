// Whether this process runs under LD_PRELOAD=libvma.so, and the two calls of its extra interface that we use.
//
// libvma serves sockets in user space, past the kernel, on Mellanox network cards. Its extra interface is asked of the
// library itself at run time, so mlt neither links to it nor is built with its headers: what stands here is the part of
// that interface that receiving without a copy takes. Absent on purpose: the completion queue interface, rings,
// callbacks. Source: vma_extra.h of libvma 9.8.
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

// The start of its table of functions; what follows these three differs between versions.
struct VmaInterface {
  void* register_receive_callback;
  // Like recvfrom(); with kVmaZeroCopy in *flags on return, `buffer` holds a VmaPackets, else the data, copied.
  int (*receive_zero_copy)(int socket, void* buffer, std::size_t bytes, int* flags, sockaddr* from, socklen_t* size);
  // Gives packets back; each that was received must be.
  int (*free_packets)(int socket, VmaPacket* packets, std::size_t count);
};

inline constexpr int kVmaGetInterface = 2'800;   // SO_VMA_GET_API
inline constexpr int kVmaZeroCopy = 0x00040000;  // MSG_VMA_ZCOPY

struct Vma {
  // libvma is there. Without what is needed for receiving without a copy, `zero_copy` is null.
  bool present = false;
  const VmaInterface* zero_copy = nullptr;
};

// Asks once; the answer holds for the life of the process, for a library is preloaded or it is not.
const Vma& find_vma();

}  // namespace mlt::io
