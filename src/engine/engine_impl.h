// Implementation of Engine: the event loop, the posts to it, and the rank's part in summation.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "collective/service_loads.h"
#include "engine/event_loop.h"
#include "engine/operation_submitter.h"
#include "mlt.h"

namespace mlt {

class Engine::Impl {
 public:
  explicit Impl(const Options& options) : loop(options) {}

  engine::EventLoop loop;
  engine::OperationSubmitter submitter{loop};
  std::vector<std::uint16_t> services;  // for push-pull; set once
  std::uint16_t max_dead_services = 0;  // set with them
  collective::ServiceLoads loads{0};    // theirs
  std::atomic<bool> uses_services{false};
  std::vector<std::uint16_t> hosts;  // of all ranks; set once
  std::atomic<bool> has_hosts{false};
  std::atomic<std::uint16_t> served_workers{0};  // 0: no service
  std::atomic<bool> was_connected{false};        // or connects now
  std::atomic<std::uint32_t> tests{0};           // that found their operation in progress
};

}  // namespace mlt
