// What the oracle needs from a driver of virtual hosts: the simulator (sim/simulator.h), whose network determines the
// next event, or the micro-swarm's world (sim/micro_world.h), whose explorer does.
//
// Absent on purpose: advancing time, carrying datagrams. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "sim/host.h"
#include "sim/ledger.h"
#include "sim/observer.h"

namespace mlt::sim {

class VirtualDriver : protected World {
 public:
  virtual base::TimeNs now() const = 0;
  virtual std::uint16_t hosts() const = 0;
  virtual Host& host(std::uint16_t rank) = 0;
  core::Endpoint& endpoint(std::uint16_t rank) { return host(rank).endpoint(); }
  // 0: none. A connection's number is never reused.
  virtual std::uint64_t connection(std::uint16_t a, std::uint16_t b) const = 0;
  // The connection that this side's endpoint knows of; 0: none.
  std::uint64_t endpoint_connection(std::uint16_t rank, std::uint16_t peer) {
    return host(rank).is_up() ? host(rank).connection(peer) : 0;
  }

  core::PostStatus send(std::uint16_t rank, const core::SendRequest& request) {
    return host(rank).post(now(), request);
  }
  core::PostStatus receive(std::uint16_t rank, const core::ReceiveRequest& request) {
    return host(rank).post(now(), request);
  }
  void cancel(std::uint16_t rank, core::OperationId operation, core::CompletionKind kind) {
    host(rank).cancel(now(), operation, kind);
  }
  void pause(std::uint16_t rank, base::DurationNs duration_ns) { host(rank).pause(now(), now() + duration_ns); }

  // The fates of all datagrams, including the number still in flight.
  virtual const Ledger& ledger() const = 0;
  virtual std::size_t packets_in_use() const = 0;
  virtual std::uint64_t messages_delivered() const = 0;
  // Datagrams and messages that a host had accepted and not read when it crashed.
  virtual std::uint64_t lost_in_crashes() const = 0;

  // The first violation of what every driver relies on; empty if there is none. The run stops there.
  const std::string& fault() const { return fault_; }
  void fail(const std::string& text) {
    if (fault_.empty()) fault_ = text;
  }

  // Digest of every event so far, the headers of delivered datagrams, and the input of mix(): two runs with the same
  // digest were the same.
  std::uint64_t digest() const { return digest_; }
  void mix(std::uint64_t word) {
    digest_ = (digest_ ^ word) * 0x9E3779B97F4A7C15ULL;
    digest_ ^= digest_ >> 32;
  }

  // Whether `observer` is shown what every endpoint reads and sends: the rules about single datagrams need all of it.
  virtual bool shows_everything() const { return false; }
  Observer* observer = nullptr;  // not owned

  // Called for each completion, inside the host's turn; may post. The completion's bitmap is valid during the call.
  std::function<void(std::uint16_t rank, const core::Completion&)> on_completion;
  // Called before a crashing endpoint is destroyed.
  std::function<void(std::uint16_t rank, const core::Endpoint&)> on_crash;
  // Called just before an endpoint learns that a peer is up, inside the host's turn.
  std::function<void(std::uint16_t rank, std::uint16_t peer)> on_coming_up;

 protected:
  ~VirtualDriver() = default;

 private:
  // What hosts report for an observer.
  void coming_up(std::uint16_t host, const core::PeerUp& up) final {
    if (observer != nullptr) observer->came_up(host, up);
    if (on_coming_up) on_coming_up(host, up.peer);
  }
  void going_down(std::uint16_t host, std::uint16_t peer) final {
    if (observer != nullptr) observer->went_down(host, peer);
  }
  void reading(std::uint16_t host, base::TimeNs local, std::span<const std::byte> bytes, bool by_control) final {
    if (observer != nullptr) observer->reads(host, local, bytes, by_control);
  }
  void limiting(std::uint16_t host, const core::PathLimit& limit) final {
    if (observer != nullptr) observer->is_limited(host, limit);
  }
  void turn_ended(std::uint16_t host, base::TimeNs local) final {
    if (observer != nullptr) observer->turn_ended(host, local);
  }

  std::string fault_;
  std::uint64_t digest_ = 0xCBF29CE484222325ULL;
};

}  // namespace mlt::sim
