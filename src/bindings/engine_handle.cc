#include "bindings/engine_handle.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <type_traits>
#include <utility>

#include "bindings/process_exit.h"
#include "engine/error_text.h"

namespace mlt::bindings {

namespace {

// Number of forks between this process and the one that loaded the library: a load, where getpid() is a system call.
std::atomic<std::uint32_t> forks{0};
const int watches_forks = ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });

// Runs `post`, and adds the tensor to the error that it throws. The engine adds rank, peer and tag.
template <typename Post>
auto naming_tensor(const TensorView& view, Post&& post) {
  try {
    return std::forward<Post>(post)();
  } catch (const Error& error) {
    throw Error(error.code(), error.what() + (" (tensor " + view.description() + ")"), error.peer());
  }
}

// Max delay of a pending Ctrl-C in wait_workers_gone().
constexpr std::int64_t kSignalSliceNs = 100'000'000;

// Max time in which calls that the end of their operations wakes return to Python: 1 s.
constexpr std::chrono::milliseconds kReturnWait{1};
constexpr int kMaxReturnWaits = 1'000;

// Checks for signals from a thread that runs without the GIL.
void look_for_signals() {
  const py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

std::vector<SegmentPriority> copy_priorities(py::handle priorities) {
  if (priorities.is_none()) return {};
  const TensorView view(priorities, false, {});
  if (view.element() != Element::kUint8) {
    throw Error(ErrorCode::kBuffer, "segment priorities must be uint8, one per segment, not " + view.description());
  }
  std::vector<SegmentPriority> copy(view.bytes());
  if (!copy.empty()) std::memcpy(copy.data(), view.data(), copy.size());
  return copy;
}

// Returns the memory to the caller; the error of a failed operation names the tensor.
void hand_back(Completion& done) {
  auto* const lent = static_cast<Lent*>(done.lent.get());
  if (lent == nullptr) return;
  if (done.failed() && !lent->views.empty() && !lent->is_list)
    done.error += " (tensor " + lent->views.front().description() + ")";
  // Dropping them may run Python code, which must find the completion in a valid state.
  const std::vector<TensorView> views = std::exchange(lent->views, {});
  if (!lent->handle) done.lent.reset();
}

std::string send_name(std::uint64_t tag, std::uint16_t to) {
  return "send of tag " + std::to_string(tag) + " to rank " + std::to_string(to);
}

std::string receive_name(std::uint64_t tag, std::uint16_t from) {
  return "receive of tag " + std::to_string(tag) + " from rank " + std::to_string(from);
}

// One of a list of transfers.
struct Transfer {
  py::object tensor;
  py::object peer;  // an int
  std::uint64_t tag = 0;
};

// The int that an object with __index__ stands for; nothing if it has no such method. Throws what that method raises.
py::object integer(py::handle object) {
  auto index = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
  if (index) return index;
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
  PyErr_Clear();
  return index;
}

// Empty if it is beyond 64 bits. `index` is an int.
std::optional<std::int64_t> value_of(py::handle index) {
  int overflow = 0;
  const std::int64_t value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) return std::nullopt;
  return value;
}

// Entries (tensor, rank) and (tensor, rank, tag). Throws TypeError or Error(kConfig), and names the entry's number.
std::vector<Transfer> read_transfers(py::handle transfers, const char* function) {
  const std::string name = function;
  // A copy: Python code that runs below (__index__ of a rank, the buffer of a tensor) may change the caller's list.
  const auto list = py::reinterpret_steal<py::object>(PySequence_Tuple(transfers.ptr()));
  if (!list) {
    if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
    PyErr_Clear();
    throw py::type_error(name + "() takes a list of tuples (tensor, rank, tag), not a " +
                         Py_TYPE(transfers.ptr())->tp_name);
  }
  const auto count = static_cast<std::size_t>(PyTuple_GET_SIZE(list.ptr()));
  std::vector<Transfer> all;
  all.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto place = [&] { return name + "(): number " + std::to_string(i + 1) + " of the list "; };
    PyObject* const entry = PyTuple_GET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i));
    const Py_ssize_t parts = PyTuple_Check(entry) != 0 ? PyTuple_GET_SIZE(entry) : 0;
    if (parts != 2 && parts != 3)
      throw py::type_error(place() + "is not a tuple (tensor, rank) or (tensor, rank, tag)");
    Transfer one;
    one.tensor = py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(entry, 0));
    one.peer = integer(PyTuple_GET_ITEM(entry, 1));
    if (!one.peer) throw py::type_error(place() + "has a rank that is not an integer");
    if (parts == 3) {
      const py::object given = integer(PyTuple_GET_ITEM(entry, 2));
      if (!given) throw py::type_error(place() + "has a tag that is not an integer");
      const std::optional<std::int64_t> tag = value_of(given);
      if (!tag || *tag < 0) {
        throw Error(ErrorCode::kConfig,
                    place() + "has tag " + std::string(py::str(given)) + "; tags are integers in [0, 2**63)");
      }
      one.tag = static_cast<std::uint64_t>(*tag);
    }
    all.push_back(std::move(one));
  }
  return all;
}

bool overlap(const TensorView& a, const TensorView& b) {
  return a.data() < b.data() + b.bytes() && b.data() < a.data() + a.bytes();
}

}  // namespace

EngineHandle::EngineHandle(const Options& options)
    : engine_(std::make_shared<Engine>(options)), rank_(options.rank), ranks_(options.ranks), owner_(forks.load()) {
  engine_->set_on_wait(look_for_signals);
  if (watches_forks != 0) throw Error(ErrorCode::kSystem, name() + ": pthread_atfork() failed: out of memory");
}

EngineHandle::~EngineHandle() {
  if (is_fork()) {
    // The I/O thread did not survive the fork: joining it would hang, and only the parent may send its goodbye.
    static_cast<void>(new std::shared_ptr<Engine>(std::move(engine_)));
    return;
  }
  if (exits_) return;
  {
    const py::gil_scoped_release release;
    engine_->close();
  }
  engine_->take_lent().clear();
  const py::gil_scoped_release release;
  engine_.reset();
}

bool EngineHandle::is_fork() const { return forks.load(std::memory_order_relaxed) != owner_; }

Engine& EngineHandle::engine() const {
  if (is_fork()) {
    throw Error(ErrorCode::kClosed, name() +
                                        ": this context belongs to the parent process; create a new one after fork, "
                                        "or start the process with the spawn method");
  }
  return *engine_;
}

std::uint16_t EngineHandle::peer_rank(std::int64_t rank) const {
  if (rank < 0 || rank >= ranks_ || rank == rank_) refuse_peer(std::to_string(rank));
  return static_cast<std::uint16_t>(rank);
}

void EngineHandle::refuse_peer(const std::string& rank) const {
  throw Error(ErrorCode::kUnknownPeer, name() + ": rank " + rank + " is not a peer: the job has " +
                                           engine::rank_range(0, ranks_) + ", and a rank has no transfers with itself");
}

void EngineHandle::refuse_tensor(const std::string& operation, const Error& error) const {
  throw Error(error.code(), name() + ": " + operation + " was rejected: " + error.what(), error.peer());
}

void EngineHandle::connect(const std::vector<PeerAddress>& peers, std::int64_t timeout_ns) {
  Engine& target = engine();
  const CallWithoutGil call(*this);
  target.connect(peers, timeout_ns);
}

void EngineHandle::close_at_exit(const std::string& failure) {
  if (is_fork() || closed_ || exits_) return;
  exits_ = true;
  {
    const py::gil_scoped_release release;
    if (failure.empty()) {
      bindings::close_at_exit(engine_);
    } else {
      engine_->close(failure);
    }
  }
  closed_ = true;  // calls from here on keep the GIL
  {
    const py::gil_scoped_release release;
    // An interpreter that ends kills threads as they take the GIL: inside a call of C++ that aborts the process.
    for (int waits = 0; calls_without_gil_ > 0 && waits < kMaxReturnWaits; ++waits)
      std::this_thread::sleep_for(kReturnWait);
  }
  engine_->take_lent().clear();
}

void EngineHandle::close(const std::string& failure) {
  if (is_fork() || exits_) return;
  {
    const CallWithoutGil call(*this);
    engine_->close(failure);
  }
  closed_ = true;
  engine_->take_lent().clear();
}

std::uint32_t EngineHandle::segment_count(std::int64_t peer, std::uint64_t total_bytes) const {
  const Engine& target = engine();
  const std::uint16_t rank = peer_rank(peer);
  const CallWithoutGil call(*this);  // on first use it waits for the connection
  return target.segment_count(rank, total_bytes);
}

std::uint32_t EngineHandle::segment_bytes(std::int64_t peer) const {
  const Engine& target = engine();
  const std::uint16_t rank = peer_rank(peer);
  const CallWithoutGil call(*this);  // on first use it waits for the connection
  return target.segment_bytes(rank);
}

std::vector<std::uint16_t> EngineHandle::awaited_ranks(OperationId operation) const {
  const Engine& target = engine();
  const CallWithoutGil call(*this);
  return target.awaited_ranks(operation);
}

bool EngineHandle::is_peer_up(std::int64_t peer) const { return engine().is_peer_up(peer_rank(peer)); }

bool EngineHandle::has_peer_left(std::int64_t peer) const { return engine().has_peer_left(peer_rank(peer)); }

std::vector<PathStatus> EngineHandle::paths(std::int64_t peer) const {
  const Engine& target = engine();
  const std::uint16_t rank = peer_rank(peer);
  const CallWithoutGil call(*this);
  return target.paths(rank);
}

std::string EngineHandle::peer_failure(std::int64_t peer) const { return engine().peer_failure(peer_rank(peer)); }

double EngineHandle::rate_bits_per_second(std::int64_t peer) const {
  const Engine& target = engine();
  const std::uint16_t rank = peer_rank(peer);
  const CallWithoutGil call(*this);
  return target.rate_bits_per_second(rank);
}

std::vector<CounterValue> EngineHandle::counters() const {
  const Engine& target = engine();
  const CallWithoutGil call(*this);
  return target.counters();
}

// Posts the transfer of one tensor without the GIL, because the post sends. `options_of(view)` returns the options of
// the engine's `post`.
template <typename OptionsOf, typename PostOptions>
OperationId EngineHandle::post_tensor(TensorView view, OptionsOf&& options_of,
                                      OperationId (Engine::*post)(const PostOptions&)) {
  Engine& target = engine();
  const auto lent = std::make_shared<Lent>(std::move(view));
  return naming_tensor(lent->views.front(), [&] {
    PostOptions options = options_of(lent->views.front());
    options.lent = lent;
    const CallWithoutGil call(*this);
    return (target.*post)(options);
  });
}

SendOptions EngineHandle::send_options(const TensorView& view, std::uint16_t to, std::uint64_t tag,
                                       const SendArguments& arguments) const {
  return SendOptions{.to = to,
                     .tag = tag,
                     .data = {view.data(), view.bytes()},
                     .element = view.element(),
                     .layer = arguments.layer,
                     .layers = arguments.layers,
                     .priorities = copy_priorities(arguments.priorities),
                     .by_magnitude = arguments.by_magnitude && is_floating_point(view.element()),
                     .timeout_ns = arguments.timeout_ns,
                     .lent = nullptr};
}

ReceiveOptions EngineHandle::receive_options(const TensorView& view, std::uint16_t from, std::uint64_t tag,
                                             const ReceiveArguments& arguments) const {
  return ReceiveOptions{.from = from,
                        .tag = tag,
                        .data = {view.data(), view.bytes()},
                        .element = view.element(),
                        .up_to = arguments.up_to,
                        .loss_bound = arguments.loss_bound,
                        .keep_missing = arguments.keep_missing,
                        .eager = arguments.eager,
                        .deadline_ns = arguments.deadline_ns,
                        .timeout_ns = arguments.timeout_ns,
                        .lent = nullptr};
}

OperationId EngineHandle::post_send(py::handle tensor, const SendArguments& arguments) {
  engine();  // rejects the call in a fork first
  const std::uint16_t to = peer_rank(arguments.to);
  const auto what = [&] { return send_name(arguments.tag, to); };
  return post_tensor(
      lend(what, tensor, false, arguments.dtype),
      [&](const TensorView& view) { return send_options(view, to, arguments.tag, arguments); }, &Engine::post_send);
}

OperationId EngineHandle::post_recv(py::handle tensor, const ReceiveArguments& arguments) {
  engine();  // rejects the call in a fork first
  const std::uint16_t from = peer_rank(arguments.from);
  const auto what = [&] { return receive_name(arguments.tag, from); };
  return post_tensor(
      lend(what, tensor, true, arguments.dtype),
      [&](const TensorView& view) { return receive_options(view, from, arguments.tag, arguments); },
      &Engine::post_recv);
}

// Calls `each(view, rank, tag, place)` for each of a list of transfers, with a TensorView to keep.
template <typename Each>
void EngineHandle::for_each_transfer(py::handle transfers, const char* function, bool writable,
                                     const std::string& dtype, Each&& each) const {
  const std::vector<Transfer> all = read_transfers(transfers, function);
  for (std::size_t place = 0; place < all.size(); ++place) {
    const Transfer& one = all[place];
    try {
      const std::optional<std::int64_t> rank = value_of(one.peer);
      if (!rank) refuse_peer(std::string(py::str(one.peer)));
      const std::uint16_t peer = peer_rank(*rank);
      const auto what = [&] { return writable ? receive_name(one.tag, peer) : send_name(one.tag, peer); };
      each(lend(what, one.tensor, writable, dtype), peer, one.tag, place);
    } catch (const Error& error) {
      throw Error(error.code(),
                  std::string(error.what()) + " (number " + std::to_string(place + 1) + " of " +
                      std::to_string(all.size()) + " transfers, of which none was posted)",
                  error.peer());
    }
  }
}

void EngineHandle::check_sends(py::handle transfers, const std::string& dtype) const {
  engine();
  for_each_transfer(transfers, "post_sends", false, dtype,
                    [](TensorView&&, std::uint16_t, std::uint64_t, std::size_t) {});
}

// The options of each of a list of transfers. `options_of(view, rank, tag, place)` returns them without `lent`.
template <typename OptionsOf>
auto EngineHandle::list_of(py::handle transfers, const char* function, bool writable, const std::string& dtype,
                           OptionsOf&& options_of) const {
  using Options = std::invoke_result_t<OptionsOf, const TensorView&, std::uint16_t, std::uint64_t, std::size_t>;
  std::vector<Options> list;
  for_each_transfer(transfers, function, writable, dtype,
                    [&](TensorView&& view, std::uint16_t peer, std::uint64_t tag, std::size_t place) {
                      const auto lent = std::make_shared<Lent>(std::move(view));
                      list.push_back(options_of(lent->views.front(), peer, tag, place));
                      list.back().lent = lent;
                    });
  return list;
}

std::vector<OperationId> EngineHandle::post_sends(py::handle transfers, const SendArguments& common,
                                                  const py::object& priorities) {
  Engine& target = engine();
  const auto options_of = [&](const TensorView& view, std::uint16_t to, std::uint64_t tag, std::size_t place) {
    SendOptions options = send_options(view, to, tag, common);
    if (!priorities.is_none()) options.priorities = copy_priorities(priorities[py::int_(place)]);
    return options;
  };
  const std::vector<SendOptions> list = list_of(transfers, "post_sends", false, common.dtype, options_of);
  const CallWithoutGil call(*this);
  return target.post_sends(list);
}

std::vector<OperationId> EngineHandle::post_recvs(py::handle transfers, const ReceiveArguments& common) {
  Engine& target = engine();
  const auto options_of = [&](const TensorView& view, std::uint16_t from, std::uint64_t tag, std::size_t) {
    return receive_options(view, from, tag, common);
  };
  const std::vector<ReceiveOptions> list = list_of(transfers, "post_recvs", true, common.dtype, options_of);
  const CallWithoutGil call(*this);
  return target.post_recvs(list);
}

std::vector<Completion> EngineHandle::poll(std::size_t max_completions) {
  Engine& target = engine();
  std::vector<Completion> finished = [&] {
    const CallWithoutGil call(*this);
    return target.poll(max_completions);
  }();
  for (Completion& done : finished) hand_back(done);
  return finished;
}

// Runs `wait(now_and_then)` without the GIL. `on_quiet(seconds)`, unless it is None, is called every second.
template <typename Wait>
auto EngineHandle::wait_without_gil(const py::object& on_quiet, Wait&& wait) const {
  const CallWithoutGil call(*this);
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  std::int64_t seconds = 0;
  return wait([&] {
    look_for_signals();
    const std::int64_t passed = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start).count();
    if (passed == seconds) return;
    const py::gil_scoped_acquire acquire;
    while (seconds < passed) {
      ++seconds;
      if (!on_quiet.is_none()) on_quiet(seconds);
    }
  });
}

std::optional<Completion> EngineHandle::wait(OperationId operation, std::int64_t timeout_ns,
                                             const py::object& on_quiet) {
  Engine& target = engine();
  std::optional<Completion> done = wait_without_gil(
      on_quiet, [&](const auto& now_and_then) { return target.wait(operation, timeout_ns, now_and_then); });
  if (done) hand_back(*done);
  return done;
}

std::optional<std::vector<Completion>> EngineHandle::wait_all(const std::vector<OperationId>& operations,
                                                              std::int64_t timeout_ns, const py::object& on_quiet) {
  Engine& target = engine();
  std::optional<std::vector<Completion>> done = wait_without_gil(
      on_quiet, [&](const auto& now_and_then) { return target.wait_all(operations, timeout_ns, now_and_then); });
  if (done) {
    for (Completion& one : *done) hand_back(one);
  }
  return done;
}

bool EngineHandle::watch(OperationId operation) { return engine().watch(operation); }

std::optional<Completion> EngineHandle::next_watched(std::int64_t timeout_ns) {
  Engine& target = engine();
  std::optional<Completion> done = [&] {
    const CallWithoutGil call(*this);
    return target.next_watched(timeout_ns);
  }();
  if (done) hand_back(*done);
  return done;
}

std::optional<bool> EngineHandle::is_done(OperationId operation) const { return engine().is_done(operation); }

void EngineHandle::set_hosts(const std::vector<std::uint16_t>& hosts) { engine().set_hosts(hosts); }

void EngineHandle::use_services(const std::vector<std::uint16_t>& ranks, std::uint16_t workers,
                                std::uint16_t max_dead_services, const std::vector<double>& loads) {
  Engine& target = engine();
  const CallWithoutGil call(*this);
  target.use_services(ranks, workers, max_dead_services, loads);
}

void EngineHandle::cancel(OperationId operation, const std::string& reason) {
  Engine& target = engine();
  const CallWithoutGil call(*this);
  target.cancel(operation, reason);
}

OperationId EngineHandle::push_pull(py::handle tensor, const PushPullArguments& arguments) {
  Engine& target = engine();
  const auto what = [&] { return "push-pull of key " + std::to_string(arguments.key); };
  const bool in_place = arguments.output.is_none() || arguments.output.is(tensor);
  const auto lent = std::make_shared<Lent>(lend(what, tensor, in_place, {}));
  if (!in_place) lent->views.push_back(lend(what, arguments.output, true, {}));
  lent->handle = arguments.handle;
  const TensorView& input = lent->views.front();
  const TensorView& output = lent->views.back();
  return naming_tensor(input, [&] {
    const auto refuse = [&](const std::string& why) {
      throw Error(ErrorCode::kBuffer, name() + ": " + what() + " was rejected: " + why);
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
                                  .lossy_results = arguments.lossy_results,
                                  .average = arguments.average,
                                  .layer = arguments.layer,
                                  .layers = arguments.layers,
                                  .timeout_ns = arguments.timeout_ns,
                                  .lent = lent};
    const CallWithoutGil call(*this);
    return target.push_pull(options);
  });
}

void EngineHandle::serve(std::uint16_t workers, std::uint16_t max_dead_workers, std::int64_t max_wait_ns) {
  Engine& target = engine();
  const CallWithoutGil call(*this);
  target.serve(workers, {.max_dead_workers = max_dead_workers, .max_wait_ns = max_wait_ns});
}

std::vector<std::string> EngineHandle::take_notices() { return engine().take_notices(); }
std::string EngineHandle::take_exclusion() { return engine().take_exclusion(); }

bool EngineHandle::wait_workers_gone(std::int64_t timeout_ns) {
  Engine& target = engine();
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const CallWithoutGil call(*this);
  while (true) {
    std::int64_t left = kSignalSliceNs;
    if (timeout_ns >= 0) {
      const std::int64_t passed = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
      left = std::clamp<std::int64_t>(timeout_ns - passed, 0, kSignalSliceNs);
    }
    if (target.wait_workers_gone(left)) return true;
    if (timeout_ns >= 0 && left < kSignalSliceNs) return false;
    look_for_signals();
  }
}

}  // namespace mlt::bindings
