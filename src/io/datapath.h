// A datapath carries runs of datagrams between ranks. The layers above are the same for kernel UDP, AF_XDP, memory and
// a wrapper that injects faults.
//
// Absent on purpose: the protocol (io never uses core), retries, queues. One thread owns a datapath.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/datagram.h"
#include "base/time.h"
#include "io/counters.h"

namespace mlt::io {

struct Capabilities {
  std::uint32_t max_run_segments = 1;        // datagrams in one send()
  std::uint32_t max_run_bytes = 1'500;       // bytes in one send()
  std::uint32_t max_datagram_bytes = 1'472;  // largest single datagram that the interface carries unfragmented
  std::uint32_t receive_buffer_bytes = 0;    // receive buffer granted by the kernel
  bool sets_dscp = false;                    // DSCP and ECN are written per run
  bool reads_ecn = false;                    // ReceivedRun::ecn is valid
  bool stamps_arrivals = false;              // ReceivedRun::arrival_ns is valid, however late it is read
  bool segmentation_offload = false;         // a run costs one system call and one pass through the stack
  bool receive_offload = false;              // adjacent datagrams arrive merged into one ReceivedRun
  bool busy_poll = false;                    // the system polls the interface while it waits for datagrams
  std::string name;                          // "udp", "memory", "fault(udp)", ...
};

enum class SendStatus : std::uint8_t {
  kSent,        // accepted whole; delivery is not guaranteed
  kWouldBlock,  // nothing accepted: try again when writable
  kNoPeer,      // nothing accepted: set_peer was not called for this rank
  kTooLarge,    // nothing accepted: larger than capabilities allow
  kFailed,      // rejected by the system; see last_error(). Counts as a lost run, never retried here
};

// Receives what a datapath read; called on the owner's thread, from inside receive().
class ReceiveSink {
 public:
  virtual void on_run(const base::ReceivedRun& run) = 0;

 protected:
  ~ReceiveSink() = default;
};

class Datapath {
 public:
  virtual ~Datapath() = default;

  virtual const Capabilities& capabilities() const = 0;

  // Sends one run; its slices are not read after the call. `now` is the driver's clock: wrappers that delay use it,
  // sockets ignore it.
  virtual SendStatus send(base::TimeNs now, const base::DatagramRun& run) = 0;

  // False: the queue to that peer is full, and send() returns kWouldBlock for all but small runs until readable_fd()
  // wakes the owner. Other peers are not affected.
  virtual bool has_room_for(std::uint16_t) { return true; }

  // Passes up to `budget_runs` received runs to the sink; returns how many.
  virtual std::size_t receive(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) = 0;

  // Call before the owner sleeps on readable_fd(). False: data to receive or space to send is available, and the owner
  // must not sleep. The next receive() cancels it.
  virtual bool prepare_to_wait() { return true; }

  // File descriptor that polls readable, after prepare_to_wait(), when receive() would find data; -1 if there is none
  // (memory).
  virtual int readable_fd() const = 0;

  // File descriptor that polls writable when a send() of `run` that returned kWouldBlock may succeed; -1: try again
  // later.
  virtual int writable_fd(const base::DatagramRun&) const { return readable_fd(); }

  // Time of the next work of receive() or send() that no descriptor announces (a delayed datagram is due); kNever:
  // none.
  virtual base::TimeNs next_timeout() const { return base::kNever; }

  // Text of the last kFailed, with errno's name; empty if none.
  virtual std::string last_error() const { return {}; }

  // All counters of this layer; a wrapper reports only its own. Names are stable, order is not.
  virtual std::span<const NamedCounter> counters() const { return {}; }
};

}  // namespace mlt::io
