// An AF_XDP socket with its memory: frames that a NIC (or the kernel, in copy mode) writes into and reads from.
//
// Every frame is in one of four states: waiting to be received into, received and not yet returned, free to send, or
// being sent. The rings have a slot for every frame, so that they never overflow. Absent on purpose: the content of
// frames, sharing memory between sockets, frames larger than a page. One thread owns a socket; nothing allocates after
// open().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/os/memory_mapping.h"
#include "io/os/os_error.h"
#include "io/os/unique_fd.h"
#include "io/xdp/xsk_ring.h"

namespace mlt::io {

struct XskOptions {
  unsigned interface = 0;         // its index
  std::string interface_name;     // for errors
  std::uint32_t queue = 0;        // receive and send queue of the interface
  std::uint32_t frame_bytes = 0;  // 2,048 or 4,096
  std::uint32_t receive_frames = 0;
  std::uint32_t send_frames = 0;  // both powers of two
  bool zero_copy = true;          // tried first; the kernel copies if the driver does not support it
};

// Bytes of a frame that a received packet, Ethernet header included, can fill: the kernel reserves headroom.
std::uint32_t xsk_receive_room(std::uint32_t frame_bytes);

class XskSocket {
 public:
  // Null on failure, with `error` filled. Waits up to half a second for a queue that another process has just released.
  static std::unique_ptr<XskSocket> open(const XskOptions& options, OsError& error);
  XskSocket(const XskSocket&) = delete;
  XskSocket& operator=(const XskSocket&) = delete;

  // In a forked child: releases the socket, which belongs to the parent; its memory was not inherited.
  void let_go();

  int fd() const { return fd_.get(); }
  bool zero_copy() const { return zero_copy_; }

  // Number of frames that arrived and were not returned, oldest first.
  std::uint32_t received() const { return receive_.available(); }
  std::span<const std::byte> received_frame(std::uint32_t index) const;
  // Returns the oldest `count` of them, to be received into again.
  void give_back(std::uint32_t count);

  // Whether `count` frames can be written; reclaims sent ones.
  bool has_room(std::uint32_t count);
  // Memory of the next frame to send, for which there must be space; send_frame() and flush() send it.
  std::byte* next_frame();
  void send_frame(std::uint32_t bytes);
  // Descriptor that polls writable when frames may be free again; -1 if there is none. The kernel reports a socket
  // writable while its ring is at most half full, which does not cover frames that it has consumed but not returned.
  int writable_fd() const { return unsent() > options_.send_frames / 2 ? fd_.get() : -1; }
  // Frames that the kernel has not consumed yet.
  std::uint32_t unsent() const { return send_.pending(); }
  // Makes the kernel consume them. Returns 0 if it consumed all or will do so by itself, EAGAIN if some remain for a
  // later call, or the errno of an interface error. `calls` counts system calls.
  int flush(std::uint64_t& calls);

  // The kernel's statistics of this socket.
  xdp_statistics statistics() const;

 private:
  explicit XskSocket(const XskOptions& options);
  bool allocate(OsError& error);
  bool map_rings(OsError& error);
  bool keep_from_children(OsError& error);
  bool bind(OsError& error);
  template <typename Entry>
  bool map_ring(const xdp_ring_offset& offsets, std::uint32_t entries, std::uint64_t page, XskRingView<Entry>& view);
  bool set_ring_size(int option, std::uint32_t entries, OsError& error);

  XskOptions options_;
  std::vector<MemoryMapping> mappings_;  // of memory and rings; unmapped after the socket, which uses them, is closed
  UniqueFd fd_;
  bool zero_copy_ = false;
  std::byte* memory_ = nullptr;  // of all frames
  XskFilledRing<std::uint64_t> fill_;
  XskFilledRing<xdp_desc> send_;
  XskEmptiedRing<xdp_desc> receive_;
  XskEmptiedRing<std::uint64_t> completed_;
  std::vector<std::uint64_t> free_;  // frames to send, by address
  std::uint32_t written_ = 0;        // frames passed to send_frame() and not yet published to the kernel
};

}  // namespace mlt::io
