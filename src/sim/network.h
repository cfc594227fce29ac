// Carries datagrams from NIC to NIC: ports, links, routes and their faults.
//
// A packet's path number selects among equal-cost next hops at every fan-out (as a source port does with ECMP): path p
// and path p + 1 of one pair of hosts diverge at the first switch where they can. If the topology plans a pair's
// routes, the path number selects one of these, and the packet follows its edges to the end. Absent on purpose:
// endpoints (sim/host.h), time (the simulator's).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/prng.h"
#include "sim/event_heap.h"
#include "sim/ledger.h"
#include "sim/pair_table.h"
#include "sim/route_table.h"
#include "sim/topology.h"

namespace mlt::sim {

class Network {
 public:
  // `seed` determines every fault. `max_datagram_bytes` bounds the size of a packet.
  Network(const Topology& topology, std::uint64_t seed, std::uint32_t max_datagram_bytes, EventHeap& events);

  std::uint32_t new_packet() { return pool_.take(); }
  Packet& packet(std::uint32_t index) { return pool_[index]; }
  // Queues the packet, which the caller has filled in, in its sender's NIC, or drops it. Counts it as sent.
  void send(base::TimeNs now, std::uint32_t index);
  // The packet has crossed `edge`. True if it has reached its host and is the caller's; false if it was forwarded or
  // dropped.
  bool arrive(base::TimeNs now, std::uint32_t edge, std::uint32_t index);
  // A port with queued packets is free again.
  void serve(base::TimeNs now, std::uint32_t edge);
  // The caller has finished with a packet that arrived: delivered, or dropped for the given reason.
  void finish(std::uint32_t index, Fate fate);

  // Bytes queued in a host's NIC (the first one), and when that will be at most `bytes`.
  std::uint64_t nic_backlog_bytes(std::uint16_t host) const;
  base::TimeNs nic_drained_ns(base::TimeNs now, std::uint16_t host, std::uint64_t bytes) const;

  // The port of `edge` does not serve these queues (bit per queue) until the next call.
  void pause(base::TimeNs now, std::uint32_t edge, std::uint32_t queues);
  // Drops everything from one host to another while blocked.
  void block(std::uint16_t from, std::uint16_t to, bool blocked);
  bool is_blocked(std::uint16_t from, std::uint16_t to) const { return blocked_.get(pair_of(from, to)); }

  Link& link(std::uint32_t edge) { return edges_[edge].link; }
  SwitchPort& port(std::uint32_t edge) { return edges_[edge].port; }
  std::size_t edge_count() const { return edges_.size(); }
  const Routes& routes() const { return routes_; }
  const Topology& topology() const { return topology_; }
  const Ledger& ledger() const { return ledger_; }
  std::uint64_t hops() const { return hops_; }  // packets times links crossed
  std::size_t packets_in_use() const { return pool_.in_use(); }
  std::uint16_t hosts() const { return hosts_; }

  // Called for every packet before it joins the queue of its sender's NIC, if set: true drops it.
  std::function<bool(const Packet&)> drop_if;
  // Called for every drop before the packet is released, if set.
  std::function<void(const Packet&, Fate)> on_drop;
  // Called when the network ceases to be faultless: a datagram was dropped or damaged, or was delayed so that the order
  // of its path and class changed.
  std::function<void()> on_fault;

 private:
  struct EdgeState {
    std::uint32_t to = 0;
    std::uint32_t buffer = 0;  // node whose memory the port uses
    Link link;
    SwitchPort port;
  };

  std::uint32_t pair_of(std::uint16_t from, std::uint16_t to) const { return std::uint32_t{from} * hosts_ + to; }
  void enqueue(base::TimeNs now, std::uint32_t edge, std::uint32_t index);
  void forward(base::TimeNs now, std::uint32_t node, std::uint32_t index);
  void cross(std::uint32_t edge, std::uint32_t index, base::TimeNs leaves);
  void drop(std::uint32_t index, Fate fate);
  // False if the packet was dropped.
  bool corrupt(std::uint32_t edge, std::uint32_t index);

  Topology topology_;
  Routes routes_;
  RouteTable planned_routes_;
  std::uint16_t hosts_;
  PacketPool pool_;
  EventHeap& events_;
  base::Prng prng_;
  std::vector<EdgeState> edges_;
  std::vector<SharedBuffer> buffers_;
  PairTable<bool> blocked_;
  std::vector<std::uint32_t> nics_;  // per host: its first edge
  Ledger ledger_;
  std::uint64_t hops_ = 0;
};

}  // namespace mlt::sim
