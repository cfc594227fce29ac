// Transfers that follow one another for as long as a scenario lasts, on the oracle's account.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/oracle.h"
#include "sim/simulator.h"
#include "support/small_tables.h"

namespace mlt::test {

inline sim::Fabric fabric(double bytes_per_second, std::uint64_t limit_bytes = sim::kUnlimited,
                          std::uint64_t threshold_bytes = sim::kUnlimited) {
  sim::Fabric made;
  made.host_link.rate_bytes_per_second = made.core_link.rate_bytes_per_second = bytes_per_second;
  made.host_link.propagation_ns = made.core_link.propagation_ns = 2 * base::kMicrosecond;
  made.port = sim::uniform_port({}, limit_bytes, threshold_bytes);
  return made;
}

inline sim::SimulatorConfig configured(double bytes_per_second, std::uint8_t paths = 1) {
  sim::SimulatorConfig config;
  config.host.endpoint = small_tables(config.host.endpoint);
  config.host.endpoint.paths = paths;
  config.host.endpoint.timely.line_rate_bytes_per_second = bytes_per_second;
  return config;
}

// Sends `plan` from one host to another again and again, `depth` at a time, with tags of its own.
class Stream {
 public:
  Stream(sim::Simulator& simulator, sim::Oracle& oracle, const sim::Plan& send, double loss_bound, int depth)
      : simulator_(simulator), oracle_(oracle), send_(send), loss_bound_(loss_bound) {
    check_ = simulator.on_completion;
    simulator.on_completion = [this](std::uint16_t rank, const core::Completion& completion) {
      const bool mine = completion.kind == core::CompletionKind::kReceive && rank == send_.peer &&
                        completion.peer == send_.host && completion.tag >> 32 == send_.tag;
      check_(rank, completion);
      if (!mine) return;
      delivered_bytes_ += completion.total_bytes - completion.missing_bytes;
      if (running_) post();
    };
    for (int i = 0; i < depth; ++i) post();
  }
  void stop() { running_ = false; }
  std::uint64_t delivered_bytes() const { return delivered_bytes_; }

 private:
  void post() {
    sim::Plan send = send_;
    send.tag = send_.tag << 32 | next_++;
    sim::Plan receive = send;
    receive.host = send.peer;
    receive.peer = send.host;
    receive.loss_bound = loss_bound_;
    oracle_.post_receive(receive);
    oracle_.post_send(send);
  }

  sim::Simulator& simulator_;
  sim::Oracle& oracle_;
  sim::Plan send_;
  double loss_bound_;
  std::function<void(std::uint16_t, const core::Completion&)> check_;
  std::uint64_t delivered_bytes_ = 0;
  std::uint64_t next_ = 0;
  bool running_ = true;
};

}  // namespace mlt::test
