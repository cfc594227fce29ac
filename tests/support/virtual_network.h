// Joins production core::Endpoints under virtual time: links with delay, rate and seeded faults, a control connection,
// host pauses. It drives exactly the nine entry points, the way a driver must, and checks after each turn what every
// driver relies on: no timer is left due, runs obey the GSO rules, nothing is written outside a buffer.
//
// Deterministic: the same configuration, seed and calls give the same events. Absent on purpose: switches, queues with
// priorities, topologies; those are the simulator's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "base/prng.h"
#include "core/endpoint.h"

namespace mlt::test {

using base::DurationNs;
using base::TimeNs;

// Bytes between two canaries.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(std::size_t size, std::byte fill = std::byte{0xA5});
  std::span<std::byte> bytes() { return std::span(storage_).subspan(kGuard, storage_.size() - 2 * kGuard); }
  std::span<const std::byte> bytes() const { return std::span(storage_).subspan(kGuard, storage_.size() - 2 * kGuard); }
  bool intact() const;

 private:
  static constexpr std::size_t kGuard = 64;
  std::vector<std::byte> storage_;
};

// `size` bytes that differ from place to place and from seed to seed; never zero, so that a zero-filled gap shows.
std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed);

struct Faults {
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;  // delayed by up to `reorder_ns` more
  double corrupt = 0;  // one to three bits flipped anywhere
};

// One direction between two hosts. May be changed at any time.
struct Link {
  DurationNs delay_ns = 10 * base::kMicrosecond;
  double rate_bytes_per_second = 1.25e9;
  std::array<DurationNs, MLT_MAX_PATHS> path_delay_ns{};  // added to delay_ns
  std::array<double, MLT_MAX_PATHS> path_data_drop{};     // beside data.drop: a gray path
  std::array<double, MLT_MAX_PATHS> path_control_drop{};  // beside control.drop
  DurationNs reorder_ns = 100 * base::kMicrosecond;
  std::uint64_t queue_bytes = ~std::uint64_t{0};       // of data; tail drop beyond
  std::uint64_t mark_above_bytes = ~std::uint64_t{0};  // CE mark for ECN-capable data that finds more than this queued
  Faults data;
  Faults control;
  DurationNs control_connection_ns = 100 * base::kMicrosecond;
  bool control_connection_up = true;  // false: messages over it vanish (a stalled TCP connection)
};

struct NetworkConfig {
  std::uint64_t seed = 1;
  std::uint16_t hosts = 2;
  core::EndpointConfig endpoint;  // rank and peers are set per host
  std::uint32_t segment_bytes = 1'432;
  std::uint32_t window_bytes = 4U << 20;
  // What senders are told; default: what the endpoint's configuration says.
  std::optional<std::uint32_t> early_segments;
  std::optional<std::uint32_t> early_transfers;
  core::TransmitCapabilities capabilities;
  Link link;
  // Between an arrival and the host's next turn: it then finds a batch, as a thread does that must first be woken.
  DurationNs wake_up_ns = 0;
  TimeNs start_ns = 1'000'000'000;
  bool connect_all = true;
};

// A completion with its own copy of the bitmap.
struct Completed : core::Completion {
  std::vector<std::uint64_t> bitmap;
  TimeNs at_ns = 0;
  bool arrived(std::uint32_t segment) const {
    return bitmap.empty() || ((bitmap[segment / 64] >> (segment % 64)) & 1U) != 0;
  }
};

// A datagram on its way, as hooks see it.
struct Flight {
  std::uint16_t from = 0;
  std::uint16_t to = 0;
  std::uint8_t path = 0;
  std::uint8_t dscp = 0;
  base::Ecn ecn = base::Ecn::kNotEct;
  wire::PacketType type = wire::PacketType::kData;
  bool by_control_connection = false;
  std::vector<std::byte> bytes;
};

class VirtualNetwork {
 public:
  explicit VirtualNetwork(const NetworkConfig& config);
  ~VirtualNetwork();
  VirtualNetwork(const VirtualNetwork&) = delete;
  VirtualNetwork& operator=(const VirtualNetwork&) = delete;

  TimeNs now() const { return now_; }
  std::uint64_t seed() const { return config_.seed; }
  core::Endpoint& endpoint(std::uint16_t host) { return *hosts_[host].endpoint; }
  Link& link(std::uint16_t from, std::uint16_t to) { return links_[from * hosts_.size() + to].link; }
  void every_link(const std::function<void(Link&)>& change);

  // Both sides learn of the connection now, with new cookies; of its end likewise.
  void connect(std::uint16_t a, std::uint16_t b);
  void disconnect(std::uint16_t a, std::uint16_t b);
  std::uint64_t cookie(std::uint16_t from, std::uint16_t to) const { return cookies_.at({from, to}); }
  // The host reads, sends and wakes again only at `until`; what arrives meanwhile waits (or is dropped beyond
  // `buffer`).
  void pause(std::uint16_t host, TimeNs until, std::size_t buffer_datagrams = ~std::size_t{0});

  // Post at once, then let the host send. The result is the post's.
  core::PostStatus send(std::uint16_t host, const core::SendRequest& request);
  core::PostStatus receive(std::uint16_t host, const core::ReceiveRequest& request);
  void cancel(std::uint16_t host, core::OperationId operation, core::CompletionKind kind);
  // The host takes a turn now, as it would after any event.
  void wake(std::uint16_t host);
  // Tells `host` that packets with a longer payload do not get to `peer`, as a driver does that the system told.
  void limit_path(std::uint16_t host, std::uint16_t peer, std::uint32_t payload_bytes);
  // Runs `action` at `at`, before whatever else happens then.
  void at(TimeNs when, std::function<void()> action);
  // Hands a datagram to `to` as if the network had carried it, now.
  void inject(std::uint16_t to, std::span<const std::byte> bytes, base::Ecn ecn = base::Ecn::kNotEct);

  // The same over the control connection from `from`.
  void message(std::uint16_t to, std::uint16_t from, std::span<const std::byte> bytes);

  void run_for(DurationNs duration);
  // Until `host` has completed `count` operations or `limit` has passed; true if it has.
  bool run_until_completed(std::uint16_t host, std::size_t count, DurationNs limit = 10 * base::kSecond);
  bool run_until(const std::function<bool()>& condition, DurationNs limit = 10 * base::kSecond);

  const std::vector<Completed>& completed(std::uint16_t host) const { return hosts_[host].completed; }
  const Completed* find(std::uint16_t host, core::OperationId operation, core::CompletionKind kind) const;
  std::uint64_t counter(std::uint16_t host, core::Counter which) const {
    return hosts_[host].endpoint->counters().value(which);
  }

  // Hooks; all optional. `drop_if` decides before the random faults do.
  std::function<bool(const Flight&)> drop_if;
  std::function<void(std::uint16_t from, const core::Transmit&)> on_run;
  std::function<void(std::uint16_t to, const Flight&)> on_delivery;
  // Wraps every call into an endpoint (counting allocations, for example).
  std::function<void()> before_entry;
  std::function<void()> after_entry;

 private:
  struct Host {
    std::unique_ptr<core::Endpoint> endpoint;
    std::unique_ptr<core::Transmit> run;
    std::unique_ptr<core::ControlOutput> control;
    std::vector<Completed> completed;
    TimeNs paused_until = 0;
    std::size_t pause_buffer = 0;
    std::size_t waiting = 0;
    TimeNs wake_at = base::kNever;
    bool turn_scheduled = false;
  };
  struct LinkState {
    Link link;
    TimeNs data_busy_until = 0;
    TimeNs control_busy_until = 0;
  };
  struct Event {
    TimeNs at = 0;
    std::uint64_t number = 0;
    std::uint16_t host = 0;
    std::shared_ptr<Flight> flight;  // a delivery
    std::function<void()> action;    // or an action; else a wake-up
    bool counted_in_pause = false;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const { return a.at != b.at ? a.at > b.at : a.number > b.number; }
  };

  template <typename Call>
  auto enter(Call&& call);
  void schedule(Event event);
  void turn(std::uint16_t host);
  void take_run(std::uint16_t from, const core::Transmit& run);
  void check_run(const core::Transmit& run) const;
  void carry(Flight flight);
  void dispatch(Event& event);
  bool step(TimeNs until);
  bool is_of_data_class(const Flight& flight) const;
  Faults faults_of(const Link& link, const Flight& flight) const;

  NetworkConfig config_;
  base::Prng prng_;
  TimeNs now_;
  std::uint64_t events_ = 0;
  std::uint64_t next_cookie_ = 1;
  std::vector<Host> hosts_;
  std::vector<LinkState> links_;
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::uint64_t> cookies_;
  std::priority_queue<Event, std::vector<Event>, Later> heap_;
};

}  // namespace mlt::test
