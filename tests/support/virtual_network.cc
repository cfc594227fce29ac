#include "support/virtual_network.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace mlt::test {

namespace {

constexpr std::byte kCanary{0xC7};
// More turns of one poll loop than any driver would see in one wake-up: an endpoint that never runs dry.
constexpr int kEndlessPolls = 200'000;

}  // namespace

GuardedBuffer::GuardedBuffer(std::size_t size, std::byte fill) : storage_(size + 2 * kGuard, kCanary) {
  std::fill(bytes().begin(), bytes().end(), fill);
}

bool GuardedBuffer::intact() const {
  const auto is_canary = [](std::byte b) { return b == kCanary; };
  return std::all_of(storage_.begin(), storage_.begin() + kGuard, is_canary) &&
         std::all_of(storage_.end() - kGuard, storage_.end(), is_canary);
}

std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed) {
  base::Prng prng(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(1 + prng.below(255));
  return bytes;
}

VirtualNetwork::VirtualNetwork(const NetworkConfig& config)
    : config_(config), prng_(config.seed), now_(config.start_ns), hosts_(config.hosts) {
  links_.resize(std::size_t{config.hosts} * config.hosts);
  for (LinkState& state : links_) state.link = config.link;
  for (std::uint16_t rank = 0; rank < config.hosts; ++rank) {
    core::EndpointConfig endpoint = config.endpoint;
    endpoint.rank = rank;
    endpoint.peers = config.hosts;
    endpoint.max_segment_bytes = config.segment_bytes;  // early buffers of the size that is used
    hosts_[rank].endpoint = std::make_unique<core::Endpoint>(endpoint);
    hosts_[rank].run = std::make_unique<core::Transmit>();
    hosts_[rank].control = std::make_unique<core::ControlOutput>();
  }
  if (!config.connect_all) return;
  for (std::uint16_t a = 0; a < config.hosts; ++a) {
    for (std::uint16_t b = 0; b < a; ++b) connect(b, a);
  }
}

VirtualNetwork::~VirtualNetwork() = default;

void VirtualNetwork::every_link(const std::function<void(Link&)>& change) {
  for (LinkState& state : links_) change(state.link);
}

template <typename Call>
auto VirtualNetwork::enter(Call&& call) {
  if (before_entry) before_entry();
  if constexpr (std::is_void_v<decltype(call())>) {
    call();
    if (after_entry) after_entry();
  } else {
    auto result = call();
    if (after_entry) after_entry();
    return result;
  }
}

void VirtualNetwork::connect(std::uint16_t a, std::uint16_t b) {
  // The low 16 bits of a cookie name the sender.
  cookies_[{a, b}] = (prng_.next() << 20 ^ next_cookie_++ << 16 ^ 0) & ~std::uint64_t{0xFFFF};
  cookies_[{a, b}] |= a;
  cookies_[{b, a}] = (prng_.next() << 20 ^ next_cookie_++ << 16) & ~std::uint64_t{0xFFFF};
  cookies_[{b, a}] |= b;
  for (const auto& [self, other] : {std::pair{a, b}, std::pair{b, a}}) {
    core::PeerUp up;
    up.peer = other;
    up.local_cookie = cookies_[{other, self}];
    up.remote_cookie = cookies_[{self, other}];
    up.segment_bytes = config_.segment_bytes;
    up.window_bytes = config_.window_bytes;
    up.early_transfers = config_.early_transfers.value_or(hosts_[other].endpoint->config().early_transfers_per_peer());
    up.early_segments = config_.early_segments.value_or(hosts_[other].endpoint->config().early_segments_per_peer());
    enter([&, &endpoint = *hosts_[self].endpoint] { endpoint.on_control(now_, up); });
  }
  turn(a);
  turn(b);
}

void VirtualNetwork::disconnect(std::uint16_t a, std::uint16_t b) {
  enter([&] { hosts_[a].endpoint->on_control(now_, core::PeerDown{b}); });
  enter([&] { hosts_[b].endpoint->on_control(now_, core::PeerDown{a}); });
  turn(a);
  turn(b);
}

void VirtualNetwork::pause(std::uint16_t host, TimeNs until, std::size_t buffer_datagrams) {
  hosts_[host].paused_until = until;
  hosts_[host].pause_buffer = buffer_datagrams;
  hosts_[host].waiting = 0;
  at(until, [this, host] { turn(host); });
}

core::PostStatus VirtualNetwork::send(std::uint16_t host, const core::SendRequest& request) {
  const auto status = enter([&] { return hosts_[host].endpoint->post_send(now_, request); });
  turn(host);
  return status;
}

core::PostStatus VirtualNetwork::receive(std::uint16_t host, const core::ReceiveRequest& request) {
  const auto status = enter([&] { return hosts_[host].endpoint->post_recv(now_, request); });
  turn(host);
  return status;
}

void VirtualNetwork::cancel(std::uint16_t host, core::OperationId operation, core::CompletionKind kind) {
  enter([&] { hosts_[host].endpoint->on_control(now_, core::Cancel{operation, kind}); });
  turn(host);
}

void VirtualNetwork::wake(std::uint16_t host) { turn(host); }

void VirtualNetwork::limit_path(std::uint16_t host, std::uint16_t peer, std::uint32_t payload_bytes) {
  enter([&] { hosts_[host].endpoint->on_control(now_, core::PathLimit{peer, payload_bytes}); });
  turn(host);
}

void VirtualNetwork::at(TimeNs when, std::function<void()> action) {
  schedule({std::max(when, now_), 0, 0, nullptr, std::move(action), false});
}

void VirtualNetwork::inject(std::uint16_t to, std::span<const std::byte> bytes, base::Ecn ecn) {
  enter([&] { hosts_[to].endpoint->on_datagram(now_, bytes, ecn); });
  turn(to);
}

void VirtualNetwork::message(std::uint16_t to, std::uint16_t from, std::span<const std::byte> bytes) {
  enter([&] { hosts_[to].endpoint->on_control(now_, core::PeerMessage{from, bytes}); });
  turn(to);
}

void VirtualNetwork::schedule(Event event) {
  event.number = events_++;
  heap_.push(std::move(event));
}

// What a driver does after every wake-up: timers, everything there is to send, messages, completions; then sleep.
void VirtualNetwork::turn(std::uint16_t rank) {
  Host& host = hosts_[rank];
  if (now_ < host.paused_until) return;
  core::Endpoint& endpoint = *host.endpoint;
  if (enter([&] { return endpoint.next_timeout(); }) <= now_) enter([&] { endpoint.on_timeout(now_); });
  int polls = 0;
  while (enter([&] { return endpoint.poll_transmit(now_, config_.capabilities, *host.run); })) {
    take_run(rank, *host.run);
    REQUIRE_MESSAGE(++polls < kEndlessPolls, "poll_transmit never runs dry, seed " << config_.seed);
  }
  while (enter([&] { return endpoint.poll_control(now_, *host.control); })) {
    REQUIRE(host.control->size <= sizeof host.control->bytes);
    Flight flight;
    flight.from = rank;
    flight.to = host.control->peer;
    flight.by_control_connection = true;
    flight.bytes.assign(host.control->bytes, host.control->bytes + host.control->size);
    wire::Prefix prefix;
    REQUIRE(wire::decode_prefix(flight.bytes, prefix) == wire::DropReason::kNone);
    flight.type = prefix.type;
    carry(std::move(flight));
    REQUIRE_MESSAGE(++polls < kEndlessPolls, "poll_control never runs dry, seed " << config_.seed);
  }
  core::Completion completion;
  while (enter([&] { return endpoint.poll_completion(completion); })) {
    Completed done;
    static_cast<core::Completion&>(done) = completion;
    done.bitmap.assign(completion.received_bitmap.begin(), completion.received_bitmap.end());
    done.received_bitmap = {};
    done.at_ns = now_;
    host.completed.push_back(std::move(done));
  }
  const TimeNs next = enter([&] { return endpoint.next_timeout(); });
  REQUIRE_MESSAGE(next > now_, "a timer is still due after it was serviced: the driver would spin; host "
                                   << rank << ", at " << now_ << ", next " << next << ", seed " << config_.seed);
  if (next != host.wake_at) {
    host.wake_at = next;
    if (next != base::kNever) schedule({next, 0, rank, nullptr, nullptr, false});
  }
}

// The rules of a run (base/datagram.h): what any datapath may rely on.
void VirtualNetwork::check_run(const core::Transmit& run) const {
  REQUIRE(run.datagram_count >= 1);
  REQUIRE(run.datagram_count <= std::max<std::uint32_t>(1, config_.capabilities.max_run_segments));
  REQUIRE(run.datagram_count <= base::kMaxRunSegments);
  REQUIRE(run.path < hosts_[0].endpoint->config().paths);
  REQUIRE(run.dscp < 64);
  if (run.datagram_count > 1) REQUIRE(run.total_bytes <= config_.capabilities.max_run_bytes);
  std::size_t total = 0;
  for (std::uint32_t i = 0; i < run.slice_count; ++i) {
    REQUIRE(run.slices[i].size > 0);
    total += run.slices[i].size;
  }
  REQUIRE(total == run.total_bytes);
  REQUIRE(run.total_bytes <= std::uint64_t{run.datagram_count} * run.datagram_bytes);
  REQUIRE(run.total_bytes > std::uint64_t{run.datagram_count - 1} * run.datagram_bytes);
}

void VirtualNetwork::take_run(std::uint16_t from, const core::Transmit& run) {
  check_run(run);
  if (on_run) on_run(from, run);
  std::vector<std::byte> all;
  all.reserve(run.total_bytes);
  std::uint32_t slice = 0;
  for (std::uint32_t i = 0; i < run.datagram_count; ++i) {
    const std::size_t size =
        i + 1 < run.datagram_count ? run.datagram_bytes : run.total_bytes - std::size_t{i} * run.datagram_bytes;
    Flight flight;
    flight.from = from;
    flight.to = run.peer;
    flight.path = run.path;
    flight.dscp = run.dscp;
    flight.ecn = run.ecn;
    // A datagram is one or two whole slices.
    for (const std::uint32_t first = slice; flight.bytes.size() < size; ++slice) {
      REQUIRE(slice < run.slice_count);
      REQUIRE(slice - first < 2);
      const base::Slice& s = run.slices[slice];
      flight.bytes.insert(flight.bytes.end(), s.data, s.data + s.size);
    }
    REQUIRE(flight.bytes.size() == size);
    wire::Prefix prefix;
    REQUIRE(wire::decode_prefix(flight.bytes, prefix) == wire::DropReason::kNone);
    REQUIRE(prefix.cookie == cookies_.at({from, run.peer}));
    flight.type = prefix.type;
    carry(std::move(flight));
  }
  REQUIRE(slice == run.slice_count);
}

Faults VirtualNetwork::faults_of(const Link& link, const Flight& flight) const {
  if (flight.by_control_connection) return {};
  return is_of_data_class(flight) ? link.data : link.control;
}

// Trailing probes stand in the data's queue, and share its fate.
bool VirtualNetwork::is_of_data_class(const Flight& flight) const {
  return flight.dscp != config_.endpoint.dscp.control;
}

void VirtualNetwork::carry(Flight flight) {
  LinkState& state = links_[flight.from * hosts_.size() + flight.to];
  const Link& link = state.link;
  if (drop_if && drop_if(flight)) return;
  TimeNs arrival = 0;
  if (flight.by_control_connection) {
    if (!link.control_connection_up) return;
    arrival = now_ + link.control_connection_ns;
  } else {
    const bool is_data = is_of_data_class(flight);
    TimeNs& busy_until = is_data ? state.data_busy_until : state.control_busy_until;
    const TimeNs starts = std::max(now_, busy_until);
    const auto queued =
        static_cast<std::uint64_t>(static_cast<double>(starts - now_) * 1e-9 * link.rate_bytes_per_second);
    if (is_data && queued + flight.bytes.size() > link.queue_bytes) return;
    if (is_data && queued > link.mark_above_bytes && flight.ecn == base::Ecn::kEct0) flight.ecn = base::Ecn::kCe;
    busy_until = starts + base::serialisation_ns(flight.bytes.size(), link.rate_bytes_per_second);
    arrival = busy_until + link.delay_ns + link.path_delay_ns[flight.path];
  }
  const Faults faults = faults_of(link, flight);
  if (prng_.chance(faults.drop)) return;
  if (!flight.by_control_connection) {
    const auto& path_drop = is_of_data_class(flight) ? link.path_data_drop : link.path_control_drop;
    if (path_drop[flight.path] > 0 && prng_.chance(path_drop[flight.path])) return;
  }
  const int copies = prng_.chance(faults.duplicate) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    auto sent = std::make_shared<Flight>(flight);
    if (prng_.chance(faults.corrupt)) {
      for (std::uint64_t flips = 1 + prng_.below(3); flips > 0; --flips) {
        sent->bytes[prng_.below(sent->bytes.size())] ^= static_cast<std::byte>(1U << prng_.below(8));
      }
    }
    const auto reorder = static_cast<std::uint64_t>(link.reorder_ns);
    const TimeNs late = prng_.chance(faults.reorder) ? static_cast<TimeNs>(prng_.below(reorder)) : 0;
    const TimeNs again = copy == 0 ? 0 : static_cast<TimeNs>(prng_.below(reorder));
    schedule({arrival + late + again, 0, flight.to, std::move(sent), nullptr, false});
  }
}

void VirtualNetwork::dispatch(Event& event) {
  if (event.action) return event.action();
  Host& host = hosts_[event.host];
  if (now_ < host.paused_until) {
    if (!event.flight) {  // pause() wakes it
      host.wake_at = base::kNever;
      return;
    }
    if (!event.counted_in_pause && !event.flight->by_control_connection && ++host.waiting > host.pause_buffer) return;
    event.counted_in_pause = true;
    event.at = host.paused_until;
    schedule(std::move(event));
    return;
  }
  if (event.flight) {
    Flight& flight = *event.flight;
    if (on_delivery) on_delivery(event.host, flight);
    if (flight.by_control_connection) {
      core::PeerMessage message{flight.from, flight.bytes};
      enter([&] { host.endpoint->on_control(now_, message); });
    } else {
      enter([&] { host.endpoint->on_datagram(now_, flight.bytes, flight.ecn); });
    }
  } else {
    // A timer that was moved must not wake the host: a driver sleeps until next_timeout() and not a moment less.
    if (host.wake_at != event.at) return;
    host.wake_at = base::kNever;
  }
  if (config_.wake_up_ns == 0) return turn(event.host);
  if (host.turn_scheduled) return;
  host.turn_scheduled = true;
  at(now_ + config_.wake_up_ns, [this, rank = event.host] {
    hosts_[rank].turn_scheduled = false;
    turn(rank);
  });
}

bool VirtualNetwork::step(TimeNs until) {
  if (heap_.empty() || heap_.top().at > until) {
    now_ = until;
    return false;
  }
  Event event = heap_.top();
  heap_.pop();
  now_ = event.at;
  dispatch(event);
  return true;
}

void VirtualNetwork::run_for(DurationNs duration) {
  const TimeNs until = now_ + duration;
  while (step(until)) {
  }
}

bool VirtualNetwork::run_until(const std::function<bool()>& condition, DurationNs limit) {
  const TimeNs until = now_ + limit;
  while (!condition()) {
    if (!step(until)) return condition();
  }
  return true;
}

bool VirtualNetwork::run_until_completed(std::uint16_t host, std::size_t count, DurationNs limit) {
  return run_until([&] { return hosts_[host].completed.size() >= count; }, limit);
}

const Completed* VirtualNetwork::find(std::uint16_t host, core::OperationId operation,
                                      core::CompletionKind kind) const {
  for (const Completed& done : hosts_[host].completed) {
    if (done.operation == operation && done.kind == kind) return &done;
  }
  return nullptr;
}

}  // namespace mlt::test
