// The core alone: two endpoints in one thread, no kernel. Prints one JSON object: nanoseconds per segment for both
// sides together (joined by the memory datapath) and for send and receive apart (datagrams handed over between the
// clock's readings), heap allocations per transfer after warm-up (which must be 0), the memory of a peer that is up,
// and the size of a transfer's records.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
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
}  // namespace

// Never inlined, or the compiler takes the pair for a mismatch of new and free.
__attribute__((noinline)) void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
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

std::size_t resident_bytes() {
  unsigned long all = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%lu %lu", &all, &resident) != 2) std::abort();
  std::fclose(file);
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// Of a peer that is up; `is_used`: a receive from it was posted, and ended. Tables only take memory where they are
// used, so what they allocate says nothing.
double peer_bytes(bool is_used) {
  constexpr std::uint16_t kMany = 20'000;
  core::EndpointConfig config;
  config.peers = kMany;
  config.unknown_tags = 1;
  const std::size_t before = resident_bytes();
  core::Endpoint endpoint(config);
  const base::TimeNs now = base::kSecond;
  for (std::uint16_t peer = 1; peer < kMany; ++peer) {
    core::PeerUp up;
    up.peer = peer;
    up.local_cookie = 0xAB0000U | peer;
    up.remote_cookie = 0xAB0000U;
    up.segment_bytes = kSegmentBytes;
    up.window_bytes = 1U << 20;
    endpoint.on_control(now, up);
    if (!is_used) continue;
    core::ReceiveRequest receive;
    receive.peer = peer;
    if (endpoint.post_recv(now, receive) != core::PostStatus::kPosted) std::abort();
    endpoint.on_control(now, core::Cancel{receive.operation, core::CompletionKind::kReceive});
    core::Completion completion;
    if (!endpoint.poll_completion(completion)) std::abort();
  }
  return static_cast<double>(resident_bytes() - before) / kMany;
}

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
  std::printf(
      "{\"bytes\": %zu, \"transfers\": %d, \"segments_per_transfer\": %.0f, \"ns_per_segment\": %.1f, "
      "\"segments_per_second\": %.0f, \"gbit_per_second\": %.2f, \"allocations_per_transfer\": %.3f, "
      "\"send_ns_per_segment\": %.1f, \"receive_ns_per_segment\": %.1f, ",
      bytes, transfers, segments, median_ns / segments, segments / median_ns * 1e9,
      static_cast<double>(bytes) * 8 / median_ns, static_cast<double>(allocated) / transfers,
      static_cast<double>(split.send_ns) / transfers / segments,
      static_cast<double>(split.receive_ns) / transfers / segments);
  std::printf(
      "\"idle_peer_bytes\": %.0f, \"used_peer_bytes\": %.0f, \"send_bytes\": %zu, \"receive_bytes\": %zu, "
      "\"bitmap_formula\": \"segments / 8, up to a power of two, 64 at least; from an arena made once\"}\n",
      peer_bytes(false), peer_bytes(true), sizeof(core::SendState), sizeof(core::ReceiveState));
  return 0;
}
