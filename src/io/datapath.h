// A datapath carries runs of datagrams between ranks. Everything above it is the same for kernel UDP, AF_XDP, memory
// or a wrapper that injects faults.
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
  std::uint32_t receive_buffer_bytes = 0;    // what the kernel granted for unread datagrams
  bool sets_dscp = false;                    // DSCP and ECN are written per run
  bool reads_ecn = false;                    // ReceivedRun::ecn is real
  bool segmentation_offload = false;         // a run is one system call and one walk through the stack, not one each
  bool receive_offload = false;              // neighbours arrive merged into one ReceivedRun
  bool busy_poll = false;                    // the system polls the interface while it waits for datagrams
  std::string name;                          // "udp", "memory", "fault(udp)", ...
};

enum class SendStatus : std::uint8_t {
  kSent,        // taken whole; delivery is not promised
  kWouldBlock,  // nothing taken: try again when writable
  kNoPeer,      // nothing taken: set_peer was not called for this rank
  kTooLarge,    // nothing taken: larger than capabilities allow
  kFailed,      // the system refused it; see last_error(). Counts as a lost run, never retried here
};

// Where a datapath puts what it received; called on the owner's thread, from inside receive().
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

  // Sends one run; its slices are read no more afterwards. `now` is the driver's clock: wrappers that delay need it,
  // sockets ignore it.
  virtual SendStatus send(base::TimeNs now, const base::DatagramRun& run) = 0;

  // False: the way to that peer is full, send() answers kWouldBlock for all but small runs, and to send must wait until
  // readable_fd() wakes the owner; other peers are not concerned.
  virtual bool has_room_for(std::uint16_t) { return true; }

  // Hands up to `budget_runs` received runs to the sink; returns how many.
  virtual std::size_t receive(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) = 0;

  // To be called before the owner sleeps on readable_fd(). False: there is something to receive, or room to send, now,
  // and it must not sleep. The next receive() ends it.
  virtual bool prepare_to_wait() { return true; }

  // File descriptor that polls readable, once prepare_to_wait() was called, when receive() would find something; -1
  // where there is none (memory).
  virtual int readable_fd() const = 0;

  // File descriptor that polls writable when a send() of `run` that answered kWouldBlock may work; -1: try again later.
  virtual int writable_fd(const base::DatagramRun&) const { return readable_fd(); }

  // When receive() or send() has work that no descriptor announces (a delayed datagram comes due); kNever otherwise.
  virtual base::TimeNs next_timeout() const { return base::kNever; }

  // Text of the last kFailed, with errno's name; empty if none.
  virtual std::string last_error() const { return {}; }

  // Everything this layer counted, by name; a wrapper reports its own only. Names are stable, order is not.
  virtual std::span<const NamedCounter> counters() const { return {}; }
};

}  // namespace mlt::io
