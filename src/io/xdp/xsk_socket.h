// An AF_XDP socket with its memory: frames that a network card (or the kernel, in copy mode) writes into and reads
// from.
//
// Every frame is either waiting to be received into, received and not yet given back, free to send, or being sent. The
// rings are as large as there are frames for them, so no ring is ever too small. Absent on purpose: what is in a frame,
// sharing memory between sockets, frames larger than a page. One thread owns a socket; nothing allocates after open().
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
  unsigned interface = 0;         // its number
  std::string interface_name;     // for errors
  std::uint32_t queue = 0;        // receive and send queue of the interface
  std::uint32_t frame_bytes = 0;  // 2,048 or 4,096
  std::uint32_t receive_frames = 0;
  std::uint32_t send_frames = 0;  // both powers of two
  bool zero_copy = true;          // tried first; where the driver has none, the kernel copies
};

// Bytes of a frame that a received packet, Ethernet header included, can fill: the kernel keeps room in front.
std::uint32_t xsk_receive_room(std::uint32_t frame_bytes);

class XskSocket {
 public:
  // Null on failure, with `error` filled. Waits up to half a second for a queue that somebody has just left.
  static std::unique_ptr<XskSocket> open(const XskOptions& options, OsError& error);
  XskSocket(const XskSocket&) = delete;
  XskSocket& operator=(const XskSocket&) = delete;

  // In a forked child: the socket is the parent's, and this one's memory was not inherited.
  void let_go();

  int fd() const { return fd_.get(); }
  bool zero_copy() const { return zero_copy_; }

  // Frames that arrived and were not given back, oldest first.
  std::uint32_t received() const { return receive_.available(); }
  std::span<const std::byte> received_frame(std::uint32_t index) const;
  // The oldest `count` of them may be received into again.
  void give_back(std::uint32_t count);

  // Whether `count` frames can be written; takes back what was sent.
  bool has_room(std::uint32_t count);
  // The memory of the next frame to send, which has room for it; it leaves with send_frame() and flush().
  std::byte* next_frame();
  void send_frame(std::uint32_t bytes);
  // What polls writable when frames may be free again; -1 if nothing tells. The kernel calls a socket writable while
  // its ring is at most half full, which says nothing of frames that it took and has not given back.
  int writable_fd() const { return unsent() > options_.send_frames / 2 ? fd_.get() : -1; }
  // Frames that the kernel has not taken yet.
  std::uint32_t unsent() const { return send_.pending(); }
  // Has the kernel take them. Returns 0 if it took all or will by itself, EAGAIN if some are left for a later call, or
  // the errno of what is wrong with the interface. `calls` counts system calls.
  int flush(std::uint64_t& calls);

  // What the kernel counted of this socket since it was opened.
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
  std::vector<MemoryMapping> mappings_;  // of memory and rings; taken down after the socket, which uses them, is closed
  UniqueFd fd_;
  bool zero_copy_ = false;
  std::byte* memory_ = nullptr;  // of all frames
  XskFilledRing<std::uint64_t> fill_;
  XskFilledRing<xdp_desc> send_;
  XskEmptiedRing<xdp_desc> receive_;
  XskEmptiedRing<std::uint64_t> completed_;
  std::vector<std::uint64_t> free_;  // frames to send, by address
  std::uint32_t written_ = 0;        // frames handed to send_frame() and not yet shown to the kernel
};

}  // namespace mlt::io
