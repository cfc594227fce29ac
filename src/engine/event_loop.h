// The real driver of an endpoint: moves datagrams, control frames, timers, commands and completions between
// core::Endpoint, a datapath, the control channel and the collectives.
//
// All private members require the loop's lock (engine/driving.h), except those marked atomic or guarded. sim/host is
// the other driver; the two share only the layers below both.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/endpoint.h"
#include "engine/collectives.h"
#include "engine/command_queue.h"
#include "engine/driving.h"
#include "engine/local_peers.h"
#include "engine/operation_table.h"
#include "engine/path_mtu_errors.h"
#include "engine/peer_table.h"
#include "io/control/control_channel.h"
#include "io/datapath.h"
#include "io/network_datapath.h"
#include "io/os/clock.h"
#include "mlt.h"

namespace mlt::engine {

using base::TimeNs;

// Extra operations in the endpoint beyond the application's, for sends and receives each: those of collectives and
// services in progress, and failed sends with ABORT unacknowledged.
inline constexpr std::uint32_t kSpareOperations = 16'384;
// Max of Options::max_operations. With the spare ones, it must stay below the receives that a gap of generations allows
// (kGenerationGap).
inline constexpr std::uint32_t kMaxOperationsLimit = 131'072;

// The configured map of classes to code points, or the default if empty; not validated.
core::DscpMap dscp_map(const Options& options);

class EventLoop final : private io::ReceiveSink, private io::ControlSink, private DrivenLoop {
 public:
  // Binds UDP and TCP ports; throws mlt::Error.
  explicit EventLoop(const Options& options);
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Any thread.
  std::uint16_t udp_port() const { return path_addresses_.front().port(); }
  std::uint16_t control_port() const { return control_port_; }
  void connect(std::span<const PeerAddress> peers, std::int64_t timeout_ns);
  void stop();
  // Runs `command(now)` with the loop's lock: here if the lock is free, else its holder does. False if the queue
  // rejects it.
  template <typename Command>
  bool run_command(Command&& command) {
    if (driving_.try_begin_post()) {
      run_commands();  // in order: earlier commands first
      now_ = io::monotonic_now();
      command(now_);
      driving_.finish_post();
      return true;
    }
    if (!commands_.push(std::forward<Command>(command))) return false;
    driving_.run_queued();
    return true;
  }
  // One turn, unless another thread is in one: for callers that poll instead of waiting.
  void poll() { driving_.poll(); }
  PeerTable& peers() { return peers_; }
  const PeerTable& peers() const { return peers_; }
  std::uint32_t receive_buffer_bytes() const { return receive_buffer_bytes_; }
  const core::DscpMap& dscp() const { return endpoint_->config().dscp; }
  std::vector<CounterValue> counters();
  double rate_bytes_per_second(std::uint16_t peer);
  std::vector<PathStatus> paths(std::uint16_t peer);

  OperationTable& operations() { return operations_; }
  const Options& options() const { return options_; }

  // Requires the loop's lock.
  const PathMtuErrors& path_mtu_errors() const { return *path_mtu_errors_; }
  // From commands.
  void post(TimeNs now, const core::SendRequest& request);
  void post(TimeNs now, const core::ReceiveRequest& request);
  void cancel_user(TimeNs now, OperationId operation);
  Collectives& collectives() { return *collectives_; }

 private:
  void open_datapath();
  void open_control_channel();
  void require_secret(const io::SocketAddress& address, const std::string& purpose) const;
  void run();
  void end_operations();
  // DrivenLoop
  bool step(bool is_channel_quiet) override;
  bool run_posts() override;
  TimeNs next_timeout() const override;
  Descriptors descriptors() const override;
  bool prepare_to_wait() override { return datapath_->prepare_to_wait(); }
  bool has_posts() const override { return commands_.has_waiting(); }
  bool has_operations() const override { return operations_.in_progress() > 0; }

  std::size_t transmit(std::size_t budget);
  void drop_broken_peers();
  bool join_local_peer(const io::Hello& hello, core::PeerUp& up);
  void send_run(const core::Transmit& run);
  void on_refused_run(const core::Transmit& run, io::SendStatus status);
  void explain_failure(const core::Completion& completion, std::string& error);
  bool service_channel(TimeNs now);
  void send_backstop();
  bool drain_completions(TimeNs now);
  void hand_over(TimeNs now, const core::Completion& completion);
  void finish_user(const core::Completion& completion);
  void finish_refused(OperationId operation, std::uint16_t peer, std::uint64_t tag, core::PostStatus status);
  bool run_commands();
  void say_goodbye();
  void snapshot_counters();

  // io::ReceiveSink
  void on_run(const base::ReceivedRun& run) override;
  // io::ControlSink
  void on_peer_up(const io::PeerHello& hello) override;
  void on_message(std::uint16_t from, std::uint8_t type, std::span<const std::byte> bytes) override;
  void on_peer_down(std::uint16_t peer, io::PeerDownCause cause, const std::string& text) override;
  void on_refused(const io::SocketAddress& from, const std::string& text) override;

  Options options_;
  std::unique_ptr<io::Datapath> datapath_;  // the network, or fault injection around it
  io::NetworkDatapath* network_ = nullptr;  // inside datapath_
  io::ShmDatapath* shared_ = nullptr;       // datapath_, if peers may share memory
  std::optional<LocalPeers> local_peers_;   // set together with shared_
  core::TransmitCapabilities transmit_capabilities_;
  std::unique_ptr<io::ControlChannel> channel_;
  // Queried even after the datapath and the channel are destroyed; set once, by the constructor.
  std::vector<io::SocketAddress> path_addresses_;
  std::uint16_t control_port_ = 0;
  std::uint32_t receive_buffer_bytes_ = 0;
  std::uint32_t own_segment_bytes_ = 0;
  std::uint32_t own_window_bytes_ = 0;
  std::unique_ptr<core::Endpoint> endpoint_;
  std::unique_ptr<PathMtuErrors> path_mtu_errors_;
  core::Transmit transmit_;
  core::ControlOutput control_output_;
  core::Completion completion_;
  std::unique_ptr<Collectives> collectives_;
  std::uint64_t send_failures_ = 0;
  std::uint64_t loops_ = 0;
  TimeNs now_ = 0;
  TimeNs channel_polled_ns_ = 0;

  // Each operation takes one command and may take another to cancel it: the tables reject before this is full.
  CommandQueue commands_{std::size_t{4} * options_.max_operations + 1'024};
  Driving driving_{*this, options_.spin_us* base::kMicrosecond};
  OperationTable operations_{options_.max_operations, driving_};
  PeerTable peers_;
  std::vector<std::uint64_t> local_cookies_;  // per peer
  std::vector<std::string> send_errors_;      // per peer: error of the last failed batch
  std::mutex snapshot_mutex_;
  std::vector<CounterValue> snapshot_;  // guarded by snapshot_mutex_; the final values, once stopped
  std::atomic<bool> stopping_{false};
  std::atomic<bool> started_{false};
  std::mutex thread_mutex_;
  std::thread thread_;  // guarded by thread_mutex_
};

}  // namespace mlt::engine
