// What a service's parts are over: survivors and workers that are gone, without a network.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/gone_workers.h"
#include "collective/partition_table.h"
#include "recording_verbs.h"

namespace mlt::test {

struct ServiceWorld {
  explicit ServiceWorld(std::uint16_t workers, std::uint16_t max_dead = 0)
      : survivors({workers, workers, 1}, verbs),
        gone(workers, max_dead, survivors, verbs),
        partitions({std::uint64_t{1} << 30, 1'000}, gone) {
    survivors.set_limits(max_dead, 0);
  }

  // A partition that every worker has registered. Three cells of two elements.
  collective::ServicePartition& partition(std::uint64_t key = 1, double loss_bound = 0) {
    std::string refusal;
    collective::ServicePartition& made = *partitions.find_or_make(0, shape(key, loss_bound), false, refusal);
    for (std::uint16_t worker = 0; worker < gone.workers(); ++worker) {
      made.registered[worker] = true;
      made.sums.add_receiver(worker, 1);
    }
    return made;
  }
  static collective::Register shape(std::uint64_t key, double loss_bound = 0) {
    collective::Register shape;
    shape.key = key;
    shape.elements = 6;
    shape.tensor_elements = 6;
    shape.segment_bytes = 8;
    shape.loss_bound = loss_bound;
    return shape;
  }

  RecordingVerbs verbs;
  collective::Survivors survivors;
  collective::GoneWorkers gone;
  collective::PartitionTable partitions;
};

}  // namespace mlt::test
