#include "sim/transfers.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

#include "sim/refusal.h"
#include "sim/simulator.h"
#include "sim/transfer_routes.h"

namespace mlt::sim {

namespace {

constexpr std::uint64_t kEventsPerReport = 65'536;
constexpr base::DurationNs kLongestLimitNs = 100'000 * base::kSecond;
constexpr std::size_t kPatternBytes = 251;  // a prime: equal bytes do not lie at equal offsets of segments

void check_cables(const TransferSchedule& schedule) {
  const std::uint32_t nodes = schedule.hosts + schedule.switches;
  std::vector<bool> cabled(schedule.hosts);
  for (std::size_t i = 0; i < schedule.cables.size(); ++i) {
    const Cable& cable = schedule.cables[i];
    const std::string name = item("cables", i);
    const std::string node = "a node from 0 to " + std::to_string(nodes - 1);
    demand(cable.a < nodes, name + " end a", cable.a, node);
    demand(cable.b < nodes, name + " end b", cable.b, node);
    demand(cable.a != cable.b, name + " end b", cable.b, "another node than end a");
    demand(cable.rate_bytes_per_second >= 1e3 && cable.rate_bytes_per_second <= 1e12, name + " rate",
           cable.rate_bytes_per_second, "1e3 to 1e12 bytes per second");
    demand(cable.propagation_ns >= 0 && cable.propagation_ns <= base::kSecond, name + " propagation",
           cable.propagation_ns, "0 to 1e9 ns");
    if (cable.a < schedule.hosts) cabled[cable.a] = true;
    if (cable.b < schedule.hosts) cabled[cable.b] = true;
  }
  const auto lonely = std::find(cabled.begin(), cabled.end(), false);
  if (lonely == cabled.end()) return;
  refuse("cables: none leads to host " + std::to_string(lonely - cabled.begin()) + "; expected one, or fewer hosts");
}

void check_options(const TransferSchedule& schedule) {
  demand(schedule.hosts >= 2 && schedule.hosts <= kMaxScheduleHosts, "hosts", schedule.hosts,
         "2 to " + std::to_string(kMaxScheduleHosts));
  demand(schedule.switches <= 65'536, "switches", schedule.switches, "at most 65536");
  demand(schedule.paths >= 1 && schedule.paths <= MLT_MAX_PATHS, "paths", schedule.paths,
         "1 to " + std::to_string(MLT_MAX_PATHS));
  demand(schedule.segment_bytes >= 64 && schedule.segment_bytes <= 8'960 && schedule.segment_bytes % 8 == 0,
         "segment_bytes", schedule.segment_bytes, "a multiple of 8 from 64 to 8960");
  const std::uint64_t packet = schedule.segment_bytes + MLT_DATA_HEADER_BYTES + kOverheadBytes;
  demand(schedule.queue_limit_bytes >= 2 * packet, "queue_limit_bytes", schedule.queue_limit_bytes,
         "room for two packets, " + std::to_string(2 * packet));
  if (!schedule.buffers.empty() && schedule.buffers.size() != schedule.switches) {
    demand(false, "the number of buffers", schedule.buffers.size(), std::to_string(schedule.switches) + ", or none");
  }
  for (std::size_t i = 0; i < schedule.buffers.size(); ++i) {
    demand(schedule.buffers[i] >= 2 * packet, item("buffers", i), schedule.buffers[i],
           "room for two packets, " + std::to_string(2 * packet));
  }
  if (!schedule.line_rates.empty() && schedule.line_rates.size() != schedule.hosts) {
    demand(false, "the number of line_rates", schedule.line_rates.size(), std::to_string(schedule.hosts) + ", or none");
  }
  for (std::size_t i = 0; i < schedule.line_rates.size(); ++i) {
    const double rate = schedule.line_rates[i];
    demand(rate == 0 || (rate >= 1e3 && rate <= 1e12), item("line_rates", i), rate, "0, or 1e3 to 1e12");
  }
  demand(schedule.queue_threshold_bytes >= 1, "queue_threshold_bytes", schedule.queue_threshold_bytes, "at least 1");
  demand(schedule.loss >= 0 && schedule.loss <= 0.5, "loss", schedule.loss, "0 to 0.5");
  demand(schedule.loss_bound >= 0 && schedule.loss_bound < 1, "loss_bound", schedule.loss_bound, "0 to below 1");
  demand(schedule.limit_ns >= 1 && schedule.limit_ns <= kLongestLimitNs, "limit_ns", schedule.limit_ns, "1 to 1e14");
}

void check_transfers(const TransferSchedule& schedule) {
  const std::string host = "a host from 0 to " + std::to_string(schedule.hosts - 1);
  const std::size_t count = schedule.transfers.size();
  std::vector<std::uint32_t> of_host(schedule.hosts);
  for (std::size_t i = 0; i < count; ++i) {
    const ScheduledTransfer& transfer = schedule.transfers[i];
    const std::string name = item("transfers", i);
    demand(transfer.from < schedule.hosts, name + " from", transfer.from, host);
    demand(transfer.to < schedule.hosts, name + " to", transfer.to, host);
    demand(transfer.from != transfer.to, name + " to", transfer.to, "another host than its sender");
    demand(transfer.bytes >= 4 && transfer.bytes % 4 == 0 && transfer.bytes < (1ULL << 32), name + " bytes",
           transfer.bytes, "a multiple of 4 (they are 32-bit floats) from 4 to 2^32 - 4: split larger ones");
    demand(transfer.start_ns >= 0 && transfer.start_ns < schedule.limit_ns, name + " start_ns", transfer.start_ns,
           "0 to below limit_ns");
    for (std::size_t k = 0; k < transfer.after.size(); ++k) {
      const std::string place = name + " " + item("after", k);
      demand(transfer.after[k] < count && transfer.after[k] != i, place, transfer.after[k], "another transfer's index");
      demand(schedule.transfers[transfer.after[k]].to == transfer.from, place, transfer.after[k],
             "a transfer to host " + std::to_string(transfer.from) + ", which is to send when it has arrived");
    }
    if (++of_host[transfer.from] > kMaxTransfersPerHost || ++of_host[transfer.to] > kMaxTransfersPerHost) {
      refuse(name + ": more than " + std::to_string(kMaxTransfersPerHost) + " transfers of one host; expected fewer");
    }
  }
}

// Transfers that wait for each other in a cycle would never start.
void check_order(const TransferSchedule& schedule) {
  const std::size_t count = schedule.transfers.size();
  std::vector<std::uint32_t> waits(count);
  std::vector<std::vector<std::uint32_t>> then(count);
  std::vector<std::uint32_t> ready;
  for (std::uint32_t i = 0; i < count; ++i) {
    waits[i] = static_cast<std::uint32_t>(schedule.transfers[i].after.size());
    for (const std::uint32_t before : schedule.transfers[i].after) then[before].push_back(i);
    if (waits[i] == 0) ready.push_back(i);
  }
  for (std::size_t next = 0; next < ready.size(); ++next) {
    for (const std::uint32_t i : then[ready[next]]) {
      if (--waits[i] == 0) ready.push_back(i);
    }
  }
  const auto stuck = std::find_if(waits.begin(), waits.end(), [](std::uint32_t left) { return left > 0; });
  if (stuck == waits.end()) return;
  refuse(item("transfers", static_cast<std::size_t>(stuck - waits.begin())) +
         " after: it waits, through others, for itself or for such a circle; expected an order");
}

Topology topology_of(const TransferSchedule& schedule) {
  Topology topology;
  topology.hosts = static_cast<std::uint16_t>(schedule.hosts);
  topology.nodes = schedule.hosts + schedule.switches;
  topology.buffer_bytes.assign(topology.nodes, kUnlimited);
  std::copy(schedule.buffers.begin(), schedule.buffers.end(), topology.buffer_bytes.begin() + schedule.hosts);
  const PortConfig port = uniform_port({}, schedule.queue_limit_bytes, schedule.queue_threshold_bytes);
  // NICs serve control first, as switches do: a reply queued behind data would make the path look congested.
  const PortConfig nic = uniform_port({}, kUnlimited, kUnlimited);
  for (const Cable& cable : schedule.cables) {
    Link link;
    link.rate_bytes_per_second = cable.rate_bytes_per_second;
    link.propagation_ns = cable.propagation_ns;
    link.data.drop = schedule.loss;
    topology.add_cable(cable.a, cable.b, link, cable.a < schedule.hosts ? nic : port,
                       cable.b < schedule.hosts ? nic : port);
  }
  return topology;
}

std::uint64_t segments_of(const TransferSchedule& schedule, const ScheduledTransfer& transfer) {
  return (transfer.bytes + schedule.segment_bytes - 1) / schedule.segment_bytes;
}

void check_routes(const TransferSchedule& schedule, const Routes& routes) {
  for (std::size_t i = 0; i < schedule.transfers.size(); ++i) {
    const ScheduledTransfer& transfer = schedule.transfers[i];
    if (routes.hops(transfer.from, static_cast<std::uint16_t>(transfer.to)) > 0) continue;
    refuse(item("transfers", i) + ": no way leads from host " + std::to_string(transfer.from) + " to host " +
           std::to_string(transfer.to) + "; expected cables between them");
  }
}

// Capacity that one host needs, and its NIC's rate.
struct Demand {
  std::uint32_t sends = 0;
  std::uint32_t receives = 0;
  std::uint64_t bitmap_words = 0;  // in the arena's blocks: powers of two, 8 at least
  double rate_bytes_per_second = 0;
};

std::vector<Demand> demands_of(const TransferSchedule& schedule) {
  std::vector<Demand> demands(schedule.hosts);
  for (const ScheduledTransfer& transfer : schedule.transfers) {
    const std::uint64_t words = std::bit_ceil(std::max<std::uint64_t>(segments_of(schedule, transfer) / 64 + 1, 8));
    ++demands[transfer.from].sends;
    ++demands[transfer.to].receives;
    demands[transfer.from].bitmap_words += words;
    demands[transfer.to].bitmap_words += words;
  }
  for (const Cable& cable : schedule.cables) {
    for (const std::uint32_t end : {cable.a, cable.b}) {
      if (end >= schedule.hosts) continue;
      double& rate = demands[end].rate_bytes_per_second;
      rate = std::max(rate, cable.rate_bytes_per_second);
    }
  }
  for (std::size_t host = 0; host < schedule.line_rates.size(); ++host) {
    if (schedule.line_rates[host] > 0) demands[host].rate_bytes_per_second = schedule.line_rates[host];
  }
  return demands;
}

SimulatorConfig simulator_config(const TransferSchedule& schedule) {
  SimulatorConfig config;
  config.seed = schedule.seed;
  config.segment_bytes = schedule.segment_bytes;
  core::EndpointConfig& endpoint = config.host.endpoint;
  endpoint.paths = static_cast<std::uint8_t>(schedule.paths);
  endpoint.early_segments = 1'024;
  endpoint.operation_timeout_ns = 2 * schedule.limit_ns;  // so that the time limit applies first
  endpoint.timely.packet_bytes = schedule.segment_bytes + MLT_DATA_HEADER_BYTES + kOverheadBytes;
  config.adjust = [demands = demands_of(schedule)](std::uint16_t rank, HostConfig& host) {
    const Demand& d = demands[rank];
    host.endpoint.max_sends = std::max(d.sends, 1U);
    host.endpoint.max_receives = std::max(d.receives, 1U);
    host.endpoint.max_tags = 2 * (d.sends + d.receives) + 16;
    host.endpoint.bitmap_words =
        static_cast<std::uint32_t>(std::clamp<std::uint64_t>(2 * d.bitmap_words, 1'024, 1U << 26));
    if (d.rate_bytes_per_second > 0) host.endpoint.timely.line_rate_bytes_per_second = d.rate_bytes_per_second;
  };
  return config;
}

class TransferRun {
 public:
  TransferRun(const TransferSchedule& schedule, const Topology& topology)
      : schedule_(schedule),
        simulator_(simulator_config(schedule), topology),
        waits_(schedule.transfers.size()),
        then_(schedule.transfers.size()),
        targets_(schedule.transfers.size()) {
    times_.finish_ns.assign(schedule.transfers.size(), -1);
    std::uint64_t longest = 0;
    for (const ScheduledTransfer& transfer : schedule.transfers) longest = std::max(longest, transfer.bytes);
    source_.resize(longest);
    scratch_.resize(longest);
    for (std::size_t i = 0; i < source_.size(); ++i) source_[i] = static_cast<std::byte>(1 + i % kPatternBytes);
    simulator_.on_completion = [this](std::uint16_t rank, const core::Completion& c) { completed(rank, c); };
  }

  TransferTimes run(const std::function<void(std::uint64_t)>& progress) {
    for (const ScheduledTransfer& transfer : schedule_.transfers) {
      simulator_.connect(static_cast<std::uint16_t>(transfer.from), static_cast<std::uint16_t>(transfer.to));
    }
    simulator_.run_for(base::kMillisecond);  // past the first exchanges of the new connections
    start_ = simulator_.now();
    const std::uint64_t hops = simulator_.network().hops();
    const std::uint64_t events = simulator_.events();
    post_receives();
    post_first_sends();
    const base::TimeNs until = start_ + schedule_.limit_ns;
    while (arrived_ < schedule_.transfers.size() && failure_.empty() && simulator_.step(until)) {
      if (progress && simulator_.events() % kEventsPerReport == 0) progress(arrived_);
    }
    check_end();
    const Ledger& ledger = simulator_.network().ledger();
    times_.data_packets = ledger.of(Fate::k_sent, true).packets;
    times_.drops = ledger.dropped(false).packets + ledger.dropped(true).packets;
    times_.hops = simulator_.network().hops() - hops;
    times_.events = simulator_.events() - events;
    times_.digest = simulator_.digest();
    return std::move(times_);
  }

 private:
  struct Target {
    TransferRun* run = nullptr;
    std::uint32_t transfer = 0;
  };

  static void place(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload) {
    const Target& target = *static_cast<const Target*>(context);
    TransferRun& run = *target.run;
    if (std::memcmp(run.source_.data() + offset_bytes, payload.data(), payload.size()) != 0) {
      run.fail(target.transfer, "its bytes did not arrive as they were sent");
    }
  }

  void post_receives() {
    for (std::uint32_t i = 0; i < schedule_.transfers.size(); ++i) {
      const ScheduledTransfer& transfer = schedule_.transfers[i];
      targets_[i] = {this, i};
      core::ReceiveRequest request;
      request.operation = i;
      request.peer = static_cast<std::uint16_t>(transfer.from);
      request.tag = i;
      request.data = std::span(scratch_).first(transfer.bytes);
      request.element = wire::ElementType::kFloat32;
      request.loss_bound = schedule_.loss_bound;
      request.place = &place;
      request.place_context = &targets_[i];
      const core::PostStatus status = simulator_.receive(static_cast<std::uint16_t>(transfer.to), request);
      if (status != core::PostStatus::kPosted) refused(i, "receive", status);
    }
  }

  void post_first_sends() {
    for (std::uint32_t i = 0; i < schedule_.transfers.size(); ++i) {
      const ScheduledTransfer& transfer = schedule_.transfers[i];
      waits_[i] = static_cast<std::uint32_t>(transfer.after.size());
      for (const std::uint32_t before : transfer.after) then_[before].push_back(i);
      if (waits_[i] == 0) start(i);
    }
  }

  // All its dependencies have arrived.
  void start(std::uint32_t i) {
    const base::TimeNs at = start_ + schedule_.transfers[i].start_ns;
    if (at <= simulator_.now()) return send(i);
    simulator_.at(at, [this, i] { send(i); });
  }

  void send(std::uint32_t i) {
    const ScheduledTransfer& transfer = schedule_.transfers[i];
    core::SendRequest request;
    request.operation = i;
    request.peer = static_cast<std::uint16_t>(transfer.to);
    request.tag = i;
    request.data = std::span(source_).first(transfer.bytes);
    request.element = wire::ElementType::kFloat32;
    request.order = i;
    const core::PostStatus status = simulator_.send(static_cast<std::uint16_t>(transfer.from), request);
    if (status != core::PostStatus::kPosted) refused(i, "send", status);
  }

  void completed(std::uint16_t rank, const core::Completion& completion) {
    (void)rank;
    const auto i = static_cast<std::uint32_t>(completion.operation);
    if (core::is_failure(completion.status)) {
      return fail(i, "the protocol gave it up, status " + std::to_string(static_cast<int>(completion.status)));
    }
    if (completion.kind == core::CompletionKind::kSend) return;
    times_.finish_ns[i] = simulator_.now() - start_;
    ++arrived_;
    for (const std::uint32_t next : then_[i]) {
      if (--waits_[next] == 0) start(next);
    }
  }

  void refused(std::uint32_t i, const char* what, core::PostStatus status) {
    fail(i, std::string("its ") + what + " was refused, status " + std::to_string(static_cast<int>(status)));
  }

  void fail(std::uint32_t i, const std::string& why) {
    if (failure_.empty()) failure_ = item("transfers", i) + ": " + why;
  }

  void check_end() const {
    if (!failure_.empty()) throw std::runtime_error(failure_);
    if (!simulator_.fault().empty()) throw std::runtime_error("the simulated endpoints: " + simulator_.fault());
    if (arrived_ == schedule_.transfers.size()) return;
    const auto open = std::find(times_.finish_ns.begin(), times_.finish_ns.end(), -1);
    throw std::runtime_error(item("transfers", static_cast<std::size_t>(open - times_.finish_ns.begin())) +
                             " has not arrived after limit_ns = " + std::to_string(schedule_.limit_ns) + ", nor have " +
                             std::to_string(schedule_.transfers.size() - arrived_ - 1) +
                             " others; raise limit_ns or schedule less");
  }

  const TransferSchedule& schedule_;
  Simulator simulator_;
  std::vector<std::uint32_t> waits_;
  std::vector<std::vector<std::uint32_t>> then_;
  std::vector<Target> targets_;
  std::vector<std::byte> source_;   // every transfer sends a prefix of it
  std::vector<std::byte> scratch_;  // receivers compare only
  TransferTimes times_;
  std::uint64_t arrived_ = 0;
  base::TimeNs start_ = 0;
  std::string failure_;
};

void check(const TransferSchedule& schedule) {
  check_options(schedule);
  check_cables(schedule);
  check_transfers(schedule);
  check_order(schedule);
}

}  // namespace

TransferTimes run_transfers(const TransferSchedule& schedule, const std::function<void(std::uint64_t)>& progress) {
  check(schedule);
  Topology topology = topology_of(schedule);
  topology.planned = planned_routes(schedule, topology);
  check_routes(schedule, Routes(topology));
  return TransferRun(schedule, topology).run(progress);
}

}  // namespace mlt::sim
