// Runs the state machines of src/collective in the engine: push-pull, summation and group collectives. Gives them the
// endpoint and the control channel as Verbs, passes events to them, and writes the error texts of their operations.
//
// Absent on purpose: threading. Everything here requires the event loop's lock.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "collective/collectives.h"
#include "collective/push_pull.h"
#include "collective/summation.h"
#include "core/endpoint.h"
#include "engine/counter_snapshot.h"
#include "engine/notices.h"
#include "engine/operation_table.h"
#include "engine/path_mtu_errors.h"
#include "engine/peer_table.h"
#include "io/control/control_channel.h"
#include "mlt.h"

namespace mlt::engine {

using base::TimeNs;

class Collectives final : private collective::Verbs {
 public:
  // The arguments must outlive this object.
  Collectives(const Options& options, core::Endpoint& endpoint, io::ControlChannel& channel, const PeerTable& peers,
              const PathMtuErrors& path_mtu_errors, OperationTable& operations);

  void use_services(TimeNs now, std::vector<std::uint16_t> services, std::uint16_t max_dead_services,
                    const collective::ServiceLoads& loads);
  void serve(TimeNs now, std::uint16_t workers, const ServiceOptions& options);
  void start(TimeNs now, const collective::PushPullRequest& request);
  void start(TimeNs now, collective::CollectiveRequest request);
  // No effect if `operation` is not a collective's.
  void cancel(TimeNs now, core::OperationId operation, const std::string& reason);

  void on_message(TimeNs now, std::uint16_t from, std::span<const std::byte> bytes);
  // Completion of an operation that a collective posted.
  void on_completion(TimeNs now, const core::Completion& completion);
  // Where ranks connect on first use.
  void on_peer_up(TimeNs now, std::uint16_t peer);
  void on_peer_down(TimeNs now, std::uint16_t peer);
  // True if anything was due.
  bool on_timeout(TimeNs now);
  TimeNs next_timeout() const;
  // True if arrivals let a service begin to send results: call retry().
  bool has_begun_results() const { return summation_ && summation_->has_begun_results(); }
  // Retries posts that failed for lack of space, when there may be some.
  void retry(TimeNs now);
  // Reports completed operations to the operation table.
  void finish();

  // Ranks that a collective of a group still waits for; empty if `operation` is none.
  std::vector<std::uint16_t> awaited(core::OperationId operation) const { return collectives_.awaited(operation); }
  std::uint64_t rings_cut_by_rate() const { return collectives_.rings_cut_by_rate(); }
  // Of all of them.
  collective::ChecksumCounts checksum_counts() const;
  // Empty if this rank is not a service.
  std::optional<CounterSnapshot::OfService> service_counts() const;
  std::uint64_t workers_gone() const;
  // Any thread.
  Notices& notices() { return notices_; }
  // Why the others continue without this rank; at most one text.
  Notices& exclusion() { return exclusion_; }

 private:
  core::PostStatus post_send(TimeNs now, const core::SendRequest& request) override;
  core::PostStatus post_recv(TimeNs now, const core::ReceiveRequest& request) override;
  void cancel(TimeNs now, core::OperationId operation, core::CompletionKind kind) override;
  bool send_message(std::uint16_t peer, std::span<const std::byte> bytes) override;
  std::uint32_t segment_bytes(std::uint16_t peer) const override;
  std::uint32_t grid_bytes(std::uint16_t peer) const override;
  double port_rate(TimeNs now, std::uint16_t peer) const override;
  std::string peer_error(std::uint16_t peer) const override;
  bool has_left(std::uint16_t peer) const override;
  void use(TimeNs now, std::uint16_t peer) override { channel_.use(now, peer); }
  void notice(const std::string& text) override;
  void excluded(const std::string& text) override;

  using Messages = std::deque<std::pair<std::uint16_t, std::vector<std::byte>>>;  // with their senders
  Messages take_early_messages();
  template <typename Done>
  void finish(Done& done, std::uint64_t key);
  void finish_push_pulls();
  void finish_collectives();
  // `done.error` with what is known of the peer at fault.
  template <typename Done>
  std::string error_text(const Done& done) const;

  const Options& options_;
  core::Endpoint& endpoint_;
  io::ControlChannel& channel_;
  const PeerTable& peers_;
  const PathMtuErrors& path_mtu_errors_;
  OperationTable& operations_;
  std::unique_ptr<collective::PushPull> push_pull_;
  std::unique_ptr<collective::Summation> summation_;
  collective::Collectives collectives_;
  Messages early_messages_;  // before serve() or use_services()
  std::size_t early_bytes_ = 0;
  Notices notices_;
  Notices exclusion_;
};

}  // namespace mlt::engine
