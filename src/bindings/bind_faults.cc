#include <pybind11/pybind11.h>

#include "bindings/register.h"
#include "mlt.h"

namespace mlt::bindings {

namespace py = pybind11;

void register_faults(py::module_& module) {
  py::class_<FaultOptions>(module, "FaultOptions", "Faults injected between the protocol and the network.")
      .def(py::init([](double drop, double duplicate, double reorder, double corrupt, std::int64_t delay_ns,
                       std::int64_t jitter_ns, std::uint64_t seed, bool control) {
             return FaultOptions{.drop = drop,
                                 .duplicate = duplicate,
                                 .reorder = reorder,
                                 .corrupt = corrupt,
                                 .delay_ns = delay_ns,
                                 .jitter_ns = jitter_ns,
                                 .seed = seed,
                                 .control = control};
           }),
           py::kw_only(), py::arg("drop") = 0.0, py::arg("duplicate") = 0.0, py::arg("reorder") = 0.0,
           py::arg("corrupt") = 0.0, py::arg("delay_ns") = 0, py::arg("jitter_ns") = 0, py::arg("seed") = 1,
           py::arg("control") = true)
      .def_readonly("drop", &FaultOptions::drop)
      .def_readonly("duplicate", &FaultOptions::duplicate)
      .def_readonly("reorder", &FaultOptions::reorder)
      .def_readonly("corrupt", &FaultOptions::corrupt)
      .def_readonly("delay_ns", &FaultOptions::delay_ns)
      .def_readonly("jitter_ns", &FaultOptions::jitter_ns)
      .def_readonly("seed", &FaultOptions::seed)
      .def_readonly("control", &FaultOptions::control);
}

}  // namespace mlt::bindings
