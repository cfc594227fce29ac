// The real driver of an endpoint: owns the endpoint and all that it exchanges with the operating system and with user
// threads, and runs the turns that move datagrams, control frames, timers, commands and completions between them.
//
// A turn, and with it every private member, requires the loop's lock (engine/driving.h), except those marked atomic or
// guarded, and parts that state another rule. sim/host is the other driver; the two share only the layers below both.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/endpoint.h"
#include "engine/collectives.h"
#include "engine/command_queue.h"
#include "engine/control_service.h"
#include "engine/counter_snapshot.h"
#include "engine/datapath_opening.h"
#include "engine/driving.h"
#include "engine/exit_wait.h"
#include "engine/hello_negotiation.h"
#include "engine/local_peers.h"
#include "engine/operation_table.h"
#include "engine/partner_cache.h"
#include "engine/path_check_service.h"
#include "engine/path_mtu_errors.h"
#include "engine/path_report.h"
#include "engine/peer_table.h"
#include "engine/transmitter.h"
#include "engine/user_operations.h"
#include "io/control/control_channel.h"
#include "io/datapath.h"
#include "io/os/clock.h"
#include "mlt.h"

namespace mlt::engine {

using base::TimeNs;

class EventLoop final : private io::ReceiveSink, private io::ControlSink, private DrivenLoop {
 public:
  // Binds UDP and TCP ports; throws mlt::Error. The options must be valid (options_check.h).
  explicit EventLoop(const Options& options);
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Any thread.
  void connect(std::span<const PeerAddress> peers, std::int64_t timeout_ns);
  void start_connect(std::span<const PeerAddress> peers, std::int64_t timeout_ns);
  bool test_connected();
  // On first use: asks for the connections with these ranks. Does not wait. False if the queue rejects it.
  bool use(std::span<const std::uint16_t> ranks);
  // The same, and waits until each of them is up or down, at most until `timeout_ns` has passed (negative: no limit).
  // Without connections on first use it returns at once. False on timeout.
  bool use_and_wait(std::span<const std::uint16_t> ranks, std::int64_t timeout_ns = -1);
  // Called now and then by threads in use_and_wait(), without locks; it may throw. Before connect().
  void set_on_wait(std::function<void()> on_wait) { on_wait_ = std::move(on_wait); }
  // `failure`: why this rank leaves, if it failed; else empty.
  void stop(const std::string& failure = {});
  // stop() in two steps: this ends the operations, and stop() waits for the exit status, at most `max_ns`.
  void stop_before_exit(base::DurationNs max_ns);
  void set_exit_status(int status) { exit_.set_status(status); }
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
  std::uint16_t udp_port() const { return path_report_.udp_port(); }
  std::uint16_t control_port() const { return control_port_; }
  std::uint32_t receive_buffer_bytes() const { return receive_buffer_bytes_; }
  const core::DscpMap& dscp() const { return endpoint_.config().dscp; }
  const Options& options() const { return options_; }
  PeerTable& peers() { return peers_; }
  const PeerTable& peers() const { return peers_; }
  PartnerCache& partner_cache() { return partner_cache_; }
  OperationTable& operations() { return operations_; }
  // Current values while the loop runs, the final ones after it.
  std::vector<CounterValue> counters();
  // 0 before connect() and after stop().
  double rate_bytes_per_second(std::uint16_t peer);
  // Addresses alone before connect() and after stop().
  std::vector<PathStatus> paths(std::uint16_t peer);
  std::vector<std::uint16_t> awaited(OperationId operation);

  // From commands.
  void post(TimeNs now, const core::SendRequest& request) { user_operations_.post(now, request); }
  void post(TimeNs now, const core::ReceiveRequest& request) { user_operations_.post(now, request); }
  void cancel(TimeNs now, OperationId operation, const std::string& reason);
  Collectives& collectives() { return collectives_; }

 private:
  // Runs `query()` with the loop's lock and waits for its end. False, without running it, before connect() and after
  // stop(). Any thread.
  template <typename Query>
  bool run_and_wait(Query&& query);

  std::optional<io::OsError> name_peers(TimeNs now, std::span<const PeerAddress> peers,
                                        std::span<const io::SocketAddress> addresses, std::int64_t timeout_ns);
  void use(TimeNs now, std::uint16_t rank);
  void run();
  void end_operations();
  // DrivenLoop
  bool step(bool is_channel_quiet) override;
  bool run_posts() override;
  TimeNs next_timeout() const override;
  bool datagrams_may_wait(TimeNs now) const override;
  Descriptors descriptors() const override;
  bool prepare_to_wait() override { return datapath_.outer->prepare_to_wait(); }
  bool has_posts() const override { return commands_.has_waiting(); }
  bool has_operations() const override { return operations_.in_progress() > 0; }

  bool run_commands();
  bool transmit(std::size_t budget);
  bool posts_may_wait() const;
  bool drain_completions(TimeNs now);
  void on_completion(TimeNs now, const core::Completion& completion);
  void snapshot_counters();

  // io::ReceiveSink
  void on_run(const base::ReceivedRun& run) override;
  // io::ControlSink
  void on_peer_up(const io::PeerHello& peer) override;
  void on_message(std::uint16_t from, std::uint8_t type, std::span<const std::byte> bytes) override;
  void on_peer_down(std::uint16_t peer, io::PeerDownCause cause, const std::string& text) override;
  void on_refused(const io::SocketAddress& from, const std::string& text) override;
  // An idle rank answers from one number, not from the state of each of its peers.
  bool needs(std::uint16_t peer) const override {
    return endpoint_.operations() > 0 && endpoint_.operations_with(peer) > 0;
  }
  base::TimeNs datagram_at(std::uint16_t peer) const override { return path_checks_.datagram_at(peer); }
  void on_quiet(std::uint16_t peer) override { path_checks_.on_quiet(now_, peer); }

  // Each part refers to those above it. stop() destroys the datapath, local_peers_ and channel_: then no turn runs any
  // more, and the parts that refer to them are only asked for what they keep themselves.
  const Options options_;
  OpenedDatapath datapath_;
  core::Endpoint endpoint_;
  PeerTable peers_;
  PartnerCache partner_cache_;
  PathMtuErrors path_mtu_errors_;
  Transmitter transmitter_;
  const PathReport path_report_;
  const HelloNegotiation hello_;
  std::unique_ptr<LocalPeers> local_peers_;  // null: all peers use the network
  std::unique_ptr<io::ControlChannel> channel_;
  const std::uint16_t control_port_;
  const std::uint32_t receive_buffer_bytes_;
  ControlService control_service_;
  // Each operation takes one command and may take another to cancel it: the tables reject before this is full.
  CommandQueue commands_{std::size_t{4} * options_.max_operations + 1'024};
  Driving driving_{*this, options_.spin_us* base::kMicrosecond};
  OperationTable operations_{options_.max_operations, driving_};
  Collectives collectives_;
  UserOperations user_operations_;
  PathCheckService path_checks_;
  CounterSnapshot counter_snapshot_;

  core::Completion completion_;
  std::uint64_t turns_ = 0;
  bool has_more_to_send_ = false;  // the last turn or post may not have sent all
  std::size_t posts_waiting_ = 0;  // whose packets wait for the next turn
  TimeNs posts_due_ = 0;           // when they leave at the latest
  TimeNs arrived_at_ = 0;          // of the last turn that read any datagram
  std::uint64_t turn_bytes_ = 0;   // read in the turn
  std::uint64_t read_bytes_ = 0;   // by the last turn that read any
  TimeNs now_ = 0;                 // of the turn or command
  std::atomic<bool> stopping_{false};
  std::atomic<bool> started_{false};
  ExitWait exit_;
  std::function<void()> on_wait_;
  std::mutex thread_mutex_;
  std::thread thread_;                        // guarded by thread_mutex_
  std::vector<PeerAddress> named_;            // those of start_connect(); guarded by thread_mutex_
  std::string failure_;                       // guarded by thread_mutex_, until the thread is told to end
  std::vector<std::string> failure_reasons_;  // [r]: why rank r failed, as it reported; else empty
};

}  // namespace mlt::engine
