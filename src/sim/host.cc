#include "sim/host.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace mlt::sim {

namespace {

// More iterations of one poll loop than any driver would run per wake-up: the endpoint's output never ends.
constexpr int kEndlessPolls = 200'000;
// As in engine/event_loop.cc.
constexpr base::DurationNs kMaxPauseNs = 250 * base::kMicrosecond;

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace

std::string run_fault(const core::Transmit& run, const core::TransmitCapabilities& capabilities, std::uint8_t paths) {
  if (run.datagram_count == 0) return "an empty run";
  if (run.datagram_count > base::kMaxRunSegments) return "too many datagrams";
  if (run.datagram_count > 1 && run.datagram_count > capabilities.max_run_segments) return "too many datagrams";
  if (run.datagram_count > 1 && run.total_bytes > capabilities.max_run_bytes) return "too many bytes";
  if (run.slice_count == 0 || run.slice_count > run.slices.size()) return "slices beyond the run";
  const std::uint64_t full = std::uint64_t{run.datagram_bytes} * (run.datagram_count - 1);
  if (run.total_bytes <= full || run.total_bytes - full > run.datagram_bytes) return "the last datagram is too long";
  if (run.dscp > 63) return "a DSCP of more than 6 bits";
  if (run.path >= paths) return "a path that it does not have";
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < run.slice_count; ++i) {
    if (run.slices[i].size == 0) return "an empty slice";
    bytes += run.slices[i].size;
  }
  return bytes == run.total_bytes ? "" : "slices that do not add up to the run";
}

// No-ops unless a world overrides them.
void World::entering(std::uint16_t) {}
void World::left(std::uint16_t) {}
void World::coming_up(std::uint16_t, const core::PeerUp&) {}
void World::going_down(std::uint16_t, std::uint16_t) {}
void World::reading(std::uint16_t, base::TimeNs, std::span<const std::byte>, bool) {}
void World::limiting(std::uint16_t, const core::PathLimit&) {}
void World::turn_ended(std::uint16_t, base::TimeNs) {}

Host::Host(World& world, std::uint16_t rank, const HostConfig& config)
    : world_(world),
      rank_(rank),
      config_(config),
      run_(std::make_unique<core::Transmit>()),
      output_(std::make_unique<core::ControlOutput>()) {}

void Host::start() {
  MLT_CHECK(!is_up());
  ++incarnation_;
  endpoint_ = std::make_unique<core::Endpoint>(config_.endpoint);
  connections_.clear();
}

void Host::crash() {
  MLT_CHECK(is_up());
  endpoint_.reset();
  inbox_.clear();
  inbox_bytes_ = 0;
  dropped_ = false;
  paused_until_ = 0;
  turn_at_ = event_at_ = base::kNever;
  ++event_number_;
}

std::uint64_t Host::connection(std::uint16_t peer) const {
  const auto found = std::ranges::lower_bound(connections_, peer, {}, &Connection::peer);
  return found == connections_.end() || found->peer != peer ? 0 : found->number;
}

void Host::set_connection(std::uint16_t peer, std::uint64_t number) {
  const auto place = std::ranges::lower_bound(connections_, peer, {}, &Connection::peer);
  if (place == connections_.end() || place->peer != peer) {
    connections_.insert(place, {peer, number});
  } else {
    place->number = number;
  }
}

void Host::pause(base::TimeNs now, base::TimeNs until) {
  if (until <= paused_until_ || !is_up()) return;
  paused_until_ = until;
  (void)now;
  schedule(until);
}

void Host::wait(base::TimeNs now, Input input) {
  inbox_.push_back(std::move(input));
  const base::TimeNs at = std::max(now + config_.wake_up_ns, paused_until_);
  const bool may_wait = std::holds_alternative<Datagram>(inbox_.back()) && is_between_batches(now);
  if (turn_at_ > at && !may_wait) schedule(at);
}

bool Host::is_between_batches(base::TimeNs now) const {
  if (!config_.pauses_between_batches || !is_up()) return false;
  const base::TimeNs next = endpoint_->paced_until();
  const base::TimeNs local = config_.clock.local(now);
  return turn_at_ != base::kNever && next != base::kNever && next > local && next <= local + kMaxPauseNs;
}

bool Host::receive(base::TimeNs now, const Packet& packet) {
  const base::TimeNs local = config_.clock.local(now);
  if (!must_wait(now)) {
    if (std::exchange(dropped_, false)) entry()->on_control(local, core::DatagramsDropped{});
    world_.reading(rank_, local, packet.datagram(), false);
    entry()->on_datagram(local, packet.datagram(), packet.ecn, local);
    turn(now);
    return true;
  }
  if (inbox_bytes_ + packet.size > config_.socket_buffer_bytes) {
    dropped_ = true;
    return false;
  }
  inbox_bytes_ += packet.size;
  const std::span<const std::byte> bytes = packet.datagram();
  wait(now, Datagram{{bytes.begin(), bytes.end()}, packet.ecn, local, std::exchange(dropped_, false)});
  return true;
}

std::uint64_t Host::unread() const {
  return static_cast<std::uint64_t>(std::ranges::count_if(inbox_, [](const Input& input) {
    return std::holds_alternative<Datagram>(input) || std::holds_alternative<Message>(input);
  }));
}

void Host::control(base::TimeNs now, const core::PeerUp& up, std::uint64_t connection) {
  if (is_up()) wait(now, Up{up, connection});
}
void Host::control(base::TimeNs now, const core::PeerDown& down) {
  if (is_up()) wait(now, down);
}
void Host::control(base::TimeNs now, std::uint16_t from, std::span<const std::byte> message, bool of_machines) {
  if (is_up()) wait(now, Message{from, {message.begin(), message.end()}, of_machines});
}

void Host::control(base::TimeNs now, const core::PathLimit& limit) {
  if (is_up()) wait(now, limit);
}

void Host::close(base::TimeNs now) {
  if (!is_up()) return;
  entry()->on_control(config_.clock.local(now), core::Closing{});
  while (entry()->poll_control(config_.clock.local(now), *output_)) world_.message(rank_, *output_);
}

core::PostStatus Host::post(base::TimeNs now, const core::SendRequest& request) {
  const core::PostStatus status = entry()->post_send(config_.clock.local(now), request);
  wake(now);
  return status;
}

core::PostStatus Host::post(base::TimeNs now, const core::ReceiveRequest& request) {
  const core::PostStatus status = entry()->post_recv(config_.clock.local(now), request);
  wake(now);
  return status;
}

void Host::cancel(base::TimeNs now, core::OperationId operation, core::CompletionKind kind) {
  if (!is_up()) return;
  entry()->on_control(config_.clock.local(now), core::Cancel{operation, kind});
  wake(now);
}

void Host::wake(base::TimeNs now) {
  const base::TimeNs at = std::max(now, paused_until_);
  if (turn_at_ > at) schedule(at);
}

bool Host::on_turn(base::TimeNs now, std::uint32_t number) {
  if (number != event_number_ || !is_up()) return false;
  event_at_ = base::kNever;
  if (is_paused(now)) {
    schedule(paused_until_);
  } else if (now < turn_at_ && turn_at_ != base::kNever) {
    schedule(turn_at_);
  } else if (turn_at_ != base::kNever) {
    turn(now);
  }
  return true;
}

void Host::apply(base::TimeNs local, const Input& input) {
  std::visit(Overloaded{
                 [&](const Datagram& d) {
                   if (d.after_drop) entry()->on_control(local, core::DatagramsDropped{});
                   world_.reading(rank_, local, d.bytes, false);
                   entry()->on_datagram(local, d.bytes, d.ecn, d.arrival_ns);
                 },
                 [&](const Up& up) {
                   world_.coming_up(rank_, up.up);
                   entry()->on_control(local, up.up);
                   set_connection(up.up.peer, up.connection);
                 },
                 [&](const core::PeerDown& down) {
                   world_.going_down(rank_, down.peer);
                   entry()->on_control(local, down);
                   set_connection(down.peer, 0);
                   world_.went_down(rank_, down.peer);
                 },
                 [&](const core::PathLimit& limit) {
                   world_.limiting(rank_, limit);
                   entry()->on_control(local, limit);
                 },
                 [&](const Message& m) {
                   if (m.of_machines) return world_.machine_message(rank_, m.from, m.bytes);
                   world_.reading(rank_, local, m.bytes, true);
                   entry()->on_control(local, core::PeerMessage{m.from, m.bytes});
                 },
             },
             input);
}

void Host::turn(base::TimeNs now) {
  const base::TimeNs local = config_.clock.local(now);
  turn_at_ = base::kNever;
  if (!inbox_.empty()) {
    reading_.swap(inbox_);
    inbox_bytes_ = 0;
    for (const Input& input : reading_) apply(local, input);
    reading_.clear();
  }
  if (entry()->next_timeout() <= local) entry()->on_timeout(local);
  int polls = 0;
  bool nic_full = false;
  for (;;) {
    nic_full = world_.nic_backlog_bytes(rank_) > config_.nic_backlog_bytes;
    if (nic_full || !entry()->poll_transmit(local, config_.capabilities, *run_)) break;
    if (const std::string fault = run_fault(*run_, config_.capabilities, config_.endpoint.paths); !fault.empty()) {
      return world_.violation(rank_, "poll_transmit gave " + fault);
    }
    world_.transmit(rank_, *run_);
    if (++polls > kEndlessPolls) return world_.violation(rank_, "the poll_transmit loop does not end");
  }
  while (entry()->poll_control(local, *output_)) {
    if (output_->size > sizeof output_->bytes) return world_.violation(rank_, "poll_control gave too long a message");
    world_.message(rank_, *output_);
    if (++polls > kEndlessPolls) return world_.violation(rank_, "the poll_control loop does not end");
  }
  core::Completion completion;
  while (entry()->poll_completion(completion)) world_.completed(rank_, completion);
  if (!is_up()) return;
  world_.turn_ended(rank_, local);
  const base::TimeNs timeout = entry()->next_timeout();
  if (timeout <= local && !nic_full) {
    return world_.violation(rank_, "a timer is still due after it was serviced: the driver would spin");
  }
  base::TimeNs next = std::max(config_.clock.virtual_time(timeout), now + 1);
  if (nic_full) {
    const base::TimeNs drained = world_.nic_drained_ns(rank_, config_.nic_backlog_bytes / 2);
    next = std::min(timeout <= local ? base::kNever : next, std::max(drained, now + 1));
  }
  next = std::min(next, turn_at_);  // the application may have posted in the meantime
  if (next != base::kNever) schedule(next);
}

void Host::schedule(base::TimeNs at) {
  turn_at_ = at;
  if (event_at_ <= at) return;
  event_at_ = at;
  world_.schedule_turn(rank_, at, ++event_number_);
}

}  // namespace mlt::sim
