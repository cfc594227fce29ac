#include "engine/collectives.h"

#include <algorithm>
#include <utility>

#include "engine/control_service.h"
#include "engine/public_enums.h"

namespace mlt::engine {

namespace {

// Max messages before serve() or use_services() is called, and their bytes. Workers register before they push, so only
// a few come from each, and a view for each rank that is excluded.
constexpr std::size_t kMaxEarlyMessages = 65'536;
constexpr std::size_t kMaxEarlyBytes = std::size_t{64} << 20;

bool is_for_service(const collective::Message& message) {
  return std::holds_alternative<collective::Register>(message) || std::holds_alternative<collective::Move>(message) ||
         std::holds_alternative<collective::Ready>(message) || std::holds_alternative<collective::Lost>(message) ||
         std::holds_alternative<collective::Excluded>(message) || std::holds_alternative<collective::Loads>(message);
}

}  // namespace

Collectives::Collectives(const Options& options, core::Endpoint& endpoint, io::ControlChannel& channel,
                         const PeerTable& peers, const PathMtuErrors& path_mtu_errors, OperationTable& operations)
    : options_(options),
      endpoint_(endpoint),
      channel_(channel),
      peers_(peers),
      path_mtu_errors_(path_mtu_errors),
      operations_(operations),
      collectives_(options.rank, *this, options.operation_timeout_ns) {
  collectives_.set_shares_by_rate(options.shares_by_rate);
  collectives_.set_checksums(options.checksums);
  collectives_.set_connects_on_use(options.connects_on_use);
}

void Collectives::use_services(TimeNs now, std::vector<std::uint16_t> services, std::uint16_t max_dead_services,
                               const collective::ServiceLoads& loads) {
  collective::Verbs& verbs = *this;
  const base::DurationNs max_undecided_ns = base::after(options_.peer_timeout_ns, options_.suspended_timeout_ns);
  const collective::PushPullConfig config{options_.rank,    services, max_dead_services, options_.operation_timeout_ns,
                                          max_undecided_ns, loads,    options_.checksums};
  push_pull_ = std::make_unique<collective::PushPull>(config, verbs);
  for (const std::uint16_t service : services) {
    const PeerState state = peers_.state(service);
    if (state == PeerState::kLeft || state == PeerState::kFailed) push_pull_->on_peer_down(now, service);
  }
  // Who takes no further part.
  for (const auto& [from, bytes] : take_early_messages()) {
    if (const auto message = collective::decode(bytes)) push_pull_->on_message(now, from, *message);
  }
}

void Collectives::serve(TimeNs now, std::uint16_t workers, const ServiceOptions& options) {
  collective::SummationConfig config;
  config.workers = workers;
  config.services = static_cast<std::uint16_t>(options_.ranks - workers);
  config.rank = options_.rank;
  config.max_dead_workers = options.max_dead_workers;
  config.max_wait_ns = options.max_wait_ns;
  config.max_takeover_wait_ns = base::after(options_.peer_timeout_ns, options_.suspended_timeout_ns);
  config.checksums = options_.checksums;
  collective::Verbs& verbs = *this;
  summation_ = std::make_unique<collective::Summation>(config, verbs);
  // Ranks that are already down send nothing more: the service must report them to the others.
  for (std::uint16_t rank = 0; rank < options_.ranks; ++rank) {
    const PeerState state = peers_.state(rank);
    if (state == PeerState::kLeft || state == PeerState::kFailed) summation_->on_peer_down(now, rank);
  }
  for (const auto& [from, bytes] : take_early_messages()) {
    if (const auto message = collective::decode(bytes)) summation_->on_message(now, from, *message);
  }
}

Collectives::Messages Collectives::take_early_messages() {
  early_bytes_ = 0;
  return std::exchange(early_messages_, {});
}

void Collectives::start(TimeNs now, const collective::PushPullRequest& request) {
  push_pull_->start(now, request);
  finish_push_pulls();
}

void Collectives::start(TimeNs now, collective::CollectiveRequest request) {
  collectives_.start(now, std::move(request));
  finish_collectives();
}

void Collectives::cancel(TimeNs now, core::OperationId operation, const std::string& reason) {
  collectives_.cancel(now, operation, reason);
}

void Collectives::on_message(TimeNs now, std::uint16_t from, std::span<const std::byte> bytes) {
  const auto message = collective::decode(bytes);
  if (!message) return;
  if (const auto* failed = std::get_if<collective::Failed>(&*message)) {
    collectives_.on_message(now, from, *failed);
  } else if (const auto* called = std::get_if<collective::Called>(&*message)) {
    collectives_.on_message(now, from, *called);
  } else if (push_pull_ || (!summation_ && !is_for_service(*message))) {
    if (push_pull_) push_pull_->on_message(now, from, *message);
  } else if (summation_) {
    summation_->on_message(now, from, *message);
  } else if (early_messages_.size() < kMaxEarlyMessages && bytes.size() <= kMaxEarlyBytes - early_bytes_) {
    early_bytes_ += bytes.size();
    early_messages_.emplace_back(from, std::vector<std::byte>(bytes.begin(), bytes.end()));
  }
}

void Collectives::on_completion(TimeNs now, const core::Completion& completion) {
  switch (collective::machine_of(completion.operation)) {
    case collective::MachineId::kPushPull:
      return push_pull_->on_completion(now, completion);
    case collective::MachineId::kSummation:
      return summation_->on_completion(now, completion);
    case collective::MachineId::kCollective:
      return collectives_.on_completion(now, completion);
  }
}

void Collectives::on_peer_up(TimeNs now, std::uint16_t peer) {
  if (push_pull_) push_pull_->on_peer_up(now, peer);
  if (summation_) summation_->on_peer_up(now, peer);
  collectives_.on_peer_up(peer);
}

void Collectives::on_peer_down(TimeNs now, std::uint16_t peer) {
  if (push_pull_) push_pull_->on_peer_down(now, peer);
  if (summation_) summation_->on_peer_down(now, peer);
  collectives_.on_peer_down(now, peer);
}

TimeNs Collectives::next_timeout() const {
  return std::min({collectives_.next_timeout(), push_pull_ ? push_pull_->next_timeout() : base::kNever,
                   summation_ ? summation_->next_timeout() : base::kNever});
}

bool Collectives::on_timeout(TimeNs now) {
  if (next_timeout() > now) return false;
  if (push_pull_) push_pull_->on_timeout(now);
  if (summation_) summation_->on_timeout(now);
  collectives_.on_timeout(now);
  return true;
}

void Collectives::retry(TimeNs now) {
  if (summation_) summation_->retry(now);
  if (push_pull_) push_pull_->retry(now);
  collectives_.retry(now);
}

void Collectives::finish() {
  finish_push_pulls();
  finish_collectives();
}

std::optional<CounterSnapshot::OfService> Collectives::service_counts() const {
  if (!summation_) return std::nullopt;
  return CounterSnapshot::OfService{summation_->rounds_summed(), summation_->late_pushes()};
}

collective::ChecksumCounts Collectives::checksum_counts() const {
  collective::ChecksumCounts counts = collectives_.checksum_counts();
  if (push_pull_) counts += push_pull_->checksum_counts();
  if (summation_) counts += summation_->checksum_counts();
  return counts;
}

std::uint64_t Collectives::workers_gone() const {
  if (summation_) return summation_->workers_gone();
  return push_pull_ ? push_pull_->workers_gone() : 0;
}

std::string Collectives::peer_error(std::uint16_t peer) const {
  return peer < options_.ranks ? path_mtu_errors_.peer_or_path_error(peer) : "";
}

// The error may have the cause already, or be another rank's report, which came before the connection's end.
template <typename Done>
std::string Collectives::error_text(const Done& done) const {
  const std::string cause = done.failed_peer < 0 ? "" : peer_error(static_cast<std::uint16_t>(done.failed_peer));
  if (cause.empty() || done.error.find(cause) != std::string::npos) return done.error;
  const bool is_whole_cause = done.status == core::CompletionStatus::kPeerFailed;
  return is_whole_cause ? cause + " (" + done.error + ")" : done.error + " (" + cause + ")";
}

// Both outcome types have the same members; a push-pull's also has a key.
template <typename Done>
void Collectives::finish(Done& done, std::uint64_t key) {
  Completion result;
  result.operation = done.operation;
  result.status = public_status(done.status);
  result.tag = key;
  result.total_bytes = done.total_bytes;
  result.missing_bytes = done.missing_bytes;
  result.repaired_segments = done.repaired_segments;
  result.elapsed_ns = done.elapsed_ns;
  result.failed_peer = done.failed_peer;
  if (!done.error.empty()) {
    result.error = "rank " + std::to_string(options_.rank) + ": " + operations_.name(done.operation) +
                   " failed: " + error_text(done);
  }
  operations_.finish(std::move(result));
}

void Collectives::finish_push_pulls() {
  collective::PushPullDone done;
  while (push_pull_ && push_pull_->poll_done(done)) finish(done, done.key);
}

void Collectives::finish_collectives() {
  collective::CollectiveDone done;
  while (collectives_.poll_done(done)) finish(done, 0);
}

core::PostStatus Collectives::post_send(TimeNs now, const core::SendRequest& request) {
  return endpoint_.post_send(now, request);
}
core::PostStatus Collectives::post_recv(TimeNs now, const core::ReceiveRequest& request) {
  return endpoint_.post_recv(now, request);
}
void Collectives::cancel(TimeNs now, core::OperationId operation, core::CompletionKind kind) {
  endpoint_.on_control(now, core::Cancel{operation, kind});
}
bool Collectives::send_message(std::uint16_t peer, std::span<const std::byte> bytes) {
  return channel_.send(peer, kCollectiveMessage, bytes) == io::ControlSendStatus::kQueued;
}
std::uint32_t Collectives::segment_bytes(std::uint16_t peer) const { return peers_.segment_bytes(peer); }
double Collectives::port_rate(TimeNs now, std::uint16_t peer) const {
  return endpoint_.port_rate_bytes_per_second(now, peer);
}
bool Collectives::has_left(std::uint16_t peer) const { return peers_.state(peer) == PeerState::kLeft; }
void Collectives::notice(const std::string& text) {
  notices_.add("rank " + std::to_string(options_.rank) + ": " + text);
}
void Collectives::excluded(const std::string& text) { exclusion_.add(text); }
std::uint32_t Collectives::grid_bytes(std::uint16_t peer) const { return peers_.grid_bytes(peer); }

}  // namespace mlt::engine
