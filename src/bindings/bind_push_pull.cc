#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "bindings/engine_handle.h"
#include "bindings/register.h"
#include "mlt.h"

namespace mlt::bindings {

void register_push_pull(py::class_<EngineHandle>& engine) {
  engine
      .def("use_services", &EngineHandle::use_services, py::arg("ranks"), py::arg("workers"),
           py::arg("max_dead_services") = 0, py::arg("loads") = std::vector<double>())
      .def(
          "push_pull",
          [](EngineHandle& self, py::handle tensor, py::object out, std::uint64_t key, double loss_bound,
             bool lossy_results, bool average, std::uint32_t layer, std::uint32_t layers, std::int64_t timeout_ns,
             py::object handle) {
            return self.push_pull(tensor, PushPullArguments{std::move(handle), std::move(out), key, loss_bound,
                                                            lossy_results, average, layer, layers, timeout_ns});
          },
          py::arg("tensor"), py::arg("out"), py::arg("key"), py::arg("loss_bound"), py::arg("lossy_results"),
          py::arg("average"), py::arg("layer"), py::arg("layers"), py::arg("timeout_ns"), py::arg("handle"))
      .def("serve", &EngineHandle::serve, py::arg("workers"), py::arg("max_dead_workers") = 0,
           py::arg("max_wait_ns") = 0)
      .def("take_notices", &EngineHandle::take_notices)
      .def("take_exclusion", &EngineHandle::take_exclusion)
      .def("wait_workers_gone", &EngineHandle::wait_workers_gone, py::arg("timeout_ns"));
}

}  // namespace mlt::bindings
