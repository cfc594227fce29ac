// Drives one production endpoint the way engine/event_loop does: passes in what arrived and timers that are due, sends
// runs and messages that are ready, passes completions to the application; then it sleeps until the next timeout.
// Checks in every turn what drivers rely on: no timer is left due, runs obey the GSO rules, every poll loop terminates.
//
// Absent on purpose: the network (sim/network.h) and the order of events (the simulator's).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/endpoint.h"
#include "sim/clock.h"
#include "sim/packet.h"

namespace mlt::sim {

inline core::EndpointConfig without_retirement() {
  core::EndpointConfig config;
  config.retire_after = 0;
  return config;
}

struct HostConfig {
  // Rank and peers are set by the simulator. Tags are forgotten only if a run enables it: the watches of single hosts
  // (observer.h) identify transfers by the numbers that they have while no tag is forgotten.
  core::EndpointConfig endpoint = without_retirement();
  core::TransmitCapabilities capabilities;
  Clock clock;
  base::DurationNs wake_up_ns = 0;               // from an arrival to the thread's read
  bool pauses_between_batches = false;           // reads with the next batch, as the event loop does
  std::uint64_t socket_buffer_bytes = 4U << 20;  // datagrams beyond it are dropped
  std::uint64_t nic_backlog_bytes = 256U << 10;  // the thread stops sending while more is queued in the NIC
};

// What a host requires from its environment.
class World {
 public:
  virtual void transmit(std::uint16_t host, const core::Transmit& run) = 0;
  virtual void message(std::uint16_t host, const core::ControlOutput& output) = 0;
  virtual void completed(std::uint16_t host, const core::Completion& completion) = 0;
  // Before and after every call of one of the endpoint's entry points.
  virtual void entering(std::uint16_t host);
  virtual void left(std::uint16_t host);
  // A state machine's message was read; the endpoint was informed that a peer is down.
  virtual void machine_message(std::uint16_t host, std::uint16_t from, std::span<const std::byte> bytes) = 0;
  virtual void went_down(std::uint16_t host, std::uint16_t peer) = 0;
  // For an observer (sim/observer.h), just before the endpoint is informed, with the host's own time.
  virtual void coming_up(std::uint16_t host, const core::PeerUp& up);
  virtual void going_down(std::uint16_t host, std::uint16_t peer);
  virtual void reading(std::uint16_t host, base::TimeNs local, std::span<const std::byte> bytes, bool by_control);
  virtual void limiting(std::uint16_t host, const core::PathLimit& limit);
  virtual void turn_ended(std::uint16_t host, base::TimeNs local);
  virtual void schedule_turn(std::uint16_t host, base::TimeNs at, std::uint32_t number) = 0;
  virtual std::uint64_t nic_backlog_bytes(std::uint16_t host) const = 0;
  virtual base::TimeNs nic_drained_ns(std::uint16_t host, std::uint64_t bytes) const = 0;
  virtual void violation(std::uint16_t host, const std::string& text) = 0;

 protected:
  ~World() = default;
};

class Host {
 public:
  Host(World& world, std::uint16_t rank, const HostConfig& config);

  bool is_up() const { return endpoint_ != nullptr; }
  bool is_paused(base::TimeNs now) const { return now < paused_until_; }
  core::Endpoint& endpoint() { return *endpoint_; }
  const core::Endpoint& endpoint() const { return *endpoint_; }
  const HostConfig& config() const { return config_; }
  std::uint32_t incarnation() const { return incarnation_; }
  // The connection to `peer` that the endpoint knows of; 0: none.
  std::uint64_t connection(std::uint16_t peer) const;
  // Datagrams and messages taken from the network and not yet read.
  std::uint64_t unread() const;

  // Starts a new process with an empty endpoint; all state of the old one is lost.
  void start();
  void crash();
  // Suspends reading, sending and waking until `until`; what arrives in the meantime waits in the socket's buffer.
  void pause(base::TimeNs now, base::TimeNs until);

  // True if the socket accepted it (bytes that must wait are copied); false: buffer full, or no process.
  bool receive(base::TimeNs now, const Packet& packet);
  // `connection`: the simulator's number.
  void control(base::TimeNs now, const core::PeerUp& up, std::uint64_t connection);
  void control(base::TimeNs now, const core::PeerDown& down);
  void control(base::TimeNs now, const core::PathLimit& limit);
  void control(base::TimeNs now, std::uint16_t from, std::span<const std::byte> message, bool of_machines);
  // Before the process leaves: sends its remaining output.
  void close(base::TimeNs now);
  core::PostStatus post(base::TimeNs now, const core::SendRequest& request);
  core::PostStatus post(base::TimeNs now, const core::ReceiveRequest& request);
  void cancel(base::TimeNs now, core::OperationId operation, core::CompletionKind kind);
  // The application's thread wakes the I/O thread; never from inside a turn.
  void wake(base::TimeNs now);

  // Handles a kTurn event with `number`; false if the host's wake-up was rescheduled, so that the event is obsolete.
  bool on_turn(base::TimeNs now, std::uint32_t number);

 private:
  struct Datagram {
    std::vector<std::byte> bytes;
    base::Ecn ecn = base::Ecn::kNotEct;
    base::TimeNs arrival_ns = 0;
    bool after_drop = false;  // the socket dropped others since the last one
  };
  struct Message {
    std::uint16_t from = 0;
    std::vector<std::byte> bytes;
    bool of_machines = false;
  };
  struct Connection {
    std::uint16_t peer = 0;
    std::uint64_t number = 0;
  };
  struct Up {
    core::PeerUp up;
    std::uint64_t connection = 0;
  };
  using Input = std::variant<Datagram, Up, core::PeerDown, core::PathLimit, Message>;

  // The endpoint for one call, of which the world is told.
  class Entry {
   public:
    Entry(World& world, std::uint16_t rank, core::Endpoint& endpoint)
        : world_(world), rank_(rank), endpoint_(endpoint) {
      world_.entering(rank_);
    }
    ~Entry() { world_.left(rank_); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    core::Endpoint* operator->() const { return &endpoint_; }

   private:
    World& world_;
    std::uint16_t rank_;
    core::Endpoint& endpoint_;
  };
  Entry entry() { return {world_, rank_, *endpoint_}; }

  void turn(base::TimeNs now);
  void apply(base::TimeNs local, const Input& input);
  void schedule(base::TimeNs at);
  bool must_wait(base::TimeNs now) const {
    return is_paused(now) || config_.wake_up_ns > 0 || !inbox_.empty() || is_between_batches(now);
  }
  bool is_between_batches(base::TimeNs now) const;
  void wait(base::TimeNs now, Input input);
  void set_connection(std::uint16_t peer, std::uint64_t number);

  World& world_;
  std::uint16_t rank_;
  HostConfig config_;
  std::unique_ptr<core::Endpoint> endpoint_;
  std::unique_ptr<core::Transmit> run_;
  std::unique_ptr<core::ControlOutput> output_;
  std::uint32_t incarnation_ = 0;
  std::vector<Connection> connections_;  // by peer; of those that were ever up
  base::TimeNs paused_until_ = 0;
  std::vector<Input> inbox_;
  std::vector<Input> reading_;
  std::uint64_t inbox_bytes_ = 0;
  bool dropped_ = false;  // the socket was full since it last accepted a datagram
  // A thread sleeps until one time. An obsolete event may fire earlier: then it continues to sleep.
  base::TimeNs turn_at_ = base::kNever;
  base::TimeNs event_at_ = base::kNever;
  std::uint32_t event_number_ = 0;
};

// How `run` violates the datapath's requirements; empty if it does not. `paths`: the number of its endpoint's paths.
std::string run_fault(const core::Transmit& run, const core::TransmitCapabilities& capabilities, std::uint8_t paths);

}  // namespace mlt::sim
