// What a state machine of a simulated host posts and sends, handed to the simulator (collective/verbs.h).
//
// Absent on purpose: the state machines, which classes that derive from it hold. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "collective/verbs.h"
#include "sim/simulator.h"

namespace mlt::sim {

class SimulatorVerbs : public collective::Verbs {
 public:
  SimulatorVerbs(Simulator& simulator, std::uint16_t rank) : simulator_(simulator), rank_(rank) {}

  core::PostStatus post_send(base::TimeNs, const core::SendRequest& request) override {
    return simulator_.send(rank_, request);
  }
  core::PostStatus post_recv(base::TimeNs, const core::ReceiveRequest& request) override {
    return simulator_.receive(rank_, request);
  }
  void cancel(base::TimeNs, core::OperationId operation, core::CompletionKind kind) override {
    simulator_.cancel(rank_, operation, kind);
  }
  bool send_message(std::uint16_t peer, std::span<const std::byte> bytes) override {
    return simulator_.send_message(rank_, peer, bytes);
  }
  // The same for every pair; 0 before they are connected, as in the engine.
  std::uint32_t segment_bytes(std::uint16_t peer) const override {
    return simulator_.endpoint(rank_).segment_count(peer, 1) == 0
               ? 0
               : simulator_.host(rank_).config().endpoint.max_segment_bytes;
  }
  double port_rate(base::TimeNs now, std::uint16_t peer) const override {
    return simulator_.endpoint(rank_).port_rate_bytes_per_second(now, peer);
  }

 private:
  Simulator& simulator_;
  const std::uint16_t rank_;
};

}  // namespace mlt::sim
