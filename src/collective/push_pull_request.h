// A push-pull as its caller asks for it, and how it ended.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "collective/verbs.h"

namespace mlt::collective {

struct PushPullRequest {
  OperationId operation = 0;
  std::uint64_t key = 0;
  std::span<const float> input;
  std::span<float> output;  // as long as input; may be the same memory
  double loss_bound = 0;
  bool lossy_results = false;  // pulls may lose as much: where they do, the worker's own term stands in
  bool average = true;
  std::uint32_t order = 0;
  std::uint8_t traffic_class = 0;
  // Tags of all partitions' segments one after another (partition_segments() each), or null: all important. Must be
  // valid until the operation ends.
  const core::SegmentPriority* priorities = nullptr;
  base::DurationNs timeout_ns = 0;  // from the start, registration included; 0: the default
};

struct PushPullDone {
  OperationId operation = 0;
  std::uint64_t key = 0;
  core::CompletionStatus status = core::CompletionStatus::kComplete;
  std::uint64_t total_bytes = 0;
  std::uint64_t missing_bytes = 0;  // missing from this worker's pushes and pulls
  std::uint64_t repaired_segments = 0;
  base::DurationNs elapsed_ns = 0;
  int failed_peer = -1;
  std::string error;  // empty unless it failed
};

}  // namespace mlt::collective
