// The core alone: two endpoints in one thread, no kernel. Prints one JSON object: nanoseconds per segment for both
// sides together (joined by the memory datapath) and for send and receive apart (datagrams handed over between the
// clock's readings), heap allocations per transfer after warm-up (which must be 0), and the memory of an idle peer and
// of a transfer's slots, as measured and as the formula says. Ends with 1 if the two differ by more than a twentieth.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "core/endpoint.h"
#include "io/memory_datapath.h"
#include "io/os/clock.h"

namespace {
std::atomic<std::uint64_t> allocations{0};
std::atomic<std::uint64_t> allocated_bytes{0};
}  // namespace

// Never inlined, or the compiler takes the pair for a mismatch of new and free.
__attribute__((noinline)) void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  allocated_bytes.fetch_add(size, std::memory_order_relaxed);
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace mlt;

constexpr std::uint32_t kSegmentBytes = 1'440;

// The endpoint of one of two ranks, and the other is up.
std::unique_ptr<core::Endpoint> connected(std::uint16_t rank, base::TimeNs now) {
  core::EndpointConfig config;
  config.rank = rank;
  config.peers = 2;
  // The core's own cost is measured, not its patience: nothing slows it down.
  config.timely.line_rate_bytes_per_second = config.timely.min_rate_bytes_per_second = 1e12;
  auto endpoint = std::make_unique<core::Endpoint>(config);
  core::PeerUp up;
  up.peer = static_cast<std::uint16_t>(1 - rank);
  up.local_cookie = 0xAB0000U | up.peer;
  up.remote_cookie = 0xAB0000U | rank;
  up.segment_bytes = kSegmentBytes;
  up.window_bytes = 1U << 20;
  up.early_segments = 64;
  endpoint->on_control(now, up);
  return endpoint;
}

class Side final : public io::ReceiveSink {
 public:
  Side(std::uint16_t rank, io::Datapath& datapath)
      : endpoint(connected(rank, io::monotonic_now())), datapath_(datapath) {}
  void on_run(const base::ReceivedRun& run) override {
    for (std::size_t at = 0; at < run.bytes.size(); at += run.datagram_bytes) {
      endpoint->on_datagram(
          now_, run.bytes.subspan(at, std::min<std::size_t>(run.datagram_bytes, run.bytes.size() - at)), run.ecn);
    }
  }
  // One turn of a driver; true if its operation completed.
  bool turn() {
    now_ = io::monotonic_now();
    datapath_.receive(now_, 16, *this);
    endpoint->on_timeout(now_);
    for (int i = 0; i < 8 && endpoint->poll_transmit(now_, capabilities_, run_); ++i) datapath_.send(now_, run_);
    return endpoint->poll_completion(completion);
  }

  std::unique_ptr<core::Endpoint> endpoint;
  core::Completion completion;

 private:
  io::Datapath& datapath_;
  core::TransmitCapabilities capabilities_;
  core::Transmit run_;
  base::TimeNs now_ = 0;
};

// Posts the transfer of `source` from rank 0 into `target` of rank 1; false if either refuses.
bool post(core::Endpoint& sender, core::Endpoint& receiver, base::TimeNs now, std::span<const std::byte> source,
          std::span<std::byte> target) {
  core::ReceiveRequest receive;
  receive.data = target;
  receive.element = wire::ElementType::kFloat32;
  core::SendRequest send;
  send.peer = 1;
  send.data = source;
  send.element = wire::ElementType::kFloat32;
  return receiver.post_recv(now, receive) == core::PostStatus::kPosted &&
         sender.post_send(now, send) == core::PostStatus::kPosted;
}

// What one side's calls take. Datagrams are copied from run to run outside the clock's readings.
class SplitCost {
 public:
  SplitCost() {
    for (std::uint16_t rank = 0; rank < 2; ++rank) endpoints_[rank] = connected(rank, now_);
  }

  // Adds the nanoseconds of one transfer of `source` into `target` to send_ns and receive_ns; false if it failed.
  bool transfer(std::span<const std::byte> source, std::span<std::byte> target) {
    if (!post(*endpoints_[0], *endpoints_[1], now_, source, target)) return false;
    core::Completion completion;
    for (int done = 0, turns = 0; done < 2; ++turns) {
      if (turns > 1'000'000) return false;
      now_ += base::kMicrosecond;
      hand_over(0, 1, send_ns, receive_ns);
      hand_over(1, 0, receive_ns, send_ns);
      for (auto& endpoint : endpoints_) {
        while (endpoint->poll_completion(completion)) done += core::is_failure(completion.status) ? 1'000 : 1;
      }
    }
    return true;
  }

  base::DurationNs send_ns = 0;
  base::DurationNs receive_ns = 0;

 private:
  // Up to eight runs of `from`, read by `to`.
  void hand_over(int from, int to, base::DurationNs& from_ns, base::DurationNs& to_ns) {
    for (int i = 0; i < 8; ++i) {
      const base::TimeNs start = io::monotonic_now();
      if (endpoints_[from]->next_timeout() <= now_) endpoints_[from]->on_timeout(now_);
      const bool any = endpoints_[from]->poll_transmit(now_, capabilities_, run_);
      from_ns += io::monotonic_now() - start;
      if (!any) return;
      std::size_t size = 0;
      for (std::uint32_t slice = 0; slice < run_.slice_count; ++slice) {
        std::copy_n(run_.slices[slice].data, run_.slices[slice].size,
                    wire_.begin() + static_cast<std::ptrdiff_t>(size));
        size += run_.slices[slice].size;
      }
      const std::span<const std::byte> all = std::span(wire_).first(size);
      const base::TimeNs arrived = io::monotonic_now();
      for (std::size_t at = 0; at < size; at += run_.datagram_bytes) {
        endpoints_[to]->on_datagram(now_, all.subspan(at, std::min<std::size_t>(run_.datagram_bytes, size - at)),
                                    run_.ecn);
      }
      to_ns += io::monotonic_now() - arrived;
    }
  }

  base::TimeNs now_ = base::kSecond;
  std::unique_ptr<core::Endpoint> endpoints_[2];
  core::TransmitCapabilities capabilities_;
  core::Transmit run_;
  std::vector<std::byte> wire_ = std::vector<std::byte>(base::kMaxRunBytes);
};

// Bytes that an endpoint allocates.
double endpoint_bytes(const core::EndpointConfig& config) {
  const std::uint64_t before = allocated_bytes.load();
  const core::Endpoint endpoint(config);
  return static_cast<double>(allocated_bytes.load() - before);
}

struct Memory {
  double peer = 0;
  double send = 0;
  double receive = 0;
};

// From the difference between two endpoints that differ in one number.
Memory measured_memory() {
  constexpr std::uint16_t kMore = 1'024;
  core::EndpointConfig config;
  const double plain = endpoint_bytes(config);
  core::EndpointConfig peers = config, sends = config, receives = config;
  // 256 others share the early buffer without a rest, as one does: it is the same memory, and no peer's.
  constexpr std::uint16_t kMorePeers = 255;
  static_assert(core::EndpointConfig{}.early_segments % (kMorePeers + 1) == 0);
  static_assert(core::EndpointConfig{}.early_transfers % (kMorePeers + 1) == 0);
  peers.peers = static_cast<std::uint16_t>(config.peers + kMorePeers);
  sends.max_sends += kMore;
  receives.max_receives += kMore;
  return {(endpoint_bytes(peers) - plain) / kMorePeers, (endpoint_bytes(sends) - plain) / kMore,
          (endpoint_bytes(receives) - plain) / kMore};
}

// A timer: its entry in the wheel. A slot: its state, its timer, its place in the stack of free slots and in the queue
// of completions; a send also one in the queue of aborts. Bits of the sets that find work are an eighth of a byte each.
constexpr double kTimerBytes = 24;
constexpr const char* kPeerFormula =
    "sizeof(Peer) + sizeof(PathOut) by paths + its records in the parts + timer 24 + early counts 12";
constexpr std::size_t kPaths = core::EndpointConfig{}.paths;
constexpr std::size_t kPeerRecords = kPaths * core::PathSpray::bytes_per_path() +
                                     core::AckLedger::bytes_per_peer(kPaths) + core::SendTags::bytes_per_peer() +
                                     core::ReceiveTags::bytes_per_peer() + core::EarlyDataLimit::bytes_per_peer() +
                                     core::MtuChecks::bytes_per_peer(kPaths);
constexpr const char* kSendFormula = "sizeof(SendState) + timer 24 + free 4 + completion 8 + sizeof(Reply)";
constexpr const char* kReceiveFormula = "sizeof(ReceiveState) + timer 24 + free 4 + completion 8";
Memory memory_by_formula() {
  return {sizeof(core::Peer) + kPeerRecords + kTimerBytes + 12,
          sizeof(core::SendState) + kTimerBytes + 4 + 8 + sizeof(core::Reply),
          sizeof(core::ReceiveState) + kTimerBytes + 4 + 8};
}

bool agree(double measured, double formula) { return std::abs(measured - formula) <= formula / 20; }

}  // namespace

int main(int argc, char** argv) {
  const std::size_t bytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 16U << 20;
  const int transfers = argc > 2 ? std::atoi(argv[2]) : 20;
  constexpr int kWarmUp = 3;
  io::MemoryOptions memory;
  memory.max_datagram_bytes = kSegmentBytes + MLT_DATA_HEADER_BYTES;
  io::MemoryNetwork network(memory);
  const auto to_receiver = network.endpoint(0), to_sender = network.endpoint(1);
  Side sender(0, *to_receiver), receiver(1, *to_sender);
  std::vector<std::byte> source(bytes, std::byte{3}), target(bytes);
  std::vector<base::DurationNs> times;
  times.reserve(static_cast<std::size_t>(transfers));
  std::uint64_t allocated = 0;
  for (int i = 0; i < transfers + kWarmUp; ++i) {
    std::fill(target.begin(), target.end(), std::byte{1});  // touched, and different from what must arrive
    const std::uint64_t allocations_before = allocations.load();
    const base::TimeNs start = io::monotonic_now();
    if (!post(*sender.endpoint, *receiver.endpoint, start, source, target)) {
      std::fprintf(stderr, "a post was refused\n");
      return 1;
    }
    for (int done = 0; done < 2;) done += (sender.turn() ? 1 : 0) + (receiver.turn() ? 1 : 0);
    if (i >= kWarmUp) {
      times.push_back(io::monotonic_now() - start);
      allocated += allocations.load() - allocations_before;
    }
    if (receiver.completion.status != core::CompletionStatus::kComplete || target != source) {
      std::fprintf(stderr, "transfer %d did not arrive whole\n", i);
      return 1;
    }
  }
  std::sort(times.begin(), times.end());
  const double median_ns = static_cast<double>(times[times.size() / 2]);
  const double segments = static_cast<double>((bytes - 1) / kSegmentBytes + 1);
  SplitCost split;
  for (int i = 0; i < transfers + kWarmUp; ++i) {
    if (i == kWarmUp) split.send_ns = split.receive_ns = 0;
    std::fill(target.begin(), target.end(), std::byte{1});
    if (!split.transfer(source, target) || target != source) {
      std::fprintf(stderr, "transfer %d between bare endpoints did not arrive whole\n", i);
      return 1;
    }
  }
  const Memory measured = measured_memory();
  const Memory formula = memory_by_formula();
  std::printf(
      "{\"bytes\": %zu, \"transfers\": %d, \"segments_per_transfer\": %.0f, \"ns_per_segment\": %.1f, "
      "\"segments_per_second\": %.0f, \"gbit_per_second\": %.2f, \"allocations_per_transfer\": %.3f, "
      "\"send_ns_per_segment\": %.1f, \"receive_ns_per_segment\": %.1f, ",
      bytes, transfers, segments, median_ns / segments, segments / median_ns * 1e9,
      static_cast<double>(bytes) * 8 / median_ns, static_cast<double>(allocated) / transfers,
      static_cast<double>(split.send_ns) / transfers / segments,
      static_cast<double>(split.receive_ns) / transfers / segments);
  std::printf(
      "\"idle_peer_bytes\": %.0f, \"idle_peer_formula\": \"%s\", \"idle_peer_formula_bytes\": %.0f, "
      "\"send_bytes\": %.0f, \"send_formula\": \"%s\", \"send_formula_bytes\": %.0f, "
      "\"receive_bytes\": %.0f, \"receive_formula\": \"%s\", \"receive_formula_bytes\": %.0f, "
      "\"bitmap_formula\": \"segments / 8, up to a power of two, 64 at least; from an arena made once\"}\n",
      measured.peer, kPeerFormula, formula.peer, measured.send, kSendFormula, formula.send, measured.receive,
      kReceiveFormula, formula.receive);
  return agree(measured.peer, formula.peer) && agree(measured.send, formula.send) &&
                 agree(measured.receive, formula.receive)
             ? 0
             : 1;
}
