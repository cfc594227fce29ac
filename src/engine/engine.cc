// The public API over the event loop: validates arguments on the caller's thread, then queues a command.
#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>
#include <set>
#include <string>

#include "collective/partition_grid.h"
#include "collective/service_choice.h"
#include "core/importance.h"
#include "engine/datapath_opening.h"
#include "engine/deadline.h"
#include "engine/engine_impl.h"
#include "engine/error_text.h"
#include "engine/options_check.h"
#include "engine/public_enums.h"
#include "io/os/clock.h"
#include "mlt.h"
#include "wire/element.h"

namespace mlt {

namespace {

std::vector<core::SegmentPriority> magnitude_priorities(std::span<const std::byte> data, Element element,
                                                        std::uint32_t segment_bytes, std::uint8_t traffic_class,
                                                        std::uint64_t seed) {
  const core::SegmentGrid grid(static_cast<std::uint32_t>(data.size()), segment_bytes);
  std::vector<core::SegmentPriority> priorities(grid.count());
  core::MagnitudeClassifier(data, engine::wire_element(element), grid, traffic_class, seed, priorities)
      .set(0, grid.count());
  return priorities;
}

}  // namespace

std::uint16_t protocol_version() { return MLT_PROTOCOL_VERSION; }

Engine::Engine(const Options& options) {
  engine::check_options(options);
  impl_ = std::make_unique<Impl>(options);
}

Engine::~Engine() {
  set_exit_status(0);  // after close_before_exit() of a process that continues: the I/O thread must not outlive this
  close();
}

std::uint16_t Engine::control_port() const { return impl_->loop.control_port(); }
std::uint16_t Engine::udp_port() const { return impl_->loop.udp_port(); }
std::uint32_t Engine::receive_buffer_bytes() const { return impl_->loop.receive_buffer_bytes(); }
std::uint32_t Engine::wanted_receive_buffer_bytes() const {
  // AF_XDP receives into its own memory, of its own size: no system limit applies.
  if (impl_->loop.options().datapath.starts_with("xdp")) return impl_->loop.receive_buffer_bytes();
  return engine::wanted_receive_buffer_bytes(impl_->loop.options());
}

void Engine::connect(std::span<const PeerAddress> peers, std::int64_t timeout_ns) {
  if (impl_->was_connected.exchange(true)) {
    impl_->submitter.fail(ErrorCode::kConfig, "connect() was called before: a context connects once, to all its peers");
  }
  try {
    impl_->loop.connect(peers, timeout_ns);
  } catch (const std::exception& error) {
    close(error.what());
    throw;
  }
}

void Engine::start_connect(std::span<const PeerAddress> peers, std::int64_t timeout_ns) {
  impl_->loop.start_connect(peers, timeout_ns);
  impl_->was_connected = true;
}

void Engine::set_on_wait(std::function<void()> on_wait) { impl_->loop.set_on_wait(std::move(on_wait)); }

bool Engine::test_connected() { return impl_->loop.test_connected(); }

void Engine::close(const std::string& failure) {
  impl_->submitter.close();
  impl_->loop.stop(failure);
}

void Engine::close_before_exit(std::int64_t max_ns) {
  impl_->submitter.close();
  impl_->loop.stop_before_exit(max_ns);
}

void Engine::set_exit_status(int status) { impl_->loop.set_exit_status(status); }

std::uint32_t Engine::segment_bytes(std::uint16_t peer) const {
  if (peer >= impl_->loop.options().ranks) return 0;
  impl_->loop.use_and_wait({&peer, 1});
  return impl_->loop.peers().segment_bytes(peer);
}

std::uint32_t Engine::segment_count(std::uint16_t peer, std::uint64_t total_bytes) const {
  const std::uint32_t bytes = segment_bytes(peer);
  if (bytes == 0 || total_bytes > 0xFFFF'FFFFULL) return 0;
  return core::SegmentGrid(static_cast<std::uint32_t>(total_bytes), bytes).count();
}

std::vector<std::uint8_t> Engine::data_dscp() const {
  const core::DscpMap& map = impl_->loop.dscp();
  return {map.data.begin(), map.data.begin() + map.data_classes};
}

std::uint8_t Engine::control_dscp() const { return impl_->loop.dscp().control; }

std::uint8_t Engine::traffic_class(std::uint32_t layer, std::uint32_t layers) const {
  return core::class_of_layer(layer, layers, impl_->loop.dscp().data_classes);
}

namespace {

// A send or receive, as far as both are alike; rejects what can't be one. `Options`: SendOptions or ReceiveOptions.
template <typename Options>
engine::Operation transfer_of(const engine::OperationSubmitter& submitter, Verb verb, std::uint16_t peer,
                              const Options& options) {
  engine::Operation operation;
  operation.verb = verb;
  operation.element = options.element;
  operation.peer = peer;
  operation.tag = options.tag;
  operation.total_bytes = options.data.size();
  submitter.check_transfer(operation);
  return operation;
}

// Copies the caller's priorities of a send.
void take_priorities(const engine::OperationSubmitter& submitter, const engine::EventLoop& loop,
                     engine::Operation& operation, const std::vector<SegmentPriority>& priorities,
                     std::uint32_t segments) {
  if (priorities.size() != segments) {
    submitter.reject(operation, ErrorCode::kConfig,
                     engine::refusal_text(core::PostStatus::kBadPriorityCount, "", loop.options()) + " (" +
                         std::to_string(priorities.size()) + " for " + std::to_string(segments) + ")");
  }
  operation.priorities.reserve(priorities.size());
  for (const SegmentPriority priority : priorities) {
    if ((priority & ~core::SegmentPriority::kAllBits) != 0) {
      submitter.reject(operation, ErrorCode::kConfig,
                       "segment priority " + std::to_string(priority) + " has bits beyond critical (0x10)");
    }
    // PROTOCOL 13.1.8: An endpoint MUST refuse a send whose segment priorities name a class that is not in the map, and
    //     not move it to another class.
    if ((priority & core::SegmentPriority::kClassMask) >= loop.dscp().data_classes) {
      submitter.reject(operation, ErrorCode::kConfig,
                       "a segment's priority has class " +
                           std::to_string(priority & core::SegmentPriority::kClassMask) +
                           ", and the map of DSCPs has classes 0 to " + std::to_string(loop.dscp().data_classes - 1));
    }
    operation.priorities.push_back(core::SegmentPriority{priority});
  }
}

// A checked operation and its request, which lacks what only the record has: its id, and where its priorities are.
template <typename Request>
struct NewTransfer {
  engine::Operation operation;
  Request request;
};

using NewSend = NewTransfer<core::SendRequest>;
using NewReceive = NewTransfer<core::ReceiveRequest>;

// All that needs no connection.
NewSend check_static(const engine::OperationSubmitter& submitter, const engine::EventLoop& loop,
                     const SendOptions& options) {
  NewSend made;
  engine::Operation& operation = made.operation = transfer_of(submitter, Verb::kSend, options.to, options);
  submitter.check_layer(operation, options.layer, options.layers);
  operation.lent = options.lent;
  core::SendRequest& request = made.request;
  request.peer = options.to;
  request.tag = options.tag;
  request.data = options.data;
  request.element = engine::wire_element(options.element);
  request.may_have_parity = true;
  request.order = options.layer;
  request.uniform_priority =
      core::SegmentPriority::important(core::class_of_layer(options.layer, options.layers, loop.dscp().data_classes));
  request.timeout_ns = options.timeout_ns;
  return made;
}

// The rest: the peer's state, and the priorities of segments, whose size is the connection's.
void finish_check(const Engine& self, const engine::OperationSubmitter& submitter, const engine::EventLoop& loop,
                  const SendOptions& options, NewSend& made) {
  engine::Operation& operation = made.operation;
  submitter.check_peer(operation);
  if (!options.priorities.empty()) {
    take_priorities(submitter, loop, operation, options.priorities,
                    self.segment_count(options.to, options.data.size()));
  } else if (options.by_magnitude && wire::is_floating_point(engine::wire_element(options.element))) {
    const core::SegmentGrid grid(static_cast<std::uint32_t>(options.data.size()), self.segment_bytes(options.to));
    // A single segment is never below the median.
    if (grid.count() > 1) {
      operation.priorities.resize(grid.count());
      operation.classifier =
          core::MagnitudeClassifier(options.data, engine::wire_element(options.element), grid,
                                    core::class_of_layer(options.layer, options.layers, loop.dscp().data_classes),
                                    options.tag, operation.priorities);
      made.request.classify = core::MagnitudeClassifier::classify;
    }
  }
}

NewReceive check_static(const engine::OperationSubmitter& submitter, const engine::EventLoop& loop,
                        const ReceiveOptions& options) {
  NewReceive made;
  engine::Operation& operation = made.operation = transfer_of(submitter, Verb::kReceive, options.from, options);
  submitter.check_loss_bound(operation, options.loss_bound);
  if (options.loss_bound > 0 && !wire::is_floating_point(engine::wire_element(options.element))) {
    submitter.reject(operation, ErrorCode::kBuffer,
                     engine::refusal_text(core::PostStatus::kLossyInteger, "", loop.options()));
  }
  if (options.deadline_ns < 0 || options.timeout_ns < 0) {
    submitter.reject(operation, ErrorCode::kConfig, "a deadline or timeout must not be negative");
  }
  operation.up_to = options.up_to;
  operation.lent = options.lent;
  core::ReceiveRequest& request = made.request;
  request.peer = options.from;
  request.tag = options.tag;
  request.data = options.data;
  request.element = engine::wire_element(options.element);
  request.up_to = options.up_to;
  request.loss_bound = options.loss_bound;
  request.stop = options.eager ? core::StopPolicy::kEager : core::StopPolicy::kPatient;
  request.fill = options.keep_missing ? core::Fill::kKeep : core::Fill::kZero;
  request.deadline_ns = options.deadline_ns;
  request.timeout_ns = options.timeout_ns > 0 ? options.timeout_ns : loop.options().operation_timeout_ns;
  return made;
}

void finish_check(const Engine&, const engine::OperationSubmitter& submitter, const engine::EventLoop&,
                  const ReceiveOptions&, NewReceive& made) {
  submitter.check_peer(made.operation);
}

void set_record(core::SendRequest& request, const engine::OperationTable::Begun& begun) {
  request.operation = begun.id;
  request.priorities = begun.operation->priorities;
  if (request.classify != nullptr) request.classify_context = &begun.operation->classifier;
}

void set_record(core::ReceiveRequest& request, const engine::OperationTable::Begun& begun) {
  request.operation = begun.id;
}

template <typename Options>
OperationId post_transfer(const Engine& self, engine::OperationSubmitter& submitter, engine::EventLoop& loop,
                          const Options& options) {
  auto made = check_static(submitter, loop, options);
  finish_check(self, submitter, loop, options, made);
  const engine::OperationTable::Begun begun = submitter.begin(std::move(made.operation));
  set_record(made.request, begun);
  submitter.submit(begun.id, [&loop, request = made.request](base::TimeNs now) { loop.post(now, request); });
  return begun.id;
}

std::uint16_t peer_of(const SendOptions& options) { return options.to; }
std::uint16_t peer_of(const ReceiveOptions& options) { return options.from; }

template <typename Request, typename Options>
std::vector<OperationId> post_transfers(const Engine& self, engine::OperationSubmitter& submitter,
                                        engine::EventLoop& loop, std::span<const Options> all) {
  if (all.empty()) return {};
  std::vector<NewTransfer<Request>> checked;
  std::vector<engine::Operation> operations;
  std::vector<Request> requests;
  std::vector<OperationId> ids;
  checked.reserve(all.size());
  operations.reserve(all.size());
  requests.reserve(all.size());
  ids.reserve(all.size());
  const auto for_each = [&](auto&& check) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      try {
        check(i);
      } catch (const Error& error) {
        throw Error(error.code(),
                    std::string(error.what()) + " (number " + std::to_string(i + 1) + " of " +
                        std::to_string(all.size()) + " transfers, of which none was posted)",
                    error.peer());
      }
    }
  };
  for_each([&](std::size_t i) { checked.push_back(check_static(submitter, loop, all[i])); });
  if (loop.options().connects_on_use) {
    // All connections at once: each check below would wait for its own. None for a list that was rejected above.
    std::vector<std::uint16_t> peers;
    for (const Options& options : all) {
      if (std::ranges::find(peers, peer_of(options)) == peers.end()) peers.push_back(peer_of(options));
    }
    loop.use_and_wait(peers);
  }
  for_each([&](std::size_t i) {
    finish_check(self, submitter, loop, all[i], checked[i]);
    operations.push_back(std::move(checked[i].operation));
    requests.push_back(checked[i].request);
  });
  const std::vector<engine::OperationTable::Begun> begun = submitter.begin_all(operations);
  for (std::size_t i = 0; i < begun.size(); ++i) {
    set_record(requests[i], begun[i]);
    ids.push_back(begun[i].id);
  }
  submitter.submit_all(ids, [&loop, posted = std::move(requests)](base::TimeNs now) {
    for (const Request& request : posted) loop.post(now, request);
  });
  return ids;
}

}  // namespace

OperationId Engine::post_send(const SendOptions& options) {
  return post_transfer(*this, impl_->submitter, impl_->loop, options);
}

OperationId Engine::post_recv(const ReceiveOptions& options) {
  return post_transfer(*this, impl_->submitter, impl_->loop, options);
}

std::vector<OperationId> Engine::post_sends(std::span<const SendOptions> options) {
  return post_transfers<core::SendRequest>(*this, impl_->submitter, impl_->loop, options);
}

std::vector<OperationId> Engine::post_recvs(std::span<const ReceiveOptions> options) {
  return post_transfers<core::ReceiveRequest>(*this, impl_->submitter, impl_->loop, options);
}

void Engine::cancel(OperationId operation, const std::string& reason) {
  impl_->loop.run_command([this, operation, reason](base::TimeNs now) { impl_->loop.cancel(now, operation, reason); });
}

std::vector<Completion> Engine::poll(std::size_t max_completions) {
  engine::OperationTable& operations = impl_->loop.operations();
  std::vector<Completion> taken;
  if (!operations.has_any()) impl_->loop.poll();
  while (taken.size() < max_completions && operations.has_any()) {
    // Space first: without it the completion would be lost, and those taken before it.
    if (taken.size() == taken.capacity()) {
      try {
        taken.reserve(std::min(max_completions, std::max<std::size_t>(8, 2 * taken.size())));
      } catch (const std::bad_alloc&) {
        if (taken.empty()) throw;
        break;
      }
    }
    std::optional<Completion> one = operations.take_any();
    if (!one) break;
    taken.push_back(std::move(*one));
  }
  return taken;
}

std::size_t Engine::poll(std::span<Completion> taken, std::int64_t timeout_ns) {
  engine::OperationTable& operations = impl_->loop.operations();
  std::size_t count = 0;
  while (count < taken.size()) {
    std::optional<Completion> one = operations.take_any();
    if (!one && count == 0) {
      if (timeout_ns == 0) impl_->loop.poll();
      one = timeout_ns == 0 ? operations.take_any() : operations.next_any(engine::deadline_after(timeout_ns));
    }
    if (!one) break;
    taken[count++] = std::move(*one);
  }
  return count;
}

std::optional<Completion> Engine::test(OperationId operation) {
  engine::OperationTable& operations = impl_->loop.operations();
  std::optional<Completion> done;
  if (!operations.is_unclaimed(operation)) {
    using Result = engine::OperationTable::WaitResult;
    const Result result = operations.test(operation, done.emplace());
    if (result == Result::kDone) return done;
    if (result == Result::kUnknown) impl_->submitter.fail_unknown(operation);
    done.reset();
  }
  // A thread that tests all the time makes progress as one that polls, without paying for it each time.
  if (impl_->tests.fetch_add(1, std::memory_order_relaxed) % kTestsPerTurn == kTestsPerTurn - 1) impl_->loop.poll();
  return done;
}

std::optional<Completion> Engine::wait(OperationId operation, std::int64_t timeout_ns,
                                       const std::function<void()>& now_and_then) {
  std::optional<Completion> done(std::in_place);
  using Result = engine::OperationTable::WaitResult;
  switch (impl_->loop.operations().wait(operation, timeout_ns, now_and_then, *done)) {
    case Result::kDone:
      return done;
    case Result::kTimeout:
      return std::nullopt;
    case Result::kUnknown:
      break;
  }
  impl_->submitter.fail_unknown(operation);
}

std::optional<std::vector<Completion>> Engine::wait_all(std::span<const OperationId> operations,
                                                        std::int64_t timeout_ns,
                                                        const std::function<void()>& now_and_then) {
  std::optional<std::vector<Completion>> done(std::in_place, operations.size());
  OperationId unknown = 0;
  using Result = engine::OperationTable::WaitResult;
  switch (impl_->loop.operations().wait_all(operations, timeout_ns, now_and_then, *done, unknown)) {
    case Result::kDone:
      return done;
    case Result::kTimeout:
      return std::nullopt;
    case Result::kUnknown:
      break;
  }
  impl_->submitter.fail_unknown(unknown);
}

bool Engine::watch(OperationId operation) { return impl_->loop.operations().watch(operation); }

std::optional<Completion> Engine::next_watched(std::int64_t timeout_ns) {
  return impl_->loop.operations().next_watched(engine::deadline_after(timeout_ns));
}

std::optional<bool> Engine::is_done(OperationId operation) const { return impl_->loop.operations().is_done(operation); }
std::size_t Engine::lending() const { return impl_->loop.operations().lending(); }
std::vector<std::shared_ptr<void>> Engine::take_lent() { return impl_->loop.operations().take_lent(); }

void Engine::set_hosts(std::span<const std::uint16_t> hosts) {
  Impl& impl = *impl_;
  if (hosts.size() != impl.loop.options().ranks) {
    impl.submitter.fail(ErrorCode::kConfig, "set_hosts() got the hosts of " + std::to_string(hosts.size()) +
                                                " ranks; the job has " + std::to_string(impl.loop.options().ranks));
  }
  if (impl.has_hosts.exchange(true)) {
    impl.submitter.fail(ErrorCode::kConfig, "set_hosts() was called before: ranks do not change their hosts");
  }
  impl.hosts.assign(hosts.begin(), hosts.end());
}

namespace {

// Why these are no loads of so many services; empty if they are, or none.
std::string loads_error(std::span<const double> loads, std::size_t services) {
  if (loads.empty()) return {};
  if (loads.size() != services) {
    return "there are " + std::to_string(loads.size()) + " loads for " + std::to_string(services) +
           " summation services: give one for each";
  }
  double sum = 0;
  for (const double load : loads) {
    if (!(load >= 0)) return "a load of a summation service is below 0 or not a number: give 0 or more";
    sum += load;
  }
  if (sum > 0 && std::isfinite(sum)) return {};
  return "the loads of the summation services add up to " + std::string(sum > 0 ? "too much" : "0") +
         ": give one of them a finite load above 0";
}

}  // namespace

void Engine::use_services(std::span<const std::uint16_t> service_ranks, std::uint16_t workers,
                          std::uint16_t max_dead_services, std::span<const double> loads) {
  Impl& impl = *impl_;
  if (service_ranks.empty()) impl.submitter.fail(ErrorCode::kConfig, "push-pull needs at least one summation service");
  if (impl.loop.options().rank >= workers) {
    impl.submitter.fail(ErrorCode::kConfig, "push-pull is for workers: " + engine::rank_range(0, workers));
  }
  for (const std::uint16_t service : service_ranks) {
    if (service >= impl.loop.options().ranks || service < workers) {
      impl.submitter.fail(ErrorCode::kUnknownPeer, "rank " + std::to_string(service) +
                                                       " can't be a summation service: services are " +
                                                       engine::rank_range(workers, impl.loop.options().ranks));
    }
  }
  // All ranks decide together which services take no further part, and count them all.
  const std::set<std::uint16_t> distinct(service_ranks.begin(), service_ranks.end());
  if (distinct.size() != service_ranks.size() || distinct.size() != std::size_t{impl.loop.options().ranks} - workers) {
    impl.submitter.fail(ErrorCode::kConfig,
                        "push-pull uses every summation service of the job, each once: give all of " +
                            engine::rank_range(workers, impl.loop.options().ranks));
  }
  if (const std::string text = loads_error(loads, service_ranks.size()); !text.empty()) {
    impl.submitter.fail(ErrorCode::kConfig, text);
  }
  // Created once: it owns buffers of receives in progress.
  if (impl.uses_services.exchange(true)) {
    impl.submitter.fail(ErrorCode::kConfig,
                        "use_services() was called before: the services are chosen once per context");
  }
  impl.services.assign(service_ranks.begin(), service_ranks.end());
  impl.max_dead_services = max_dead_services;
  impl.loads = loads.empty() ? collective::ServiceLoads(service_ranks.size()) : collective::ServiceLoads(loads);
  impl.loop.run_command([&impl, services = impl.services, max_dead_services, given = impl.loads](base::TimeNs now) {
    impl.loop.collectives().use_services(now, services, max_dead_services, given);
  });
  impl.loop.use(impl.services);
}

namespace {

bool is_gone(engine::PeerState state) {
  return state == engine::PeerState::kLeft || state == engine::PeerState::kFailed;
}

void check_push_pull(const engine::OperationSubmitter& submitter, const std::vector<std::uint16_t>& services,
                     std::uint16_t max_dead_services, const collective::ServiceLoads& loads,
                     const engine::PeerTable& peers, const engine::Operation& operation,
                     const PushPullOptions& options) {
  if (services.empty()) submitter.reject(operation, ErrorCode::kConfig, "call use_services() first");
  submitter.check_open(operation);
  if (options.key > collective::kMaxKey) submitter.reject(operation, ErrorCode::kConfig, "the key must be below 2^40");
  if (options.output.size() != options.input.size()) {
    submitter.reject(operation, ErrorCode::kBuffer,
                     "output has " + std::to_string(options.output.size()) + " elements, input " +
                         std::to_string(options.input.size()));
  }
  if (collective::PartitionGrid(options.input.size(), loads).count() > collective::kMaxPartitions) {
    submitter.reject(operation, ErrorCode::kBuffer, "too large for one key");
  }
  // A worker gives the service that takes over the newest result that it has, which must be that of all workers.
  if (options.lossy_results && max_dead_services > 0) {
    submitter.reject(
        operation, ErrorCode::kConfig,
        "lossy_results gives workers different results, and where a service may die all must have the same: "
        "set max_dead_services (MLT_MAX_DEAD_SERVICES) to 0, or leave lossy_results out");
  }
  submitter.check_loss_bound(operation, options.loss_bound);
  submitter.check_layer(operation, options.layer, options.layers);
  const auto down = static_cast<std::size_t>(
      std::ranges::count_if(services, [&](std::uint16_t service) { return is_gone(peers.state(service)); }));
  const bool may_miss = down <= max_dead_services && down < services.size();
  for (const std::uint16_t service : services) {
    if (may_miss && is_gone(peers.state(service))) continue;
    submitter.check_connected(operation, service, "the summation service is not connected");
  }
}

}  // namespace

OperationId Engine::push_pull(const PushPullOptions& options) {
  Impl& impl = *impl_;
  engine::Operation operation;
  operation.verb = Verb::kPushPull;
  operation.element = Element::kFloat32;
  operation.tag = options.key;
  operation.total_bytes = options.input.size_bytes();
  impl.loop.use_and_wait(impl.services);
  check_push_pull(impl.submitter, impl.services, impl.max_dead_services, impl.loads, impl.loop.peers(), operation,
                  options);
  const std::uint8_t traffic_class = core::class_of_layer(options.layer, options.layers, impl.loop.dscp().data_classes);
  if (options.loss_bound > 0) {
    const collective::PartitionGrid grid(options.input.size(), impl.loads);
    for (std::size_t i = 0; i < grid.count(); ++i) {
      const auto part = options.input.subspan(grid.first(i), grid.elements(i));
      const std::size_t at =
          collective::ServiceChoice::own_index(options.key, static_cast<std::uint32_t>(i), grid, impl.loads);
      const auto priorities =
          magnitude_priorities(std::as_bytes(part), Element::kFloat32,
                               impl.loop.peers().segment_bytes(impl.services[at]), traffic_class, options.key);
      operation.priorities.insert(operation.priorities.end(), priorities.begin(), priorities.end());
    }
  }
  operation.lent = options.lent;
  const engine::OperationTable::Begun begun = impl.submitter.begin(std::move(operation));
  collective::PushPullRequest request;
  request.operation = begun.id;
  request.key = options.key;
  request.input = options.input;
  request.output = options.output;
  request.loss_bound = options.loss_bound;
  request.lossy_results = options.lossy_results;
  request.average = options.average;
  request.order = options.layer;
  request.traffic_class = traffic_class;
  request.priorities = begun.operation->priorities.empty() ? nullptr : begun.operation->priorities.data();
  request.timeout_ns = options.timeout_ns;
  impl.submitter.submit(begun.id, [&impl, request](base::TimeNs now) { impl.loop.collectives().start(now, request); });
  return begun.id;
}

void Engine::serve(std::uint16_t workers, const ServiceOptions& options) {
  Impl& impl = *impl_;
  if (workers == 0 || impl.loop.options().rank < workers) {
    impl.submitter.fail(ErrorCode::kConfig, "a summation service's rank comes after those of the workers: " +
                                                engine::rank_range(0, workers));
  }
  if (options.max_wait_ns < 0) impl.submitter.fail(ErrorCode::kConfig, "max_wait must not be negative");
  // Created once: it owns buffers of receives in progress.
  std::uint16_t none = 0;
  if (!impl.served_workers.compare_exchange_strong(none, workers)) {
    impl.submitter.fail(ErrorCode::kConfig,
                        "this context is a summation service already, of " + std::to_string(none) + " workers");
  }
  impl.loop.run_command(
      [&impl, workers, options](base::TimeNs now) { impl.loop.collectives().serve(now, workers, options); });
  // Also those that push nothing here: a sum waits for all workers, and services decide together who has failed.
  std::vector<std::uint16_t> all(impl.loop.options().ranks);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  impl.loop.use(all);
}

bool Engine::wait_workers_gone(std::int64_t timeout_ns) {
  const std::uint16_t workers = impl_->served_workers;
  if (workers == 0)
    impl_->submitter.fail(ErrorCode::kConfig, "wait_workers_gone() is for summation services: call serve() first");
  return impl_->loop.peers().wait_gone(0, workers, timeout_ns);
}

std::string Engine::take_exclusion() {
  const std::vector<std::string> texts = impl_->loop.collectives().exclusion().take();
  return texts.empty() ? "" : texts.front();
}

std::vector<std::string> Engine::take_notices() { return impl_->loop.collectives().notices().take(); }
std::vector<CounterValue> Engine::counters() const { return impl_->loop.counters(); }
std::vector<PathStatus> Engine::paths(std::uint16_t peer) const { return impl_->loop.paths(peer); }
double Engine::rate_bits_per_second(std::uint16_t peer) const { return 8 * impl_->loop.rate_bytes_per_second(peer); }
std::vector<std::uint16_t> Engine::awaited_ranks(OperationId operation) const { return impl_->loop.awaited(operation); }
bool Engine::is_peer_up(std::uint16_t peer) const {
  return peer < impl_->loop.options().ranks && impl_->loop.peers().state(peer) == engine::PeerState::kUp;
}
bool Engine::has_peer_left(std::uint16_t peer) const {
  return peer < impl_->loop.options().ranks && impl_->loop.peers().state(peer) == engine::PeerState::kLeft;
}
std::string Engine::peer_failure(std::uint16_t peer) const {
  const bool failed =
      peer < impl_->loop.options().ranks && impl_->loop.peers().state(peer) == engine::PeerState::kFailed;
  return failed ? impl_->loop.peers().error(peer) : "";
}

}  // namespace mlt
