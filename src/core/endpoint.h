// The protocol endpoint of one rank: takes and delivers tensors and datagrams.
//
// It has nine entry points. Absent on purpose: sockets, clocks, threads, allocation after construction. The driver
// passes the time as an argument, hands in received datagrams and sends those that the endpoint returns. The two
// drivers are engine/event_loop and sim/host. Paper: section 4.2 (mechanisms) and 5.1 (end-host stack); departures in
// section 20 of PROTOCOL.md.
#pragma once

#include <span>
#include <variant>

#include "base/datagram.h"
#include "base/packed_rows.h"
#include "core/config.h"
#include "core/counter.h"
#include "core/event.h"
#include "core/receiver.h"
#include "core/sender.h"

namespace mlt::core {

// One batch: one peer, one DSCP, one ECN codepoint, one path. Slices point into the tensor and into the batch itself.
// The driver must send it before its next call.
using Transmit = base::DatagramRun;

// Input other than datagrams: connection events, path limits, cancel, close.
using ControlInput = std::variant<PeerUp, PeerDown, PathLimit, PeerMessage, Cancel, Closing, DatagramsDropped>;

// Owned by the driver's thread; no other thread may call it.
class Endpoint {
 public:
  explicit Endpoint(const EndpointConfig& config);

  PostStatus post_send(TimeNs now, const SendRequest& request);
  PostStatus post_recv(TimeNs now, const ReceiveRequest& request);

  // The driver gave `cookie` to the peer that its low 16 bits name, for every connection with it. Without this call the
  // driver is taken to draw cookies when a connection comes up.
  void set_issued_cookie(std::uint64_t cookie);

  // `arrival_ns`: when the network delivered it, if the driver knows; the datagram may have been queued since.
  void on_datagram(TimeNs now, std::span<const std::byte> datagram, base::Ecn ecn, TimeNs arrival_ns = base::kNever);
  void on_control(TimeNs now, const ControlInput& input);
  void on_timeout(TimeNs now);

  // True if `transmit` was filled. Call until it returns false, sending each batch before the next call.
  bool poll_transmit(TimeNs now, const TransmitCapabilities& capabilities, Transmit& transmit);
  bool poll_control(TimeNs now, ControlOutput& output);
  // The completion's bitmap is valid until the next call of any entry point.
  bool poll_completion(Completion& completion);

  TimeNs next_timeout() const;

  // Queries; they change no state.
  const Counters& counters() const { return shared_.counters; }
  const EndpointConfig& config() const { return shared_.config; }
  // Segments of a tensor of `total_bytes` for this peer; 0 if the peer is not up. The length of
  // SendRequest::priorities.
  std::uint32_t segment_count(std::uint16_t peer, std::uint64_t total_bytes) const;
  double rate_bytes_per_second(std::uint16_t peer) const;
  // Of the slowest port on the way to the peer (port_rate.h); 0: not up, or nothing but the peer limits it.
  double port_rate_bytes_per_second(TimeNs now, std::uint16_t peer) const;
  // Sends and receives in progress.
  std::uint32_t operations_with(std::uint16_t peer) const { return shared_.peer_view(peer).operations; }
  std::uint32_t operations() const { return shared_.operations; }
  // When the last datagram of a peer arrived; 0: none.
  TimeNs datagram_at(std::uint16_t peer) const { return shared_.peer_view(peer).datagram_at; }
  Usage usage() const;
  // Whether the early buffer holds any record.
  bool has_early() const { return receiver_.has_early(); }
  // State of one path to a peer; all zero if the path does not exist.
  PathView path_view(std::uint16_t peer, std::uint8_t path) const;
  // Max datagram size to a peer, found by MTU probes; 0: no limit is known.
  std::uint32_t path_limit_bytes(std::uint16_t peer) const;
  std::uint64_t in_flight_bytes(std::uint16_t peer) const { return sender_.in_flight_bytes(peer); }
  // When the next batch leaves, if pacing alone holds back all data that waits to be sent, as of the last
  // poll_transmit(); kNever otherwise. No acknowledgement lets that data leave earlier.
  TimeNs paced_until() const { return sender_.paced_until(); }

 private:
  // What a peer costs as long as nothing is exchanged with it: hundreds of peers are up that a rank never uses. The
  // state of the rest (Peer, and its records in the parts) is made at the first use, as it would have been when the
  // connection came up.
  struct Link {
    PeerUp up;
    std::uint64_t issued_cookie = 0;  // what up.local_cookie will be once it is up; 0: not known before
    bool is_up = false;
    bool is_used = false;  // its state was made, for this connection or an earlier one
    bool refused = false;  // received datagrams in its name that are not of this connection, perhaps of the next
    bool refused_before_up = false;  // received such datagrams since the connection before this one was up
  };

  void on_parity_datagram(TimeNs now, TimeNs arrival_ns, std::uint16_t from, std::span<const std::byte> datagram,
                          const wire::Prefix& prefix, base::Ecn ecn);
  void on_control_datagram(TimeNs now, TimeNs arrival_ns, std::uint16_t from, std::span<const std::byte> datagram,
                           const wire::Prefix& prefix, base::Ecn ecn, bool by_control);
  bool identify(std::span<const std::byte> datagram, wire::Prefix& prefix, std::uint16_t& from);
  void count_drop(wire::DropReason reason);
  std::uint32_t packets_per_ack(const PeerUp& up) const;
  void bring_up(const PeerUp& up);
  // An operation with the peer is posted, or a datagram of it came.
  void use(std::uint16_t peer);
  void begin(Link& link);
  // Makes no record of a peer that never was up.
  const Link& view(std::uint16_t peer) const { return links_[peer]; }
  double line_rate(const Link& link) const;
  void release_polled();

  Shared shared_;
  base::PackedArray<Link> links_;  // by peer
  base::WordArena arena_;
  Sender sender_;
  Receiver receiver_;
  bool has_polled_ = false;  // the slot of the last polled completion is freed at the next call
  CompletedSlot polled_;
};

}  // namespace mlt::core
