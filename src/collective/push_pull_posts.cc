#include "collective/push_pull_posts.h"

#include <algorithm>
#include <string>

#include "collective/checksums.h"
#include "core/segmenter.h"

namespace mlt::collective {

namespace {

// Time left of the whole push-pull.
base::DurationNs time_left(TimeNs now, const PushPullKey& key) {
  return key.expires_ns == base::kNever ? base::kNever : std::max<base::DurationNs>(1, key.expires_ns - now);
}

}  // namespace

OperationId PushPullPosts::Id::operation() const {
  return machine_operation(MachineId::kPushPull,
                           (std::uint64_t{key} << 17) | (std::uint64_t{partition} << 1) | (is_send ? 1U : 0U));
}

PushPullPosts::Id PushPullPosts::Id::of(OperationId operation) {
  const std::uint64_t local = local_of(operation);
  return {static_cast<std::uint32_t>(local >> 17), static_cast<std::uint32_t>((local >> 1) & 0xFFFF),
          (local & 1U) != 0};
}

std::optional<KeyFailure> PushPullPosts::post(TimeNs now, PushPullKey& key, std::uint32_t index) {
  PushPullKey::Partition& partition = key.partitions[index];
  core::PostStatus status = core::PostStatus::kPosted;
  if (partition.must_replay) status = post_replay(now, key, index);
  const bool is_for_later = partition.replaying || !partition.registered || !key.active || !key.posted ||
                            !partition.pushing || partition.push_posted;
  if (status == core::PostStatus::kPosted && is_for_later) return std::nullopt;
  // PROTOCOL 14.1.6: A worker MUST post the receive of the result before the send of its push, so that the result never
  //     arrives early.
  if (status == core::PostStatus::kPosted && !partition.pull_posted) status = post_pull(now, key, index);
  if (status == core::PostStatus::kPosted) status = post_push(now, key, index);
  switch (status) {
    case core::PostStatus::kPosted:
      return std::nullopt;
    case core::PostStatus::kTooManyOperations:
    case core::PostStatus::kOutOfBitmaps:
      waiting_.push_back({key.index, index});
      return std::nullopt;
    case core::PostStatus::kTooManyTags:
      return KeyFailure{core::CompletionStatus::kCancelled, -1,
                        "too many distinct keys: reuse keys from iteration to iteration"};
    default:
      return KeyFailure{core::CompletionStatus::kPeerFailed, partition.service,
                        service_text(partition.service) + " is not connected"};
  }
}

core::PostStatus PushPullPosts::post_replay(TimeNs now, PushPullKey& key, std::uint32_t index) {
  PushPullKey::Partition& partition = key.partitions[index];
  core::SendRequest replay;
  replay.operation = Id{key.index, index, true}.operation();
  replay.peer = partition.service;
  replay.tag = partition_tag(key.key, index);
  replay.data = std::as_bytes(std::span(partition.record.last()));
  replay.element = wire::ElementType::kFloat32;
  replay.order = key.request.order;
  replay.uniform_priority = core::SegmentPriority::important(key.request.traffic_class);
  replay.timeout_ns = replay_timeout_ns_;
  const core::PostStatus status = verbs_.post_send(now, replay);
  partition.must_replay = status != core::PostStatus::kPosted;
  partition.replaying = status == core::PostStatus::kPosted;
  if (!partition.replaying) return status;
  if (key.checksums) send_checksum(key, index, replay.data);
  if (partition.on_demand) send_ready(key, index);
  return status;
}

core::PostStatus PushPullPosts::post_pull(TimeNs now, PushPullKey& key, std::uint32_t index) {
  PushPullKey::Partition& partition = key.partitions[index];
  core::ReceiveRequest pull;
  pull.operation = Id{key.index, index, false}.operation();
  pull.peer = partition.service;
  pull.tag = partition_tag(key.key, index);
  pull.data = std::as_writable_bytes(key.request.output.subspan(partition.first, partition.count));
  pull.element = wire::ElementType::kFloat32;
  if (key.request.lossy_results) pull.loss_bound = key.request.loss_bound;
  pull.fill = core::Fill::kKeep;  // PushPullKey::stand_in()
  pull.timeout_ns = time_left(now, key);
  if (services_.may_move()) {
    pull.place = &TakeoverRecord::place;
    pull.place_context = &partition.record;
  }
  const core::PostStatus status = verbs_.post_recv(now, pull);
  partition.pull_posted = status == core::PostStatus::kPosted;
  return status;
}

core::PostStatus PushPullPosts::post_push(TimeNs now, PushPullKey& key, std::uint32_t index) {
  PushPullKey::Partition& partition = key.partitions[index];
  const PushPullRequest& request = key.request;
  core::SendRequest push;
  push.operation = Id{key.index, index, true}.operation();
  push.peer = partition.service;
  push.tag = partition_tag(key.key, index);
  push.data = std::as_bytes(request.input.subspan(partition.first, partition.count));
  if (!partition.record.again().empty()) push.data = std::as_bytes(std::span(partition.record.again()));
  push.element = wire::ElementType::kFloat32;
  push.order = request.order;
  push.uniform_priority = core::SegmentPriority::important(request.traffic_class);
  const core::SegmentGrid grid(static_cast<std::uint32_t>(push.data.size()), verbs_.segment_bytes(partition.service));
  if (request.priorities != nullptr && grid.count() == partition.segments) {
    push.priorities = {request.priorities + partition.first_segment, partition.segments};
  }
  push.timeout_ns = time_left(now, key);
  const core::PostStatus status = verbs_.post_send(now, push);
  partition.push_posted = status == core::PostStatus::kPosted;
  if (!partition.push_posted) return status;
  // Without it the service would not end the iteration.
  if (key.checksums && !send_checksum(key, index, push.data) && !services_.may_move()) {
    return core::PostStatus::kPeerNotConnected;
  }
  if (!partition.on_demand) return status;
  // PROTOCOL 14.1.7: A worker whose registration or move got the reply "on demand" MUST send ready with each push. The
  //     service MUST post the receive then, and not before.
  // Without it the push would wait for a receive that the service does not post.
  return send_ready(key, index) || services_.may_move() ? status : core::PostStatus::kPeerNotConnected;
}

// PROTOCOL 14.3.2: A worker with checksums MUST send checksum with each push: that (22.9.2) of what was in memory when
//     it posted the push.
bool PushPullPosts::send_checksum(const PushPullKey& key, std::uint32_t index, std::span<const std::byte> data) {
  const std::uint16_t service = key.partitions[index].service;
  encode(Checksum{key.key, index, transfer_checksum(data, std::max(1U, verbs_.segment_bytes(service)))}, scratch_);
  return verbs_.send_message(service, scratch_);
}

bool PushPullPosts::send_ready(const PushPullKey& key, std::uint32_t index) {
  encode(Ready{key.key, index}, scratch_);
  return verbs_.send_message(key.partitions[index].service, scratch_);
}

bool PushPullPosts::is_waiting(const PushPullKey& key) const {
  return std::ranges::any_of(waiting_, [&](const Waiting& one) { return one.key == key.index; });
}

void PushPullPosts::forget(const PushPullKey& key) {
  std::erase_if(waiting_, [&](const Waiting& one) { return one.key == key.index; });
}

void PushPullPosts::forget(const PushPullKey& key, std::uint32_t index) {
  std::erase_if(waiting_, [&](const Waiting& one) { return one.key == key.index && one.partition == index; });
}

void PushPullPosts::cancel_push(TimeNs now, const PushPullKey& key, std::uint32_t index) {
  verbs_.cancel(now, Id{key.index, index, true}.operation(), core::CompletionKind::kSend);
}

void PushPullPosts::cancel_pull(TimeNs now, const PushPullKey& key, std::uint32_t index) {
  verbs_.cancel(now, Id{key.index, index, false}.operation(), core::CompletionKind::kReceive);
}

}  // namespace mlt::collective
