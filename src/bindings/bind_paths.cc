#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/bind_struct.h"
#include "bindings/register.h"
#include "mlt.h"

namespace mlt::bindings {

void register_paths(py::module_& module) {
  py::class_<PathOptions>(module, "PathOptions", "One way to all peers.")
      .def(by_keywords<PathOptions>())
      .def_readwrite("host", &PathOptions::host)
      .def_readwrite("interface", &PathOptions::interface)
      .def_readwrite("udp_port", &PathOptions::udp_port)
      .def_readwrite("flow_label", &PathOptions::flow_label)
      .def_readwrite("segments", &PathOptions::segments)
      .def_readwrite("segments_to", &PathOptions::segments_to);
  py::class_<PathStatus>(module, "PathStatus", "What is known of one path to one peer.")
      .def_readonly("path", &PathStatus::path)
      .def_readonly("local", &PathStatus::local)
      .def_readonly("packets_sent", &PathStatus::packets_sent)
      .def_readonly("packets_reported", &PathStatus::packets_reported)
      .def_readonly("loss", &PathStatus::loss)
      .def_readonly("rtt_ns", &PathStatus::rtt_ns)
      .def_readonly("share", &PathStatus::share)
      .def_readonly("silent", &PathStatus::silent)
      .def_readonly("resting", &PathStatus::resting)
      .def_readonly("runs_sent", &PathStatus::runs_sent)
      .def_readonly("runs_failed", &PathStatus::runs_failed);
}

}  // namespace mlt::bindings
