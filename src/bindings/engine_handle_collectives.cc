// The collectives of a Python engine: lends the tensors, validates the groups, and posts to the engine.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/engine_handle.h"

namespace mlt::bindings {

namespace {

// A post sends packets, and may wait for the loop's lock.
template <typename Post>
OperationId without_gil(Post&& post) {
  const py::gil_scoped_release release;
  return post();
}

void to_bytes(std::vector<std::uint64_t>& parts, Element element) {
  for (std::uint64_t& part : parts) part *= element_bytes(element);
}

}  // namespace

void EngineHandle::fill(CollectiveOptions& options, const std::string& what,
                        const CollectiveArguments& arguments) const {
  for (const std::int64_t rank : arguments.ranks) {
    if (rank < 0 || rank >= ranks_) {
      throw Error(ErrorCode::kUnknownPeer, name() + ": " + what + " was rejected: rank " + std::to_string(rank) +
                                               " is not in the job, which has ranks 0 to " +
                                               std::to_string(ranks_ - 1));
    }
    options.ranks.push_back(static_cast<std::uint16_t>(rank));
  }
  options.stream = arguments.stream;
  options.loss_bound = arguments.loss_bound;
  options.layer = arguments.layer;
  options.layers = arguments.layers;
  options.timeout_ns = arguments.timeout_ns;
}

OperationId EngineHandle::post_all_reduce(py::handle tensor, Reduction reduction,
                                          const CollectiveArguments& arguments) {
  Engine& target = engine();
  const auto what = [] { return "all-reduce"; };
  TensorView view = lend(what, tensor, true, arguments.dtype);
  AllReduceOptions options;
  fill(options, what(), arguments);
  options.data = {view.data(), view.bytes()};
  options.element = view.element();
  options.reduction = reduction;
  const auto lent = std::make_shared<Lent>(std::move(view));
  options.lent = lent;
  return without_gil([&] { return target.post_all_reduce(options); });
}

OperationId EngineHandle::post_all_to_all(py::handle output, py::handle input, std::vector<std::uint64_t> output_parts,
                                          std::vector<std::uint64_t> input_parts,
                                          const CollectiveArguments& arguments) {
  Engine& target = engine();
  const auto what = [] { return "all-to-all"; };
  const auto lent = std::make_shared<Lent>(lend(what, input, false, arguments.dtype));
  lent->views.push_back(lend(what, output, true, arguments.dtype));
  const TensorView& from = lent->views.front();
  const TensorView& to = lent->views.back();
  if (from.element() != to.element()) {
    throw Error(ErrorCode::kBuffer, name() + ": all-to-all was rejected: the input is " + from.description() +
                                        ", the output " + to.description() + ": both need the same element type");
  }
  AllToAllOptions options;
  fill(options, what(), arguments);
  options.input = {from.data(), from.bytes()};
  options.output = {to.data(), to.bytes()};
  options.element = from.element();
  options.send_bytes = std::move(input_parts);
  options.receive_bytes = std::move(output_parts);
  to_bytes(options.send_bytes, from.element());
  to_bytes(options.receive_bytes, from.element());
  options.lent = lent;
  return without_gil([&] { return target.post_all_to_all(options); });
}

OperationId EngineHandle::post_gather(py::handle input, py::handle output, std::int64_t root,
                                      const CollectiveArguments& arguments) {
  Engine& target = engine();
  const auto what = [&] { return "gather to rank " + std::to_string(root); };
  if (root < 0 || root >= ranks_) {
    throw Error(ErrorCode::kUnknownPeer,
                name() + ": " + what() + " was rejected: the job has ranks 0 to " + std::to_string(ranks_ - 1));
  }
  const auto lent = std::make_shared<Lent>(lend(what, input, false, arguments.dtype));
  std::vector<TensorView>& views = lent->views;
  if (!output.is_none()) views.push_back(lend(what, output, true, arguments.dtype));
  if (views.front().element() != views.back().element()) {
    throw Error(ErrorCode::kBuffer, name() + ": " + what() + " was rejected: the input is " +
                                        views.front().description() + ", the output " + views.back().description() +
                                        ": both need the same element type");
  }
  GatherOptions options;
  fill(options, what(), arguments);
  options.root = static_cast<std::uint16_t>(root);
  options.input = {views.front().data(), views.front().bytes()};
  if (!output.is_none()) options.output = {views.back().data(), views.back().bytes()};
  options.element = views.front().element();
  options.lent = lent;
  return without_gil([&] { return target.post_gather(options); });
}

}  // namespace mlt::bindings
