#include <pybind11/pybind11.h>

#include "bindings/bind_struct.h"
#include "bindings/register.h"
#include "mlt.h"

namespace mlt::bindings {

void register_faults(py::module_& module) {
  py::class_<FaultOptions>(module, "FaultOptions", "Faults injected between the protocol and the network.")
      .def(by_keywords<FaultOptions>())
      .def_readwrite("drop", &FaultOptions::drop)
      .def_readwrite("duplicate", &FaultOptions::duplicate)
      .def_readwrite("reorder", &FaultOptions::reorder)
      .def_readwrite("corrupt", &FaultOptions::corrupt)
      .def_readwrite("delay_ns", &FaultOptions::delay_ns)
      .def_readwrite("jitter_ns", &FaultOptions::jitter_ns)
      .def_readwrite("seed", &FaultOptions::seed)
      .def_readwrite("control", &FaultOptions::control);
}

}  // namespace mlt::bindings
