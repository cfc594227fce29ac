// The oracle as an application: its posts, and its callbacks while the endpoints send and receive.
#include <algorithm>
#include <cstring>

#include "core/segmenter.h"
#include "sim/oracle.h"
#include "sim/oracle_contents.h"

namespace mlt::sim {

using core::CompletionKind;

core::OperationId Oracle::post_send(const Plan& plan) { return post(plan, CompletionKind::kSend); }
core::OperationId Oracle::post_receive(const Plan& plan) { return post(plan, CompletionKind::kReceive); }

bool Oracle::has_tag_per_segment(const Plan& plan) const {
  return !plan.priorities.empty() &&
         simulator_.endpoint(plan.host).segment_count(plan.peer, plan.bytes) == plan.priorities.size();
}

core::OperationId Oracle::post(const Plan& plan, CompletionKind kind) {
  if (!simulator_.host(plan.host).is_up()) return 0;
  const std::uint64_t connection = simulator_.endpoint_connection(plan.host, plan.peer);
  auto owned = std::make_unique<Operation>();
  Operation& operation = *owned;
  operation.id = operations_.size() + 1;
  operation.kind = kind;
  operation.plan = plan;
  operation.posted_ns = simulator_.host(plan.host).config().clock.local(simulator_.now());
  operation.oracle = this;
  operation.posted_virtual_ns = simulator_.now();
  operation.memory.assign(plan.bytes + 2 * kCanaryBytes, kCanary);
  const std::span<std::byte> data = std::span(operation.memory).subspan(kCanaryBytes, plan.bytes);
  // Memory that is not ready yet may have any content: sending it early is detected by its contents.
  if (plan.fed_parts == 0) fill_contents(operation.id, 0, data);

  core::PostStatus status = core::PostStatus::kPosted;
  // Set before the post, which may complete at once.
  operation.key = {connection, plan.host, plan.peer, plan.tag, 0};
  if (kind == CompletionKind::kReceive) std::swap(operation.key.from, operation.key.to);
  auto& generations = kind == CompletionKind::kSend ? generations_ : receive_generations_;
  std::uint64_t& next = generations[operation.key];
  operation.key.generation = next;
  Match& match = matches_[operation.key];
  (kind == CompletionKind::kSend ? match.send : match.receive) = operation.id;
  operations_.push_back(std::move(owned));
  ++open_;
  if (kind == CompletionKind::kSend) {
    core::SendRequest request;
    request.operation = operation.id;
    request.peer = plan.peer;
    request.tag = plan.tag;
    request.data = data;
    request.element = plan.element;
    request.order = plan.order;
    if (has_tag_per_segment(plan)) {
      request.priorities = operation.plan.priorities;
      // Supplies priorities during the send wherever possible, so that this mode gets its share of networks and faults.
      if (plan.fed_parts == 0 && std::none_of(plan.priorities.begin(), plan.priorities.end(),
                                              [](core::SegmentPriority tag) { return tag.is_critical(); })) {
        operation.priorities.assign(plan.priorities.size(), core::SegmentPriority{core::SegmentPriority::kCritical});
        request.priorities = operation.priorities;
        request.classify = &Oracle::classify;
        request.classify_context = &operation;
      }
    }
    request.uniform_priority = plan.uniform_priority;
    // Rejected without a connection, as only a connection determines the segment length.
    if (plan.fed_parts > 0 && connection != 0) {
      const std::uint32_t count = simulator_.endpoint(plan.host).segment_count(plan.peer, plan.bytes);
      operation.feed_words.assign(base::words_for_bits(count), 0);
      operation.feed.fresh = base::BitmapView(operation.feed_words.data(), count);
      request.feed = &operation.feed;
    }
    request.may_have_parity = true;
    request.timeout_ns = plan.timeout_ns;
    status = simulator_.send(plan.host, request);
  } else {
    core::ReceiveRequest request;
    request.operation = operation.id;
    request.peer = plan.peer;
    request.tag = plan.tag;
    request.data = data;
    request.element = plan.element;
    request.up_to = plan.up_to;
    request.loss_bound = plan.loss_bound;
    if (plan.shared_budget != 0) request.shared_budget = &budgets_[plan.shared_budget - 1].shared;
    request.stop = plan.stop;
    request.fill = plan.fill;
    request.deadline_ns = plan.deadline_ns;
    request.timeout_ns = plan.timeout_ns;
    if (plan.by_place_function) {
      request.place = &Oracle::place;
      request.place_context = &operation;
      request.places_in_data = plan.places_in_data;
    }
    status = simulator_.receive(plan.host, request);
  }
  if (status == core::PostStatus::kPosted) {
    ++next;
    watch(operation);
    return operation.id;
  }
  --open_;
  operation.lost = true;
  (kind == CompletionKind::kSend ? match.send : match.receive) = 0;
  const bool not_connected = status == core::PostStatus::kPeerNotConnected && connection == 0;
  const bool full = status == core::PostStatus::kTooManyOperations || status == core::PostStatus::kOutOfBitmaps ||
                    status == core::PostStatus::kTooManyTags;
  if (!not_connected && !full) {
    violate(3, operation, "refused with status " + std::to_string(static_cast<int>(status)));
  }
  return 0;
}

void Oracle::feed(core::OperationId id, std::uint32_t part) {
  if (id == 0) return;
  Operation& operation = *operations_[id - 1];
  if (operation.ended || operation.lost || operation.cancelled) return;
  const Plan& plan = operation.plan;
  for_segments_of(operation, part, [&](std::uint32_t segment, std::size_t offset, std::span<std::byte> data) {
    copy_contents(id, offset, data);
    operation.feed.add(segment);
    if (watches_ != nullptr) watches_->sends.fed(plan.host, plan.peer, id, segment);
  });
  ++operation.parts_fed;
  simulator_.host(plan.host).wake(simulator_.now());
}

// Memory that was never made ready must be unchanged: the send ended before.
void Oracle::check_not_fed(Operation& operation) {
  for (; operation.parts_fed < operation.plan.fed_parts; ++operation.parts_fed) {
    for_segments_of(operation, operation.parts_fed, [&](std::uint32_t, std::size_t offset, std::span<std::byte> data) {
      if (!std::ranges::all_of(data, [](std::byte b) { return b == kCanary; })) {
        violate(4, operation, "a send's memory was written before it was ready");
      }
      copy_contents(operation.id, offset, data);
    });
  }
}

void Oracle::for_segments_of(Operation& operation, std::uint32_t part,
                             const std::function<void(std::uint32_t, std::size_t, std::span<std::byte>)>& each) {
  const Plan& plan = operation.plan;
  const core::SegmentGrid grid(plan.bytes, simulator_.host(plan.host).config().endpoint.max_segment_bytes);
  const std::span<std::byte> data = std::span(operation.memory).subspan(kCanaryBytes, plan.bytes);
  for (std::uint32_t i = 0; i < grid.count(); ++i) {
    if (i / plan.fed_run % plan.fed_parts == part)
      each(i, grid.offset(i), data.subspan(grid.offset(i), grid.length(i)));
  }
}

void Oracle::cancel(core::OperationId id) {
  if (id == 0 || id > operations_.size()) return;
  Operation& operation = *operations_[id - 1];
  if (operation.ended || operation.lost) return;
  operation.cancelled = true;
  must_end(id, "it was cancelled");
  unwatch(operation);
  simulator_.cancel(operation.plan.host, id, operation.kind);
}

void Oracle::pause(std::uint16_t host, base::DurationNs duration_ns) {
  paused_[host] = true;
  simulator_.pause(host, duration_ns);
}

void Oracle::classify(void* context, std::uint32_t first, std::uint32_t count) {
  Operation& operation = *static_cast<Operation*>(context);
  Oracle& oracle = *operation.oracle;
  if (operation.ended) return oracle.violate(4, operation, "a segment is classified after the end");
  if (first != operation.classified || count == 0 || count > operation.priorities.size() - first) {
    return oracle.violate(2, operation, "segments are classified twice, out of order or past the last");
  }
  std::copy_n(operation.plan.priorities.begin() + first, count, operation.priorities.begin() + first);
  operation.classified += count;
}

void Oracle::place(void* context, std::uint64_t offset, std::span<const std::byte> payload) {
  Operation& operation = *static_cast<Operation*>(context);
  Oracle& oracle = *operation.oracle;
  if (operation.ended) return oracle.violate(4, operation, "a segment is placed after the end");
  if (offset > operation.plan.bytes || payload.size() > operation.plan.bytes - offset) {
    return oracle.violate(4, operation, "a segment is placed outside the tensor");
  }
  operation.placed.resize(operation.plan.bytes + 1);
  if (operation.placed[offset] != 0) return oracle.violate(2, operation, "a segment is placed twice");
  operation.placed[offset] = 1;
  if (!payload.empty()) std::memcpy(operation.memory.data() + kCanaryBytes + offset, payload.data(), payload.size());
}

}  // namespace mlt::sim
