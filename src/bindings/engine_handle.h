// An mlt::Engine for Python: pins the tensors of operations in progress, releases the GIL where a call may take long,
// lets Ctrl-C interrupt waits, and does nothing in forked children.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/tensor_view.h"
#include "mlt.h"

namespace mlt::bindings {

// References that an operation holds to Python objects. The engine keeps them and returns them with the completion;
// created and destroyed with the GIL held.
struct Lent {
  explicit Lent(TensorView view) { views.push_back(std::move(view)); }
  explicit Lent(std::vector<TensorView> list) : views(std::move(list)), is_list(true) {}

  std::vector<TensorView> views;  // the first is named in errors; empty once returned to the caller
  bool is_list = false;           // carried as one: the operation's name has their number
  py::object handle;
};

struct SendArguments {
  std::int64_t to;
  std::uint64_t tag;
  std::uint32_t layer;
  std::uint32_t layers;
  py::object priorities;  // None, or one uint8 per segment
  bool by_magnitude;
  std::int64_t timeout_ns;
  std::string dtype;
};

struct ReceiveArguments {
  std::int64_t from;
  std::uint64_t tag;
  double loss_bound;
  bool keep_missing;
  bool eager;
  std::int64_t deadline_ns;
  std::int64_t timeout_ns;
  std::string dtype;
  bool up_to;
};

struct PushPullArguments {
  py::object handle;  // kept for the completion
  py::object output;  // None: in place
  std::uint64_t key;
  double loss_bound;
  bool lossy_results;
  bool average;
  std::uint32_t layer;
  std::uint32_t layers;
  std::int64_t timeout_ns;
};

struct CollectiveArguments {
  std::vector<std::int64_t> ranks;
  std::uint32_t stream;
  double loss_bound;
  std::uint32_t layer;
  std::uint32_t layers;
  std::int64_t timeout_ns;
  std::string dtype;
  bool check_finite = false;
};

class EngineHandle {
 public:
  explicit EngineHandle(const Options& options);
  ~EngineHandle();
  EngineHandle(const EngineHandle&) = delete;
  EngineHandle& operator=(const EngineHandle&) = delete;

  // The engine, unless this process is a fork of the one that owns it (throws Error(kClosed)).
  Engine& engine() const;
  void connect(const std::vector<PeerAddress>& peers, std::int64_t timeout_ns);
  void close(const std::string& failure);
  // For an interpreter that ends: as close(), but without a failure the peers receive the exit status of the process.
  // Waits for other threads to return from calls, at most 1 s.
  void close_at_exit(const std::string& failure);
  bool is_closed() const { return closed_; }
  std::size_t pinned() const { return engine_->lending(); }

  std::uint32_t segment_count(std::int64_t peer, std::uint64_t total_bytes) const;
  std::uint32_t segment_bytes(std::int64_t peer) const;
  std::vector<std::uint16_t> awaited_ranks(OperationId operation) const;
  bool is_peer_up(std::int64_t peer) const;
  bool has_peer_left(std::int64_t peer) const;
  std::string peer_failure(std::int64_t peer) const;
  double rate_bits_per_second(std::int64_t peer) const;
  std::vector<PathStatus> paths(std::int64_t peer) const;
  std::vector<CounterValue> counters() const;

  OperationId post_send(py::handle tensor, const SendArguments& arguments);
  OperationId post_recv(py::handle tensor, const ReceiveArguments& arguments);
  // Throws what post_sends() throws of the list, and posts nothing: before Python code of the caller uses it.
  void check_sends(py::handle transfers, const std::string& dtype) const;
  // Posts all or none. `transfers`: tuples of tensor, rank and, unless it is 0, tag, which replace those of `common`.
  // `priorities`: None, or one entry for each transfer, as in SendArguments.
  std::vector<OperationId> post_sends(py::handle transfers, const SendArguments& common, const py::object& priorities);
  std::vector<OperationId> post_recvs(py::handle transfers, const ReceiveArguments& common);
  // `tensor` may be a list of tensors, which are carried as one.
  OperationId post_all_reduce(py::handle tensor, Reduction reduction, Algorithm algorithm, bool lossy_results,
                              const CollectiveArguments& arguments);
  // Parts in elements; empty: equal parts.
  OperationId post_all_to_all(py::handle output, py::handle input, std::vector<std::uint64_t> output_parts,
                              std::vector<std::uint64_t> input_parts, const CollectiveArguments& arguments);
  // `output` must be None except at the root.
  OperationId post_gather(py::handle input, py::handle output, std::int64_t root, const CollectiveArguments& arguments);
  OperationId post_all_gather(py::handle output, py::handle input, Algorithm algorithm,
                              const CollectiveArguments& arguments);
  OperationId post_reduce_scatter(py::handle output, py::handle input, Reduction reduction, Algorithm algorithm,
                                  const CollectiveArguments& arguments);
  // `tensor` may be a list.
  OperationId post_broadcast(py::handle tensor, std::int64_t root, Algorithm algorithm,
                             const CollectiveArguments& arguments);
  OperationId post_reduce(py::handle input, py::handle output, std::int64_t root, Reduction reduction,
                          Algorithm algorithm, const CollectiveArguments& arguments);
  // `input` must be None except at the root.
  OperationId post_scatter(py::handle output, py::handle input, std::int64_t root,
                           const CollectiveArguments& arguments);
  OperationId post_barrier(const CollectiveArguments& arguments, const std::string& end_of_group);
  void cancel(OperationId operation, const std::string& reason);
  std::vector<Completion> poll(std::size_t max_completions);
  // `on_quiet(seconds)`, unless it is None, is called once for every second that the wait has lasted.
  std::optional<Completion> wait(OperationId operation, std::int64_t timeout_ns, const py::object& on_quiet);
  // The same of several, which are taken together or, if the time passes first, not at all.
  std::optional<std::vector<Completion>> wait_all(const std::vector<OperationId>& operations, std::int64_t timeout_ns,
                                                  const py::object& on_quiet);
  bool watch(OperationId operation);
  std::optional<Completion> next_watched(std::int64_t timeout_ns);
  std::optional<bool> is_done(OperationId operation) const;

  void set_hosts(const std::vector<std::uint16_t>& hosts);
  void use_services(const std::vector<std::uint16_t>& ranks, std::uint16_t workers, std::uint16_t max_dead_services,
                    const std::vector<double>& loads);
  OperationId push_pull(py::handle tensor, const PushPullArguments& arguments);
  void serve(std::uint16_t workers, std::uint16_t max_dead_workers, std::int64_t max_wait_ns);
  std::vector<std::string> take_notices();
  std::string take_exclusion();
  bool wait_workers_gone(std::int64_t timeout_ns);

 private:
  // A call of the engine without the GIL, counted until its thread has the GIL again. Of a closed engine it is short,
  // and keeps the GIL: the interpreter may be about to end.
  class CallWithoutGil {
   public:
    explicit CallWithoutGil(const EngineHandle& handle) : counted_(handle.calls_without_gil_) {
      if (!handle.closed_) release_.emplace();
    }

   private:
    struct Counted {
      explicit Counted(std::atomic<int>& all) : calls(all) { calls.fetch_add(1); }
      ~Counted() { calls.fetch_sub(1); }
      Counted(const Counted&) = delete;
      Counted& operator=(const Counted&) = delete;
      std::atomic<int>& calls;
    };
    Counted counted_;
    std::optional<py::gil_scoped_release> release_;
  };

  // A post sends packets, and may wait for the loop's lock.
  template <typename Post>
  OperationId without_gil(Post&& post) const;
  std::uint16_t peer_rank(std::int64_t rank) const;
  [[noreturn]] void refuse_peer(const std::string& rank) const;
  std::string name() const { return "rank " + std::to_string(rank_); }
  // Validates the group and fills the fields common to all collectives in `options`.
  void fill(CollectiveOptions& options, const std::string& what, const CollectiveArguments& arguments) const;
  std::uint16_t root_rank(const std::string& what, std::int64_t root) const;
  // Lends the input and the output of a collective, of which one may be None, and fills their fields in `options`.
  template <typename Options>
  void lend_buffers(Options& options, const std::string& what, py::handle input, py::handle output,
                    const std::string& dtype) const;
  // Lends the tensor of a collective that works in place, or each of a list, and fills their fields in `options`.
  template <typename Options>
  void lend_in_place(Options& options, const std::string& what, py::handle tensor, bool writable,
                     const std::string& dtype) const;
  // Lends the tensor. The error of a rejected one names the operation, which `name_operation` composes only then.
  template <typename Name>
  TensorView lend(Name&& name_operation, py::handle tensor, bool writable, const std::string& dtype) const {
    try {
      return TensorView(tensor, writable, dtype);
    } catch (const Error& error) {
      refuse_tensor(name_operation(), error);
    }
  }
  template <typename OptionsOf, typename PostOptions>
  OperationId post_tensor(TensorView view, OptionsOf&& options_of, OperationId (Engine::*post)(const PostOptions&));
  SendOptions send_options(const TensorView& view, std::uint16_t to, std::uint64_t tag,
                           const SendArguments& arguments) const;
  ReceiveOptions receive_options(const TensorView& view, std::uint16_t from, std::uint64_t tag,
                                 const ReceiveArguments& arguments) const;
  template <typename Each>
  void for_each_transfer(py::handle transfers, const char* function, bool writable, const std::string& dtype,
                         Each&& each) const;
  template <typename OptionsOf>
  auto list_of(py::handle transfers, const char* function, bool writable, const std::string& dtype,
               OptionsOf&& options_of) const;
  template <typename Wait>
  auto wait_without_gil(const py::object& on_quiet, Wait&& wait) const;
  [[noreturn]] void refuse_tensor(const std::string& operation, const Error& error) const;
  // Whether this process is a fork of the one that created this object.
  bool is_fork() const;

  std::shared_ptr<Engine> engine_;
  std::uint16_t rank_;
  std::uint16_t ranks_;
  std::uint32_t owner_;  // fork count of the process that created this object
  mutable std::atomic<int> calls_without_gil_{0};
  bool closed_ = false;
  bool exits_ = false;  // the interpreter ends
};

}  // namespace mlt::bindings
