#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/engine_handle.h"
#include "bindings/register.h"
#include "mlt.h"

namespace mlt::bindings {

namespace {

// Without a default, so that the compiler asks for the name of each new one.
const char* enumerator(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return "SUM";
    case Reduction::kMean:
      return "MEAN";
    case Reduction::kMin:
      return "MIN";
    case Reduction::kMax:
      return "MAX";
    case Reduction::kProduct:
      return "PRODUCT";
    case Reduction::kAnd:
      return "AND";
    case Reduction::kOr:
      return "OR";
    case Reduction::kXor:
      return "XOR";
  }
  return "";
}

const char* enumerator(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAutomatic:
      return "AUTOMATIC";
    case Algorithm::kDirect:
      return "DIRECT";
    case Algorithm::kCentral:
      return "CENTRAL";
    case Algorithm::kRing:
      return "RING";
    case Algorithm::kHalving:
      return "HALVING";
    case Algorithm::kChain:
      return "CHAIN";
    case Algorithm::kTwoLevel:
      return "TWO_LEVEL";
  }
  return "";
}

}  // namespace

void register_reductions(py::module_& module) {
  py::native_enum<Algorithm> algorithms(module, "Algorithm", "enum.Enum", "How a collective carries the tensors.");
  for (std::uint8_t i = 0; i < kAlgorithmCount; ++i) {
    const auto algorithm = static_cast<Algorithm>(i);
    algorithms.value(enumerator(algorithm), algorithm);
  }
  algorithms.finalize();

  py::native_enum<Reduction> reductions(module, "Reduction", "enum.Enum", "How the tensors of a group become one.");
  for (std::uint8_t i = 0; i < kReductionCount; ++i) {
    const auto reduction = static_cast<Reduction>(i);
    reductions.value(enumerator(reduction), reduction);
  }
  reductions.finalize();
}

void register_collectives(py::class_<EngineHandle>& engine) {
  using Ranks = std::vector<std::int64_t>;
  using Parts = std::vector<std::uint64_t>;
  engine
      .def(
          "post_all_reduce",
          [](EngineHandle& self, py::handle tensor, Reduction reduction, Algorithm algorithm, bool lossy_results,
             Ranks ranks, std::uint32_t stream, double loss_bound, std::uint32_t layer, std::uint32_t layers,
             std::int64_t timeout_ns, std::string dtype, bool check_finite) {
            return self.post_all_reduce(tensor, reduction, algorithm, lossy_results,
                                        CollectiveArguments{std::move(ranks), stream, loss_bound, layer, layers,
                                                            timeout_ns, std::move(dtype), check_finite});
          },
          py::arg("tensor"), py::arg("reduction"), py::arg("algorithm"), py::arg("lossy_results"), py::arg("ranks"),
          py::arg("stream"), py::arg("loss_bound"), py::arg("layer"), py::arg("layers"), py::arg("timeout_ns"),
          py::arg("dtype"), py::arg("check_finite") = false)
      .def(
          "post_all_to_all",
          [](EngineHandle& self, py::handle output, py::handle input, Parts output_parts, Parts input_parts,
             Ranks ranks, std::uint32_t stream, double loss_bound, std::uint32_t layer, std::uint32_t layers,
             std::int64_t timeout_ns, std::string dtype, bool check_finite) {
            return self.post_all_to_all(output, input, std::move(output_parts), std::move(input_parts),
                                        CollectiveArguments{std::move(ranks), stream, loss_bound, layer, layers,
                                                            timeout_ns, std::move(dtype), check_finite});
          },
          py::arg("output"), py::arg("input"), py::arg("output_parts"), py::arg("input_parts"), py::arg("ranks"),
          py::arg("stream"), py::arg("loss_bound"), py::arg("layer"), py::arg("layers"), py::arg("timeout_ns"),
          py::arg("dtype"), py::arg("check_finite") = false)
      .def(
          "post_gather",
          [](EngineHandle& self, py::handle input, py::handle output, std::int64_t root, Ranks ranks,
             std::uint32_t stream, double loss_bound, std::uint32_t layer, std::uint32_t layers,
             std::int64_t timeout_ns, std::string dtype, bool check_finite) {
            return self.post_gather(input, output, root,
                                    CollectiveArguments{std::move(ranks), stream, loss_bound, layer, layers, timeout_ns,
                                                        std::move(dtype), check_finite});
          },
          py::arg("input"), py::arg("output"), py::arg("root"), py::arg("ranks"), py::arg("stream"),
          py::arg("loss_bound"), py::arg("layer"), py::arg("layers"), py::arg("timeout_ns"), py::arg("dtype"),
          py::arg("check_finite") = false)
      .def(
          "post_all_gather",
          [](EngineHandle& self, py::handle output, py::handle input, Algorithm algorithm, Ranks ranks,
             std::uint32_t stream, double loss_bound, std::uint32_t layer, std::uint32_t layers,
             std::int64_t timeout_ns, std::string dtype, bool check_finite) {
            return self.post_all_gather(output, input, algorithm,
                                        CollectiveArguments{std::move(ranks), stream, loss_bound, layer, layers,
                                                            timeout_ns, std::move(dtype), check_finite});
          },
          py::arg("output"), py::arg("input"), py::arg("algorithm"), py::arg("ranks"), py::arg("stream"),
          py::arg("loss_bound"), py::arg("layer"), py::arg("layers"), py::arg("timeout_ns"), py::arg("dtype"),
          py::arg("check_finite") = false)
      .def(
          "post_reduce_scatter",
          [](EngineHandle& self, py::handle output, py::handle input, Reduction reduction, Algorithm algorithm,
             Ranks ranks, std::uint32_t stream, double loss_bound, std::uint32_t layer, std::uint32_t layers,
             std::int64_t timeout_ns, std::string dtype, bool check_finite) {
            return self.post_reduce_scatter(output, input, reduction, algorithm,
                                            CollectiveArguments{std::move(ranks), stream, loss_bound, layer, layers,
                                                                timeout_ns, std::move(dtype), check_finite});
          },
          py::arg("output"), py::arg("input"), py::arg("reduction"), py::arg("algorithm"), py::arg("ranks"),
          py::arg("stream"), py::arg("loss_bound"), py::arg("layer"), py::arg("layers"), py::arg("timeout_ns"),
          py::arg("dtype"), py::arg("check_finite") = false)
      .def(
          "post_broadcast",
          [](EngineHandle& self, py::handle tensor, std::int64_t root, Algorithm algorithm, Ranks ranks,
             std::uint32_t stream, double loss_bound, std::uint32_t layer, std::uint32_t layers,
             std::int64_t timeout_ns, std::string dtype, bool check_finite) {
            return self.post_broadcast(tensor, root, algorithm,
                                       CollectiveArguments{std::move(ranks), stream, loss_bound, layer, layers,
                                                           timeout_ns, std::move(dtype), check_finite});
          },
          py::arg("tensor"), py::arg("root"), py::arg("algorithm"), py::arg("ranks"), py::arg("stream"),
          py::arg("loss_bound"), py::arg("layer"), py::arg("layers"), py::arg("timeout_ns"), py::arg("dtype"),
          py::arg("check_finite") = false)
      .def(
          "post_reduce",
          [](EngineHandle& self, py::handle input, py::handle output, std::int64_t root, Reduction reduction,
             Algorithm algorithm, Ranks ranks, std::uint32_t stream, double loss_bound, std::uint32_t layer,
             std::uint32_t layers, std::int64_t timeout_ns, std::string dtype, bool check_finite) {
            return self.post_reduce(input, output, root, reduction, algorithm,
                                    CollectiveArguments{std::move(ranks), stream, loss_bound, layer, layers, timeout_ns,
                                                        std::move(dtype), check_finite});
          },
          py::arg("input"), py::arg("output"), py::arg("root"), py::arg("reduction"), py::arg("algorithm"),
          py::arg("ranks"), py::arg("stream"), py::arg("loss_bound"), py::arg("layer"), py::arg("layers"),
          py::arg("timeout_ns"), py::arg("dtype"), py::arg("check_finite") = false)
      .def(
          "post_scatter",
          [](EngineHandle& self, py::handle output, py::handle input, std::int64_t root, Ranks ranks,
             std::uint32_t stream, double loss_bound, std::uint32_t layer, std::uint32_t layers,
             std::int64_t timeout_ns, std::string dtype, bool check_finite) {
            return self.post_scatter(output, input, root,
                                     CollectiveArguments{std::move(ranks), stream, loss_bound, layer, layers,
                                                         timeout_ns, std::move(dtype), check_finite});
          },
          py::arg("output"), py::arg("input"), py::arg("root"), py::arg("ranks"), py::arg("stream"),
          py::arg("loss_bound"), py::arg("layer"), py::arg("layers"), py::arg("timeout_ns"), py::arg("dtype"),
          py::arg("check_finite") = false)
      .def(
          "post_barrier",
          [](EngineHandle& self, Ranks ranks, std::uint32_t stream, std::uint32_t layer, std::uint32_t layers,
             std::int64_t timeout_ns, const std::string& end_of_group) {
            return self.post_barrier(CollectiveArguments{std::move(ranks), stream, 0.0, layer, layers, timeout_ns, ""},
                                     end_of_group);
          },
          py::arg("ranks"), py::arg("stream"), py::arg("layer"), py::arg("layers"), py::arg("timeout_ns"),
          py::arg("end_of_group") = "");
}

}  // namespace mlt::bindings
