// The core alone: two endpoints joined by the memory datapath in one thread, no kernel. Prints one JSON object:
// nanoseconds per segment for both sides together, and heap allocations per transfer after warm-up (which must be 0).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "core/endpoint.h"
#include "io/clock.h"
#include "io/memory_datapath.h"

namespace {
std::atomic<std::uint64_t> allocations{0};
}

void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace mlt;

constexpr std::uint32_t kSegmentBytes = 1'440;

class Side final : public io::ReceiveSink {
 public:
  Side(std::uint16_t rank, io::Datapath& datapath) : datapath_(datapath) {
    core::EndpointConfig config;
    config.rank = rank;
    config.peers = 2;
    config.timely.line_rate_bytes_per_second = 1e12;  // the core's own cost is measured, not its patience
    endpoint = std::make_unique<core::Endpoint>(config);
    core::PeerUp up;
    up.peer = static_cast<std::uint16_t>(1 - rank);
    up.local_cookie = 0xAB0000U | up.peer;
    up.remote_cookie = 0xAB0000U | rank;
    up.segment_bytes = kSegmentBytes;
    up.window_bytes = 1U << 20;
    up.early_segments = 64;
    endpoint->on_control(io::monotonic_now(), up);
  }
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
    core::ReceiveRequest receive;
    receive.data = target;
    receive.element = wire::ElementType::kFloat32;
    core::SendRequest send;
    send.peer = 1;
    send.data = source;
    send.element = wire::ElementType::kFloat32;
    if (receiver.endpoint->post_recv(start, receive) != core::PostStatus::kPosted ||
        sender.endpoint->post_send(start, send) != core::PostStatus::kPosted) {
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
  std::printf(
      "{\"bytes\": %zu, \"transfers\": %d, \"segments_per_transfer\": %.0f, \"ns_per_segment\": %.1f, "
      "\"segments_per_second\": %.0f, \"gbit_per_second\": %.2f, \"allocations_per_transfer\": %.3f}\n",
      bytes, transfers, segments, median_ns / segments, segments / median_ns * 1e9,
      static_cast<double>(bytes) * 8 / median_ns, static_cast<double>(allocated) / transfers);
}
