#include "collective/service_partition.h"

namespace mlt::collective {

ServicePartition::ServicePartition(const Register& registration, std::uint16_t from, std::uint32_t own_index,
                                   const GoneWorkers& gone, std::vector<std::uint32_t>& begun)
    : shape(registration),
      index(own_index),
      sums(registration, own_index, gone.workers(), begun),
      checksums(registration.checksums ? gone.workers() : std::uint16_t{0}),
      first_worker(from),
      registered(gone.workers()),
      pushes(gone.workers()),
      on_demand(gone.workers()),
      ready(gone.workers()),
      late(gone.workers()),
      early_receives(gone.workers()),
      arrived(gone.count()),
      failed_rank(gone.breaking()) {
  sums.expect(gone.live());
  for (std::uint16_t worker = 0; worker < pushes.size(); ++worker) {
    if (gone.contains(worker)) pushes[worker] = Push::kArrived;
  }
}

void ServicePartition::end_push(std::uint16_t worker) {
  pushes[worker] = Push::kArrived;
  ++arrived;
}

void ServicePartition::begin_round(const GoneWorkers& gone) {
  sums.begin_round(gone.live());
  arrived = gone.count();
  has_push = is_closed = false;
  missing_bytes = 0;
  for (std::uint16_t worker = 0; worker < pushes.size(); ++worker) {
    late[worker] = false;
    if (!gone.contains(worker)) pushes[worker] = Push::kIdle;
  }
}

bool ServicePartition::is_registered_by_all(const GoneWorkers& gone) const {
  for (std::uint16_t worker = 0; worker < registered.size(); ++worker) {
    if (!gone.contains(worker) && !registered[worker]) return false;
  }
  return true;
}

std::uint64_t ServicePartition::missing_elements(const GoneWorkers& gone, std::size_t late_count) {
  // What of a worker that died in this round is in which segment is not known: take the late ones' shares whole.
  if (sums.expected() != gone.live()) return late_count * shape.elements + missing_bytes / sizeof(float);
  return sums.missing_elements(gone.live());
}

void ServicePartition::encode_failure(std::vector<std::byte>& out) const {
  if (!refusal.empty()) {
    encode(Refused{shape.key, shape.partition, refusal}, out);
  } else if (!damage.empty()) {
    encode(Damaged{shape.key, shape.partition, static_cast<std::uint16_t>(failed_rank), damage}, out);
  } else if (!overdue.empty()) {
    encode(Overdue{shape.key, shape.partition, static_cast<std::uint16_t>(failed_rank), overdue}, out);
  } else {
    encode(Aborted{shape.key, shape.partition, static_cast<std::uint16_t>(failed_rank)}, out);
  }
}

std::string ServicePartition::text() const {
  return "key " + std::to_string(shape.key) + ", partition " + std::to_string(shape.partition);
}

}  // namespace mlt::collective
