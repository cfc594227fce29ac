#include "bindings/engine_handle.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

namespace mlt::bindings {

namespace {

// How many forks this process is away from the one that loaded the library: a load, where getpid() is a system call.
std::atomic<std::uint32_t> forks{0};
const int watches_forks = ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });

// How long a wait keeps a pending Ctrl-C waiting.
constexpr std::int64_t kSignalSliceNs = 100'000'000;

// Runs `post`, and says which tensor it was about in what it throws. The engine names rank, peer and tag.
template <typename Post>
auto naming_tensor(const TensorView& view, Post&& post) {
  try {
    return std::forward<Post>(post)();
  } catch (const Error& error) {
    throw Error(error.code(), error.what() + (" (tensor " + view.description() + ")"), error.peer());
  }
}

// Runs `slice(timeout_ns)` without the GIL until it has a result or the time is up; looks for signals in between.
// A negative timeout waits without limit.
template <typename Slice>
auto wait_in_slices(std::int64_t timeout_ns, Slice&& slice) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  while (true) {
    std::int64_t left = kSignalSliceNs;
    if (timeout_ns >= 0) {
      const std::int64_t passed = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
      left = std::clamp<std::int64_t>(timeout_ns - passed, 0, kSignalSliceNs);
    }
    auto result = [&] {
      const py::gil_scoped_release release;
      return slice(left);
    }();
    if (result || (timeout_ns >= 0 && left < kSignalSliceNs)) return result;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

std::vector<SegmentTag> copy_tags(py::handle tags) {
  if (tags.is_none()) return {};
  const TensorView view(tags, false, {});
  if (view.element() != Element::kUint8) {
    throw Error(ErrorCode::kBuffer, "segment tags must be uint8, one per segment, not " + view.description());
  }
  std::vector<SegmentTag> copy(view.bytes());
  if (!copy.empty()) std::memcpy(copy.data(), view.data(), copy.size());
  return copy;
}

Pin make_pin(TensorView view) {
  Pin pin;
  pin.views.push_back(std::move(view));
  return pin;
}

// The caller owns the memory again; a failure names the tensor.
template <typename Result>
void hand_back(Result& result, const Pin& pin) {
  if (!result.error.empty() && !pin.views.empty()) result.error += " (tensor " + pin.views.front().description() + ")";
}

bool overlap(const TensorView& a, const TensorView& b) {
  return a.data() < b.data() + b.bytes() && b.data() < a.data() + a.bytes();
}

}  // namespace

EngineHandle::EngineHandle(const Options& options)
    : engine_(std::make_unique<Engine>(options)), rank_(options.rank), ranks_(options.ranks), owner_(forks.load()) {
  if (watches_forks != 0) throw Error(ErrorCode::kSystem, name() + ": pthread_atfork() had no memory left");
}

EngineHandle::~EngineHandle() {
  if (is_fork()) {
    // The I/O thread did not survive the fork: joining it would hang, and its goodbye is the parent's to say.
    static_cast<void>(engine_.release());
    return;
  }
  const py::gil_scoped_release release;
  engine_.reset();
}

bool EngineHandle::is_fork() const { return forks.load(std::memory_order_relaxed) != owner_; }

Engine& EngineHandle::engine() const {
  if (is_fork()) {
    throw Error(ErrorCode::kClosed, name() +
                                        ": this context belongs to the process that forked this one; make a new "
                                        "one, or start the process with the spawn method");
  }
  return *engine_;
}

std::uint16_t EngineHandle::peer_rank(std::int64_t rank) const {
  if (rank < 0 || rank >= ranks_ || rank == rank_) {
    throw Error(ErrorCode::kUnknownPeer, name() + ": rank " + std::to_string(rank) +
                                             " is no peer: the job has ranks 0 to " + std::to_string(ranks_ - 1) +
                                             ", and a rank has no transfers with itself");
  }
  return static_cast<std::uint16_t>(rank);
}

void EngineHandle::refuse_tensor(const std::string& operation, const Error& error) const {
  throw Error(error.code(), name() + ": " + operation + " was refused: " + error.what(), error.peer());
}

void EngineHandle::connect(const std::vector<PeerAddress>& peers, std::int64_t timeout_ns) {
  Engine& target = engine();
  const py::gil_scoped_release release;
  target.connect(peers, timeout_ns);
}

void EngineHandle::close() {
  if (is_fork()) return;
  {
    const py::gil_scoped_release release;
    engine_->close();
  }
  closed_ = true;
  pins_.close();
}

std::uint32_t EngineHandle::segment_count(std::int64_t peer, std::uint64_t total_bytes) const {
  return engine().segment_count(peer_rank(peer), total_bytes);
}

std::uint32_t EngineHandle::segment_bytes(std::int64_t peer) const { return engine().segment_bytes(peer_rank(peer)); }

bool EngineHandle::is_peer_up(std::int64_t peer) const { return engine().is_peer_up(peer_rank(peer)); }

std::vector<PathStatus> EngineHandle::paths(std::int64_t peer) const {
  const Engine& target = engine();
  const std::uint16_t rank = peer_rank(peer);
  const py::gil_scoped_release release;
  return target.paths(rank);
}

std::string EngineHandle::peer_failure(std::int64_t peer) const { return engine().peer_failure(peer_rank(peer)); }

double EngineHandle::rate_bits_per_second(std::int64_t peer) const {
  const Engine& target = engine();
  const std::uint16_t rank = peer_rank(peer);
  const py::gil_scoped_release release;
  return target.rate_bits_per_second(rank);
}

std::vector<CounterValue> EngineHandle::counters() const {
  const Engine& target = engine();
  const py::gil_scoped_release release;
  return target.counters();
}

OperationId EngineHandle::post_send(py::handle tensor, const SendArguments& arguments) {
  Engine& target = engine();
  const std::uint16_t to = peer_rank(arguments.to);
  TensorView view =
      lend([&] { return "send of tag " + std::to_string(arguments.tag) + " to rank " + std::to_string(to); }, tensor,
           false, arguments.dtype);
  const OperationId operation = naming_tensor(view, [&] {
    const SendOptions options{.to = to,
                              .tag = arguments.tag,
                              .data = {view.data(), view.bytes()},
                              .element = view.element(),
                              .layer = arguments.layer,
                              .layers = arguments.layers,
                              .tags = copy_tags(arguments.tags),
                              .by_magnitude = arguments.by_magnitude && is_floating_point(view.element()),
                              .timeout_ns = arguments.timeout_ns};
    const py::gil_scoped_release release;  // the post sends
    return target.post_send(options);
  });
  pins_.add(operation, make_pin(std::move(view)));
  return operation;
}

OperationId EngineHandle::post_recv(py::handle tensor, const ReceiveArguments& arguments) {
  Engine& target = engine();
  const std::uint16_t from = peer_rank(arguments.from);
  TensorView view =
      lend([&] { return "receive of tag " + std::to_string(arguments.tag) + " from rank " + std::to_string(from); },
           tensor, true, arguments.dtype);
  const OperationId operation = naming_tensor(view, [&] {
    const py::gil_scoped_release release;
    return target.post_recv(ReceiveOptions{.from = from,
                                           .tag = arguments.tag,
                                           .data = {view.data(), view.bytes()},
                                           .element = view.element(),
                                           .loss_bound = arguments.loss_bound,
                                           .keep_missing = arguments.keep_missing,
                                           .eager = arguments.eager,
                                           .deadline_ns = arguments.deadline_ns,
                                           .timeout_ns = arguments.timeout_ns});
  });
  pins_.add(operation, make_pin(std::move(view)));
  return operation;
}

std::vector<Completion> EngineHandle::poll(std::size_t max_completions) {
  Engine& target = engine();
  std::vector<Completion> finished = [&] {
    const py::gil_scoped_release release;
    return target.poll(max_completions);
  }();
  std::vector<Completion> taken;
  for (Completion& completion : finished) {
    hand_back(completion, pins_.take(completion.operation));
    const auto waiter = waited_.find(completion.operation);
    if (waiter == waited_.end()) {
      taken.push_back(std::move(completion));
    } else {
      waiter->second = std::move(completion);
    }
  }
  return taken;
}

std::optional<Completion> EngineHandle::wait(OperationId operation, std::int64_t timeout_ns) {
  Engine& target = engine();
  const auto [entry, is_first] = waited_.try_emplace(operation);
  if (!is_first) {
    throw Error(ErrorCode::kUnknownOperation,
                name() + ": another thread waits for operation " + std::to_string(operation));
  }
  // Node-based: the reference survives other waits that come and go meanwhile.
  std::optional<Completion>& met_by_poll = entry->second;
  struct Leave {
    std::unordered_map<OperationId, std::optional<Completion>>& waited;
    OperationId operation;
    ~Leave() { waited.erase(operation); }
  } const leave{waited_, operation};
  std::optional<Completion> completion;
  try {
    completion = wait_in_slices(timeout_ns, [&](std::int64_t slice_ns) { return target.wait(operation, slice_ns); });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnknownOperation || !met_by_poll) throw;
  }
  if (completion) {
    hand_back(*completion, pins_.take(operation));
  } else {
    completion = std::move(met_by_poll);
  }
  return completion;
}

void EngineHandle::use_services(const std::vector<std::uint16_t>& ranks, std::uint16_t workers) {
  Engine& target = engine();
  const py::gil_scoped_release release;
  target.use_services(ranks, workers);
}

void EngineHandle::cancel(OperationId operation) {
  Engine& target = engine();
  const py::gil_scoped_release release;
  target.cancel(operation);
}

OperationId EngineHandle::push_pull(py::handle tensor, const PushPullArguments& arguments) {
  Engine& target = engine();
  const auto what = [&] { return "push-pull of key " + std::to_string(arguments.key); };
  const bool in_place = arguments.output.is_none() || arguments.output.is(tensor);
  Pin pin = make_pin(lend(what, tensor, in_place, {}));
  if (!in_place) pin.views.push_back(lend(what, arguments.output, true, {}));
  const TensorView& input = pin.views.front();
  const TensorView& output = pin.views.back();
  const OperationId operation = naming_tensor(input, [&] {
    const auto refuse = [&](const std::string& why) {
      throw Error(ErrorCode::kBuffer, name() + ": " + what() + " was refused: " + why);
    };
    if (input.element() != Element::kFloat32) refuse("the services sum float32; convert the tensor");
    if (output.element() != Element::kFloat32 || output.bytes() != input.bytes()) {
      refuse("`out` is " + output.description() + "; it must be float32 and hold as many elements as the input");
    }
    if (overlap(input, output) && output.data() != input.data()) {
      refuse("`out` overlaps the input in part; pass the same memory or separate memory");
    }
    const PushPullOptions options{.key = arguments.key,
                                  .input = {reinterpret_cast<const float*>(input.data()), input.element_count()},
                                  .output = {reinterpret_cast<float*>(output.data()), output.element_count()},
                                  .loss_bound = arguments.loss_bound,
                                  .average = arguments.average,
                                  .layer = arguments.layer,
                                  .layers = arguments.layers,
                                  .timeout_ns = arguments.timeout_ns};
    const py::gil_scoped_release release;
    return target.push_pull(options);
  });
  pins_.add(operation, std::move(pin));
  return operation;
}

std::optional<PushPullResult> EngineHandle::next_push_pull(std::int64_t timeout_ns) {
  Engine& target = engine();
  std::optional<PushPullResult> result = [&] {
    const py::gil_scoped_release release;
    return target.next_push_pull(timeout_ns);
  }();
  if (result) hand_back(*result, pins_.take(result->operation));
  return result;
}

void EngineHandle::serve(std::uint16_t workers) {
  Engine& target = engine();
  const py::gil_scoped_release release;
  target.serve(workers);
}

bool EngineHandle::wait_workers_gone(std::int64_t timeout_ns) {
  Engine& target = engine();
  return wait_in_slices(timeout_ns, [&](std::int64_t slice_ns) { return target.wait_workers_gone(slice_ns); });
}

}  // namespace mlt::bindings
