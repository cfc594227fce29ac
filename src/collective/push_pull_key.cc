#include "collective/push_pull_key.h"

#include <algorithm>
#include <span>
#include <utility>

#include "collective/collective.h"
#include "collective/partition_grid.h"
#include "core/segmenter.h"

namespace mlt::collective {

namespace {

std::string use_text(std::size_t elements, double loss_bound, bool average) {
  return std::to_string(elements) + " elements, loss bound " + in_short(loss_bound) +
         (average ? ", averaged" : ", summed");
}

}  // namespace

PushPullKey::PushPullKey(std::uint32_t own_index, const PushPullRequest& first_request, const ServiceChoice& services,
                         const Verbs& verbs)
    : index(own_index),
      key(first_request.key),
      elements(first_request.input.size()),
      loss_bound(first_request.loss_bound),
      average(first_request.average) {
  const PartitionGrid grid(elements, services.loads());
  std::size_t segment = 0;
  for (std::size_t i = 0; i < grid.count(); ++i) {
    Partition partition;
    const auto number = static_cast<std::uint32_t>(i);
    partition.own_service = services.own_service(key, number, grid);
    partition.service = services.service_of(key, number, partition.own_service);
    partition.record = TakeoverRecord(verbs.grid_bytes(partition.service), services.may_move());
    partition.first = grid.first(i);
    partition.count = grid.elements(i);
    partition.first_segment = segment;
    // The caller's priorities are of the segments to the service that the key says, also where that is gone.
    const std::uint32_t segment_bytes = verbs.segment_bytes(partition.own_service);
    partition.segments =
        core::SegmentGrid(static_cast<std::uint32_t>(partition.count * sizeof(float)), segment_bytes).count();
    segment += partition.segments;
    partitions.push_back(std::move(partition));
    post_order.push_back(number);
  }
  std::ranges::sort(post_order, {},
                    [&](std::uint32_t number) { return std::pair(grid.number_in_part(number), number); });
}

bool PushPullKey::fits(const PushPullRequest& other) const {
  return elements == other.input.size() && loss_bound == other.loss_bound && average == other.average;
}

std::string PushPullKey::misfit_text(const PushPullRequest& other) const {
  return "key " + std::to_string(key) + " was used with " + use_text(elements, loss_bound, average) +
         " before, now with " + use_text(other.input.size(), other.loss_bound, other.average) + ": use another key";
}

Register PushPullKey::shape_of(std::uint32_t partition, const ServiceChoice& services, const Verbs& verbs) const {
  Register shape;
  shape.key = key;
  shape.partition = partition;
  shape.elements = static_cast<std::uint32_t>(partitions[partition].count);
  shape.segment_bytes = verbs.grid_bytes(partitions[partition].service);
  shape.loss_bound = loss_bound;
  shape.average = average;
  shape.order = request.order;
  shape.traffic_class = request.traffic_class;
  shape.tensor_elements = elements;
  shape.services = static_cast<std::uint32_t>(services.count());
  shape.max_dead_services = services.max_dead();
  // PROTOCOL 14.3.1: A worker with checksums MUST say so in its registrations and moves. ...
  shape.checksums = checksums;
  return shape;
}

void PushPullKey::begin(TimeNs now, const PushPullRequest& next_request, TimeNs expires) {
  active = true;
  posted = false;
  request = next_request;
  started_ns = now;
  expires_ns = expires;
  done = PushPullDone{};
  done.operation = request.operation;
  done.key = request.key;
  done.total_bytes = request.input.size_bytes();
  outstanding = 0;
}

void PushPullKey::begin_round() {
  posted = true;
  outstanding = 2 * partitions.size();
  for (Partition& partition : partitions) {
    partition.pushing = partition.pulling = true;
    partition.push_posted = partition.pull_posted = false;
    partition.missing_bytes = 0;
    partition.record.begin_round(request.input.subspan(partition.first, partition.count),
                                 request.output.subspan(partition.first, partition.count));
  }
}

void PushPullKey::end_unposted() {
  for (Partition& partition : partitions) {
    partition.unchecked.reset();
    if (partition.pushing && !partition.push_posted) {
      partition.pushing = false;
      --outstanding;
    }
    if (partition.pulling && !partition.pull_posted) {
      partition.pulling = false;
      --outstanding;
    }
  }
}

PushPullDone PushPullKey::finish(TimeNs now) {
  active = false;
  done.elapsed_ns = now - started_ns;
  for (const Partition& partition : partitions) {
    if (posted) done.missing_bytes += partition.missing_bytes;
  }
  if (!is_broken() && done.missing_bytes > 0) done.status = core::CompletionStatus::kWithinBound;
  return std::move(done);
}

// PROTOCOL 14.1.8: ... Such a worker MUST take its own term in the place of an element that it misses.
void PushPullKey::stand_in(const Partition& partition, const core::Completion& completion) const {
  const auto own = request.input.subspan(partition.first, partition.count);
  const auto result = request.output.subspan(partition.first, partition.count);
  if (completion.received_bitmap.empty() || own.data() == result.data()) return;
  const std::size_t each = completion.segment_bytes / sizeof(float);
  for (std::size_t i = 0; i < completion.segment_count; ++i) {
    if (((completion.received_bitmap[i / 64] >> (i % 64)) & 1U) != 0) continue;
    const std::size_t first = std::min(i * each, own.size());
    std::ranges::copy(own.subspan(first, std::min(each, own.size() - first)), result.subspan(first).begin());
  }
}

}  // namespace mlt::collective
