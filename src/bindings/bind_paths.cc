#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/register.h"
#include "mlt.h"

namespace mlt::bindings {

namespace py = pybind11;

void register_paths(py::module_& module) {
  using Lists = std::vector<std::pair<std::uint16_t, std::vector<std::string>>>;
  py::class_<PathOptions>(module, "PathOptions", "One way to all peers.")
      .def(py::init([](std::string host, std::string interface, std::uint16_t udp_port, std::uint32_t flow_label,
                       std::vector<std::string> segments, Lists segments_to) {
             return PathOptions{.host = std::move(host),
                                .interface = std::move(interface),
                                .udp_port = udp_port,
                                .flow_label = flow_label,
                                .segments = std::move(segments),
                                .segments_to = std::move(segments_to)};
           }),
           py::kw_only(), py::arg("host") = "", py::arg("interface") = "", py::arg("udp_port") = 0,
           py::arg("flow_label") = 0, py::arg("segments") = std::vector<std::string>{},
           py::arg("segments_to") = Lists{})
      .def_readonly("host", &PathOptions::host)
      .def_readonly("interface", &PathOptions::interface)
      .def_readonly("udp_port", &PathOptions::udp_port)
      .def_readonly("flow_label", &PathOptions::flow_label)
      .def_readonly("segments", &PathOptions::segments)
      .def_readonly("segments_to", &PathOptions::segments_to);
  py::class_<PathStatus>(module, "PathStatus", "What is known of one path to one peer.")
      .def_readonly("path", &PathStatus::path)
      .def_readonly("local", &PathStatus::local)
      .def_readonly("packets_sent", &PathStatus::packets_sent)
      .def_readonly("packets_reported", &PathStatus::packets_reported)
      .def_readonly("loss", &PathStatus::loss)
      .def_readonly("rtt_ns", &PathStatus::rtt_ns)
      .def_readonly("share", &PathStatus::share)
      .def_readonly("silent", &PathStatus::silent)
      .def_readonly("runs_sent", &PathStatus::runs_sent)
      .def_readonly("runs_failed", &PathStatus::runs_failed);
}

}  // namespace mlt::bindings
