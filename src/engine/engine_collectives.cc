// The collectives of the public API: validated on the caller's thread, then passed to the event loop.
#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/coalesced_tensors.h"
#include "engine/engine_impl.h"
#include "engine/error_text.h"
#include "engine/public_enums.h"

namespace mlt {

namespace {

// Fills the fields common to all collectives.
collective::CollectiveRequest request_of(const engine::OperationSubmitter& submitter, const engine::EventLoop& loop,
                                         collective::CollectiveKind kind, const CollectiveOptions& options) {
  collective::CollectiveRequest request;
  request.kind = kind;
  request.ranks = options.ranks;
  if (request.ranks.empty()) {
    request.ranks.resize(loop.options().ranks);
    std::iota(request.ranks.begin(), request.ranks.end(), std::uint16_t{0});
  }
  request.stream = options.stream;
  request.loss_bound = options.loss_bound;
  request.order = options.layer;
  request.timeout_ns = options.timeout_ns;
  if (options.layers == 0 || options.layer >= options.layers) {
    submitter.fail(ErrorCode::kConfig, std::string(collective_name(kind)) +
                                           " was rejected: layer must be below layers, and layers positive");
  }
  request.traffic_class = core::class_of_layer(options.layer, options.layers, loop.dscp().data_classes);
  return request;
}

// Of a collective with an input and an output of any type.
template <typename Options>
collective::CollectiveRequest request_with_buffers(const engine::OperationSubmitter& submitter,
                                                   const engine::EventLoop& loop, collective::CollectiveKind kind,
                                                   const Options& options) {
  collective::CollectiveRequest request = request_of(submitter, loop, kind, options);
  request.input = options.input;
  request.output = options.output;
  request.element = engine::wire_element(options.element);
  if constexpr (requires { options.inputs; }) request.input_parts = options.inputs;
  if constexpr (requires { options.outputs; }) request.output_parts = options.outputs;
  const bool is_both = (!request.input.empty() && !request.input_parts.empty()) ||
                       (!request.output.empty() && !request.output_parts.empty());
  if (is_both) {
    submitter.fail(ErrorCode::kBuffer, std::string(collective_name(kind)) +
                                           " was rejected: both one tensor and a list of tensors were given");
  }
  return request;
}

// Sets the output of a collective that works in place: one tensor, or the memory into which post() packs a list of
// them, which is returned. One tensor needs no copy.
std::unique_ptr<engine::CoalescedTensors> in_place(const engine::OperationSubmitter& submitter,
                                                   collective::CollectiveRequest& request, std::span<std::byte> data,
                                                   const std::vector<std::span<std::byte>>& tensors, bool is_result) {
  request.output = tensors.size() == 1 ? tensors.front() : data;
  if (tensors.empty()) return nullptr;
  std::string problem = engine::CoalescedTensors::check(tensors, wire::element_bytes(request.element));
  if (!data.empty()) problem = "both one tensor and a list of tensors were given";
  if (!problem.empty()) {
    submitter.fail(ErrorCode::kBuffer, std::string(collective_name(request.kind)) + " was rejected: " + problem);
  }
  if (tensors.size() == 1) return nullptr;
  auto coalesced = std::make_unique<engine::CoalescedTensors>(tensors, is_result);
  request.output = coalesced->packed();
  return coalesced;
}

Verb verb_of(collective::CollectiveKind kind) {
  switch (kind) {
    case collective::CollectiveKind::kAllToAll:
      return Verb::kAllToAll;
    case collective::CollectiveKind::kGather:
      return Verb::kGather;
    case collective::CollectiveKind::kAllGather:
      return Verb::kAllGather;
    case collective::CollectiveKind::kReduceScatter:
      return Verb::kReduceScatter;
    case collective::CollectiveKind::kBroadcast:
      return Verb::kBroadcast;
    case collective::CollectiveKind::kReduce:
      return Verb::kReduce;
    case collective::CollectiveKind::kScatter:
      return Verb::kScatter;
    case collective::CollectiveKind::kBarrier:
      return Verb::kBarrier;
    case collective::CollectiveKind::kAllReduce:
      break;
  }
  return Verb::kAllReduce;
}

// "element 3 of part 1", of the input's parts; empty if all are finite.
std::string place_not_finite(const collective::CollectiveRequest& request) {
  for (std::size_t i = 0; i < request.input_parts.size(); ++i) {
    if (const auto at = collective::first_not_finite(request.input_parts[i], request.element)) {
      return "element " + std::to_string(*at) + " of part " + std::to_string(i);
    }
  }
  return "";
}

// What this member contributes; `own`: its rank.
std::span<const std::byte> contribution_of(const collective::CollectiveRequest& request, std::uint16_t own) {
  if (request.kind == collective::CollectiveKind::kAllReduce) return request.output;
  if (request.kind != collective::CollectiveKind::kBroadcast) return request.input;
  return request.root == own ? request.output : std::span<std::byte>();
}

// The member to name of those that are not connected: the first that failed, else the first that left, because others
// leave after it.
std::optional<std::uint16_t> gone_member(const engine::EventLoop& loop, std::span<const std::uint16_t> ranks) {
  const engine::PeerTable& peers = loop.peers();
  std::optional<std::uint16_t> gone;
  for (const std::uint16_t rank : ranks) {
    if (rank == loop.options().rank || peers.state(rank) == engine::PeerState::kUp) continue;
    const auto is_first = [&] {
      const bool failed = peers.state(rank) == engine::PeerState::kFailed;
      const bool other_failed = peers.state(*gone) == engine::PeerState::kFailed;
      if (failed != other_failed) return failed;
      return peers.down_number(rank) < peers.down_number(*gone);
    };
    if (!gone || is_first()) gone = rank;
  }
  return gone;
}

// On first use: waits for the connections that this rank's part of the collective needs.
void connect_partners(const engine::OperationSubmitter& submitter, engine::EventLoop& loop,
                      const engine::Operation& operation, const collective::CollectiveRequest& request,
                      std::uint16_t own) {
  const auto demand = [&](std::uint16_t rank) {
    submitter.check_connected(operation, rank, "rank " + std::to_string(rank) + " is not connected");
  };
  for (const std::uint16_t rank : request.ranks) {
    if (rank != own && loop.peers().state(rank) == engine::PeerState::kUnnamed) demand(rank);
  }
  const auto is_pending = [&](std::uint16_t rank) { return loop.peers().is_pending(rank); };
  // Of a member that is down the call fails once it has begun: the others, which may have no connection with that one,
  // learn it from this rank.
  if (request.ends_group || std::ranges::none_of(request.ranks, is_pending)) return;
  const std::vector<std::uint16_t> partners = loop.partner_cache().partners(request);
  if (loop.use_and_wait(partners)) return;
  for (const std::uint16_t rank : partners) {
    if (is_pending(rank)) demand(rank);
  }
}

// PROTOCOL 22.1.10: A member MUST refuse what it can't carry before it takes a sequence number, as 5.3.2 says.
OperationId post(engine::OperationSubmitter& submitter, engine::EventLoop& loop, collective::CollectiveRequest request,
                 const CollectiveOptions& options, std::unique_ptr<engine::CoalescedTensors> coalesced = nullptr) {
  const std::uint16_t own = loop.options().rank;
  engine::Operation operation;
  operation.verb = verb_of(request.kind);
  operation.element = engine::public_element(request.element);
  operation.peer = own;
  operation.members = request.ranks.size();
  operation.total_bytes = std::max(request.input_bytes(), request.output_bytes());
  operation.coalesced = std::move(coalesced);
  submitter.check_open(operation);
  for (const std::uint16_t rank : request.ranks) {
    if (rank >= loop.options().ranks) {
      submitter.reject(operation, ErrorCode::kUnknownPeer, "the job has " + engine::rank_range(0, loop.options().ranks),
                       rank);
    }
  }
  if (const std::string problem = check_request(request, own); !problem.empty()) {
    submitter.reject(operation, ErrorCode::kBuffer, problem);
  }
  if (loop.options().connects_on_use) {
    connect_partners(submitter, loop, operation, request, own);
  } else if (const auto gone = gone_member(loop, request.ranks)) {
    submitter.check_connected(operation, *gone, "rank " + std::to_string(*gone) + " is not connected");
  }
  if (operation.coalesced) operation.coalesced->pack();
  if (options.check_finite) {
    std::string place = place_not_finite(request);
    if (const auto at = collective::first_not_finite(contribution_of(request, own), request.element)) {
      place = operation.coalesced ? operation.coalesced->place_of(*at, wire::element_bytes(request.element))
                                  : "element " + std::to_string(*at);
    }
    if (!place.empty()) {
      request.fault = "the input of rank " + std::to_string(own) + " has a NaN or an infinity at " + place +
                      " (check_finite): look at what that rank computed";
    }
  }
  operation.lent = options.lent;
  const OperationId id = submitter.begin(std::move(operation)).id;
  request.operation = id;
  submitter.submit(id, [&loop, request = std::move(request)](base::TimeNs now) mutable {
    loop.collectives().start(now, std::move(request));
  });
  return id;
}

std::vector<std::uint64_t> equal_parts(std::uint64_t bytes, std::size_t parts) {
  return std::vector<std::uint64_t>(parts, bytes / parts);
}

}  // namespace

namespace {

// Of a collective that may name its algorithm.
void set_algorithm(collective::CollectiveRequest& request, Algorithm algorithm, std::span<const std::uint16_t> hosts) {
  request.algorithm = engine::inner_algorithm(algorithm);
  if (depends_on_hosts(request)) request.ranks_per_host = collective::ranks_per_host(request.ranks, hosts);
}

}  // namespace

OperationId Engine::post_all_reduce(const AllReduceOptions& options) {
  collective::CollectiveRequest request =
      request_of(impl_->submitter, impl_->loop, collective::CollectiveKind::kAllReduce, options);
  request.element = engine::wire_element(options.element);
  request.reduction = engine::inner_reduction(options.reduction);
  request.lossy_results = options.lossy_results;
  auto coalesced = in_place(impl_->submitter, request, options.data, options.tensors, true);
  set_algorithm(request, options.algorithm, impl_->hosts);
  return post(impl_->submitter, impl_->loop, std::move(request), options, std::move(coalesced));
}

OperationId Engine::post_all_to_all(const AllToAllOptions& options) {
  collective::CollectiveRequest request =
      request_with_buffers(impl_->submitter, impl_->loop, collective::CollectiveKind::kAllToAll, options);
  const std::size_t ranks = request.ranks.size();
  request.send_bytes = options.send_bytes.empty() ? equal_parts(options.input.size(), ranks) : options.send_bytes;
  request.receive_bytes =
      options.receive_bytes.empty() ? equal_parts(options.output.size(), ranks) : options.receive_bytes;
  const bool is_split = (!options.inputs.empty() && !options.send_bytes.empty()) ||
                        (!options.outputs.empty() && !options.receive_bytes.empty());
  if (is_split) {
    impl_->submitter.fail(ErrorCode::kBuffer, "all-to-all was rejected: a list of tensors needs no sizes of parts");
  }
  return post(impl_->submitter, impl_->loop, std::move(request), options);
}

OperationId Engine::post_gather(const GatherOptions& options) {
  collective::CollectiveRequest request =
      request_with_buffers(impl_->submitter, impl_->loop, collective::CollectiveKind::kGather, options);
  request.root = options.root;
  return post(impl_->submitter, impl_->loop, std::move(request), options);
}

OperationId Engine::post_all_gather(const AllGatherOptions& options) {
  collective::CollectiveRequest request =
      request_with_buffers(impl_->submitter, impl_->loop, collective::CollectiveKind::kAllGather, options);
  set_algorithm(request, options.algorithm, impl_->hosts);
  return post(impl_->submitter, impl_->loop, std::move(request), options);
}

OperationId Engine::post_reduce_scatter(const ReduceScatterOptions& options) {
  collective::CollectiveRequest request =
      request_with_buffers(impl_->submitter, impl_->loop, collective::CollectiveKind::kReduceScatter, options);
  request.reduction = engine::inner_reduction(options.reduction);
  set_algorithm(request, options.algorithm, impl_->hosts);
  return post(impl_->submitter, impl_->loop, std::move(request), options);
}

OperationId Engine::post_broadcast(const BroadcastOptions& options) {
  collective::CollectiveRequest request =
      request_of(impl_->submitter, impl_->loop, collective::CollectiveKind::kBroadcast, options);
  request.element = engine::wire_element(options.element);
  request.root = options.root;
  const bool is_result = options.root != impl_->loop.options().rank;
  auto coalesced = in_place(impl_->submitter, request, options.data, options.tensors, is_result);
  set_algorithm(request, options.algorithm, impl_->hosts);
  return post(impl_->submitter, impl_->loop, std::move(request), options, std::move(coalesced));
}

OperationId Engine::post_reduce(const ReduceOptions& options) {
  collective::CollectiveRequest request =
      request_with_buffers(impl_->submitter, impl_->loop, collective::CollectiveKind::kReduce, options);
  request.reduction = engine::inner_reduction(options.reduction);
  set_algorithm(request, options.algorithm, impl_->hosts);
  request.root = options.root;
  return post(impl_->submitter, impl_->loop, std::move(request), options);
}

OperationId Engine::post_scatter(const ScatterOptions& options) {
  collective::CollectiveRequest request =
      request_with_buffers(impl_->submitter, impl_->loop, collective::CollectiveKind::kScatter, options);
  request.root = options.root;
  return post(impl_->submitter, impl_->loop, std::move(request), options);
}

OperationId Engine::post_barrier(const BarrierOptions& options) {
  collective::CollectiveRequest request =
      request_of(impl_->submitter, impl_->loop, collective::CollectiveKind::kBarrier, options);
  request.ends_group = !options.end_of_group.empty();
  if (request.ends_group) {
    request.fault = "rank " + std::to_string(impl_->loop.options().rank) + " ended the group: " + options.end_of_group;
  }
  return post(impl_->submitter, impl_->loop, std::move(request), options);
}

double sum_of_squares(std::span<const std::byte> values, Element element) {
  return collective::sum_of_squares(values, engine::wire_element(element));
}

}  // namespace mlt
