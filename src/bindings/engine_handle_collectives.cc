// The collectives of a Python engine: lends the tensors, validates the groups, and posts to the engine.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/engine_handle.h"
#include "engine/error_text.h"

namespace mlt::bindings {

namespace {

void to_bytes(std::vector<std::uint64_t>& parts, Element element) {
  for (std::uint64_t& part : parts) part *= element_bytes(element);
}

}  // namespace

template <typename Post>
OperationId EngineHandle::without_gil(Post&& post) const {
  const CallWithoutGil call(*this);
  return std::forward<Post>(post)();
}

void EngineHandle::fill(CollectiveOptions& options, const std::string& what,
                        const CollectiveArguments& arguments) const {
  for (const std::int64_t rank : arguments.ranks) {
    if (rank < 0 || rank >= ranks_) {
      throw Error(ErrorCode::kUnknownPeer, name() + ": " + what + " was rejected: rank " + std::to_string(rank) +
                                               " is not in the job, which has " + engine::rank_range(0, ranks_));
    }
    options.ranks.push_back(static_cast<std::uint16_t>(rank));
  }
  options.stream = arguments.stream;
  options.loss_bound = arguments.loss_bound;
  options.layer = arguments.layer;
  options.layers = arguments.layers;
  options.timeout_ns = arguments.timeout_ns;
  options.check_finite = arguments.check_finite;
}

std::uint16_t EngineHandle::root_rank(const std::string& what, std::int64_t root) const {
  if (root < 0 || root >= ranks_) {
    throw Error(ErrorCode::kUnknownPeer,
                name() + ": " + what + " was rejected: the job has " + engine::rank_range(0, ranks_));
  }
  return static_cast<std::uint16_t>(root);
}

template <typename Options>
void EngineHandle::lend_buffers(Options& options, const std::string& what, py::handle input, py::handle output,
                                const std::string& dtype) const {
  const auto rejected = [&](const std::string& why) {
    return Error(ErrorCode::kBuffer, name() + ": " + what + " was rejected: " + why);
  };
  if (input.is_none() && output.is_none()) throw rejected("it needs an input or an output");
  std::vector<TensorView> views;
  const auto lend_one = [&](py::handle tensor, bool writable, const std::string& note) -> const TensorView& {
    views.push_back(lend([&] { return what + note; }, tensor, writable, dtype));
    const TensorView& view = views.back();
    if (view.element() != views.front().element()) {
      throw rejected("the " + std::string(input.is_none() ? "output" : "input") + " is " + views.front().description() +
                     ", the " + (writable ? "output " : "input ") + view.description() +
                     ": both need the same element type");
    }
    return view;
  };
  // One tensor, or a list of one for each member.
  const auto lend_side = [&](py::handle side, bool writable, auto& one, auto* many) {
    if (side.is_none()) return;
    if (!py::isinstance<py::list>(side) && !py::isinstance<py::tuple>(side)) {
      const TensorView& view = lend_one(side, writable, "");
      one = {view.data(), view.bytes()};
      return;
    }
    const std::string direction = writable ? "output" : "input";
    if (many == nullptr) throw rejected("its " + direction + " has no part for each member: pass one tensor");
    std::size_t index = 0;
    for (const py::handle each : side) {
      const TensorView& view = lend_one(each, writable, ", " + direction + " " + std::to_string(index++) + ",");
      many->emplace_back(view.data(), view.bytes());
    }
    if (many->empty()) throw rejected("the list of tensors is empty");
  };
  std::vector<std::span<const std::byte>>* inputs = nullptr;
  std::vector<std::span<std::byte>>* outputs = nullptr;
  if constexpr (requires { options.inputs; }) inputs = &options.inputs;
  if constexpr (requires { options.outputs; }) outputs = &options.outputs;
  lend_side(input, false, options.input, inputs);
  lend_side(output, true, options.output, outputs);
  options.element = views.front().element();
  const auto lent = std::make_shared<Lent>(std::move(views));
  lent->is_list = false;  // not carried as one
  options.lent = lent;
}

template <typename Options>
void EngineHandle::lend_in_place(Options& options, const std::string& what, py::handle tensor, bool writable,
                                 const std::string& dtype) const {
  if (!py::isinstance<py::list>(tensor) && !py::isinstance<py::tuple>(tensor)) {
    TensorView view = lend([&] { return what; }, tensor, writable, dtype);
    options.data = {view.data(), view.bytes()};
    options.element = view.element();
    options.lent = std::make_shared<Lent>(std::move(view));
    return;
  }
  const auto rejected = [&](const std::string& why) {
    return Error(ErrorCode::kBuffer, name() + ": " + what + " was rejected: " + why);
  };
  std::vector<TensorView> views;
  for (const py::handle each : tensor) {
    const std::size_t index = views.size();
    views.push_back(
        lend([&] { return what + " of a list, tensor " + std::to_string(index) + ","; }, each, writable, dtype));
    const TensorView& view = views.back();
    if (view.element() != views.front().element()) {
      throw rejected("tensor 0 of the list is " + views.front().description() + ", tensor " + std::to_string(index) +
                     " " + view.description() + ": all need the same element type");
    }
    options.tensors.emplace_back(view.data(), view.bytes());
  }
  if (views.empty()) throw rejected("the list of tensors is empty");
  options.element = views.front().element();
  options.lent = std::make_shared<Lent>(std::move(views));
}

OperationId EngineHandle::post_all_reduce(py::handle tensor, Reduction reduction, Algorithm algorithm,
                                          bool lossy_results, const CollectiveArguments& arguments) {
  Engine& target = engine();
  AllReduceOptions options;
  fill(options, "all-reduce", arguments);
  lend_in_place(options, "all-reduce", tensor, true, arguments.dtype);
  options.reduction = reduction;
  options.algorithm = algorithm;
  options.lossy_results = lossy_results;
  return without_gil([&] { return target.post_all_reduce(options); });
}

OperationId EngineHandle::post_all_to_all(py::handle output, py::handle input, std::vector<std::uint64_t> output_parts,
                                          std::vector<std::uint64_t> input_parts,
                                          const CollectiveArguments& arguments) {
  Engine& target = engine();
  AllToAllOptions options;
  fill(options, "all-to-all", arguments);
  lend_buffers(options, "all-to-all", input, output, arguments.dtype);
  options.send_bytes = std::move(input_parts);
  options.receive_bytes = std::move(output_parts);
  to_bytes(options.send_bytes, options.element);
  to_bytes(options.receive_bytes, options.element);
  return without_gil([&] { return target.post_all_to_all(options); });
}

OperationId EngineHandle::post_gather(py::handle input, py::handle output, std::int64_t root,
                                      const CollectiveArguments& arguments) {
  Engine& target = engine();
  const std::string what = "gather to rank " + std::to_string(root);
  GatherOptions options;
  options.root = root_rank(what, root);
  fill(options, what, arguments);
  lend_buffers(options, what, input, output, arguments.dtype);
  return without_gil([&] { return target.post_gather(options); });
}

OperationId EngineHandle::post_all_gather(py::handle output, py::handle input, Algorithm algorithm,
                                          const CollectiveArguments& arguments) {
  Engine& target = engine();
  AllGatherOptions options;
  fill(options, "all-gather", arguments);
  lend_buffers(options, "all-gather", input, output, arguments.dtype);
  options.algorithm = algorithm;
  return without_gil([&] { return target.post_all_gather(options); });
}

OperationId EngineHandle::post_reduce_scatter(py::handle output, py::handle input, Reduction reduction,
                                              Algorithm algorithm, const CollectiveArguments& arguments) {
  Engine& target = engine();
  ReduceScatterOptions options;
  fill(options, "reduce-scatter", arguments);
  lend_buffers(options, "reduce-scatter", input, output, arguments.dtype);
  options.reduction = reduction;
  options.algorithm = algorithm;
  return without_gil([&] { return target.post_reduce_scatter(options); });
}

OperationId EngineHandle::post_broadcast(py::handle tensor, std::int64_t root, Algorithm algorithm,
                                         const CollectiveArguments& arguments) {
  Engine& target = engine();
  const std::string what = "broadcast from rank " + std::to_string(root);
  BroadcastOptions options;
  options.root = root_rank(what, root);
  fill(options, what, arguments);
  lend_in_place(options, what, tensor, root != rank_, arguments.dtype);
  options.algorithm = algorithm;
  return without_gil([&] { return target.post_broadcast(options); });
}

OperationId EngineHandle::post_reduce(py::handle input, py::handle output, std::int64_t root, Reduction reduction,
                                      Algorithm algorithm, const CollectiveArguments& arguments) {
  Engine& target = engine();
  const std::string what = "reduce to rank " + std::to_string(root);
  ReduceOptions options;
  options.root = root_rank(what, root);
  fill(options, what, arguments);
  lend_buffers(options, what, input, output, arguments.dtype);
  options.reduction = reduction;
  options.algorithm = algorithm;
  return without_gil([&] { return target.post_reduce(options); });
}

OperationId EngineHandle::post_scatter(py::handle output, py::handle input, std::int64_t root,
                                       const CollectiveArguments& arguments) {
  Engine& target = engine();
  const std::string what = "scatter from rank " + std::to_string(root);
  ScatterOptions options;
  options.root = root_rank(what, root);
  fill(options, what, arguments);
  lend_buffers(options, what, input, output, arguments.dtype);
  return without_gil([&] { return target.post_scatter(options); });
}

OperationId EngineHandle::post_barrier(const CollectiveArguments& arguments, const std::string& end_of_group) {
  Engine& target = engine();
  BarrierOptions options;
  options.end_of_group = end_of_group;
  fill(options, "barrier", arguments);
  return without_gil([&] { return target.post_barrier(options); });
}

}  // namespace mlt::bindings
