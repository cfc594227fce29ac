#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bind_struct.h"
#include "bindings/register.h"
#include "mlt.h"

namespace mlt::bindings {

void register_options(py::module_& module) {
  py::class_<Options>(module, "Options", "What an Engine is told: src/mlt.h.")
      .def(by_keywords<Options>())
      .def_readwrite("rank", &Options::rank)
      .def_readwrite("ranks", &Options::ranks)
      .def_readwrite("job", &Options::job)
      // Write-only.
      .def_property("secret", py::cpp_function(),
                    [](Options& self, const py::bytes& secret) { self.secret = std::string(secret); })
      .def_readwrite("insecure", &Options::insecure)
      .def_readwrite("host", &Options::host)
      .def_readwrite("udp_port", &Options::udp_port)
      .def_readwrite("paths", &Options::paths)
      .def_readwrite("control_port", &Options::control_port)
      .def_readwrite("segment_bytes", &Options::segment_bytes)
      .def_readwrite("line_rate_bits_per_second", &Options::line_rate_bits_per_second)
      .def_readwrite("receive_buffer_bytes", &Options::receive_buffer_bytes)
      .def_readwrite("operation_timeout_ns", &Options::operation_timeout_ns)
      .def_readwrite("peer_timeout_ns", &Options::peer_timeout_ns)
      .def_readwrite("suspended_timeout_ns", &Options::suspended_timeout_ns)
      .def_readwrite("spin_us", &Options::spin_us)
      .def_readwrite("shares_by_rate", &Options::shares_by_rate)
      .def_readwrite("checksums", &Options::checksums)
      .def_readwrite("erasure_correction", &Options::erasure_correction)
      .def_readwrite("connects_on_use", &Options::connects_on_use)
      .def_readwrite("max_operations", &Options::max_operations)
      .def_readwrite("max_tags", &Options::max_tags)
      .def_readwrite("early_segments", &Options::early_segments)
      .def_readwrite("early_transfers", &Options::early_transfers)
      .def_readwrite("max_window_mib", &Options::max_window_mib)
      .def_readwrite("busy_poll_us", &Options::busy_poll_us)
      .def_readwrite("data_dscp", &Options::data_dscp)
      .def_readwrite("control_dscp", &Options::control_dscp)
      .def_readwrite("datapath", &Options::datapath)
      .def_readwrite("faults", &Options::faults);
}

}  // namespace mlt::bindings
