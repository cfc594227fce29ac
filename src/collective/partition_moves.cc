#include "collective/partition_moves.h"

#include <string>

namespace mlt::collective {

void PartitionMoves::leave(PushPullKey& key, Partition& partition) {
  if (partition.registered) ++key.unregistered;
  partition.registered = partition.must_replay = false;
  // A result that its service can't confirm any more is repeated by the next one.
  partition.unchecked.reset();
  partition.result_checksums.clear();
  partition.moving = true;
}

void PartitionMoves::suspend(PushPullKey& key, std::uint32_t index) {
  Partition& partition = key.partitions[index];
  leave(key, partition);
  partition.undecided = true;
  posts_.forget(key, index);
}

std::optional<KeyFailure> PartitionMoves::move(TimeNs now, PushPullKey& key, std::uint32_t index) {
  Partition& partition = key.partitions[index];
  leave(key, partition);
  partition.undecided = false;
  if (survivors_ && !survivors_->is_lost(partition.service)) {  // others lost it: this worker leaves it
    if (partition.replaying || (partition.pushing && partition.push_posted)) posts_.cancel_push(now, key, index);
    if (partition.pulling && partition.pull_posted) posts_.cancel_pull(now, key, index);
  }
  partition.service = services_.service_of(key.key, index, partition.own_service);
  if (verbs_.grid_bytes(partition.service) != partition.record.cell_bytes()) {
    return KeyFailure{core::CompletionStatus::kPeerFailed, partition.service,
                      "partition " + std::to_string(index) + " of key " + std::to_string(key.key) + " cannot move to " +
                          service_text(partition.service) +
                          ", whose packets have another size: give all interfaces the same MTU"};
  }
  posts_.forget(key, index);
  ask_next_service(key, index);
  return std::nullopt;
}

void PartitionMoves::ask_next_service(PushPullKey& key, std::uint32_t index) {
  Partition& partition = key.partitions[index];
  if (!partition.moving || partition.undecided || partition.is_posted() || partition.replaying) return;
  partition.moving = false;
  partition.taken_over = true;
  const bool is_repeated = key.active && key.posted && partition.pulling;
  if (is_repeated && !partition.pushing) ++key.outstanding;
  if (!is_repeated && partition.pushing) --key.outstanding;  // its result is here
  partition.pushing = is_repeated;
  partition.push_posted = false;
  // PROTOCOL 14.1.23: A worker that has had one result more than moved says MUST push that result first, and no other
  //     data than the segments of the result that it has for those of its tensor.
  // PROTOCOL 14.1.21: A worker whose service of a partition is gone MUST send move to the one that takes over: how many
  //     results of it it has had whole, and which segments of the next. A service MUST NOT receive a push before every
  //     worker has sent move or register.
  encode(partition.record.report(key.shape_of(index, services_, verbs_), is_repeated), scratch_);
  verbs_.send_message(partition.service, scratch_);  // if that is down too, PushPull::on_peer_down() asks the next one
}

}  // namespace mlt::collective
