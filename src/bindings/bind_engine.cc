#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/engine_handle.h"
#include "bindings/register.h"
#include "mlt.h"

namespace mlt::bindings {

namespace {

void connect(EngineHandle& self, const std::vector<std::tuple<std::uint16_t, std::string, std::uint16_t>>& peers,
             std::int64_t timeout_ns) {
  std::vector<PeerAddress> addresses;
  addresses.reserve(peers.size());
  for (const auto& [rank, host, port] : peers) {
    addresses.push_back(PeerAddress{.rank = rank, .host = host, .control_port = port});
  }
  self.connect(addresses, timeout_ns);
}

py::dict counters(const EngineHandle& self) {
  py::dict values;
  for (const CounterValue& counter : self.counters()) values[py::str(counter.name)] = counter.value;
  return values;
}

void register_transfers(py::class_<EngineHandle>& engine) {
  engine
      .def(
          "post_send",
          [](EngineHandle& self, py::handle tensor, std::int64_t to, std::uint64_t tag, std::uint32_t layer,
             std::uint32_t layers, py::object priorities, bool by_magnitude, std::int64_t timeout_ns,
             std::string dtype) {
            return self.post_send(tensor, SendArguments{to, tag, layer, layers, std::move(priorities), by_magnitude,
                                                        timeout_ns, std::move(dtype)});
          },
          py::arg("tensor"), py::arg("to"), py::arg("tag"), py::arg("layer"), py::arg("layers"), py::arg("priorities"),
          py::arg("by_magnitude"), py::arg("timeout_ns"), py::arg("dtype"))
      .def(
          "post_recv",
          [](EngineHandle& self, py::handle tensor, std::int64_t from, std::uint64_t tag, double loss_bound,
             bool keep_missing, bool eager, std::int64_t deadline_ns, std::int64_t timeout_ns, std::string dtype,
             bool up_to) {
            return self.post_recv(tensor, ReceiveArguments{from, tag, loss_bound, keep_missing, eager, deadline_ns,
                                                           timeout_ns, std::move(dtype), up_to});
          },
          py::arg("tensor"), py::arg("from_"), py::arg("tag"), py::arg("loss_bound"), py::arg("keep_missing"),
          py::arg("eager"), py::arg("deadline_ns"), py::arg("timeout_ns"), py::arg("dtype"), py::arg("up_to") = false)
      .def("check_sends", &EngineHandle::check_sends, py::arg("transfers"), py::arg("dtype"))
      .def(
          "post_sends",
          [](EngineHandle& self, py::handle transfers, std::uint32_t layer, std::uint32_t layers,
             const py::object& priorities, bool by_magnitude, std::int64_t timeout_ns, std::string dtype) {
            return self.post_sends(
                transfers, SendArguments{0, 0, layer, layers, py::none(), by_magnitude, timeout_ns, std::move(dtype)},
                priorities);
          },
          py::arg("transfers"), py::arg("layer"), py::arg("layers"), py::arg("priorities"), py::arg("by_magnitude"),
          py::arg("timeout_ns"), py::arg("dtype"))
      .def(
          "post_recvs",
          [](EngineHandle& self, py::handle transfers, double loss_bound, bool keep_missing, bool eager,
             std::int64_t deadline_ns, std::int64_t timeout_ns, std::string dtype, bool up_to) {
            return self.post_recvs(transfers, ReceiveArguments{0, 0, loss_bound, keep_missing, eager, deadline_ns,
                                                               timeout_ns, std::move(dtype), up_to});
          },
          py::arg("transfers"), py::arg("loss_bound"), py::arg("keep_missing"), py::arg("eager"),
          py::arg("deadline_ns"), py::arg("timeout_ns"), py::arg("dtype"), py::arg("up_to"))
      .def("set_hosts", &EngineHandle::set_hosts, py::arg("hosts"))
      .def("cancel", &EngineHandle::cancel, py::arg("operation"), py::arg("reason") = "")
      .def("poll", &EngineHandle::poll, py::arg("max_completions"))
      .def("wait", &EngineHandle::wait, py::arg("operation"), py::arg("timeout_ns"), py::arg("on_quiet") = py::none())
      .def("wait_all", &EngineHandle::wait_all, py::arg("operations"), py::arg("timeout_ns"),
           py::arg("on_quiet") = py::none())
      .def("watch", &EngineHandle::watch, py::arg("operation"))
      .def("next_watched", &EngineHandle::next_watched, py::arg("timeout_ns"))
      .def("is_done", &EngineHandle::is_done, py::arg("operation"));
}

}  // namespace

void register_engine(py::module_& module) {
  py::class_<EngineHandle> engine(module, "Engine", "One rank's transport; mlt.Context wraps it.");
  engine
      .def(py::init([](const Options& options) { return std::make_unique<EngineHandle>(options); }), py::arg("options"))
      .def_property_readonly("control_port", [](const EngineHandle& self) { return self.engine().control_port(); })
      .def_property_readonly("udp_port", [](const EngineHandle& self) { return self.engine().udp_port(); })
      .def_property_readonly("receive_buffer_bytes",
                             [](const EngineHandle& self) { return self.engine().receive_buffer_bytes(); })
      .def_property_readonly("wanted_receive_buffer_bytes",
                             [](const EngineHandle& self) { return self.engine().wanted_receive_buffer_bytes(); })
      .def_property_readonly("data_dscp", [](const EngineHandle& self) { return self.engine().data_dscp(); })
      .def_property_readonly("control_dscp",
                             [](const EngineHandle& self) { return static_cast<int>(self.engine().control_dscp()); })
      .def_property_readonly("closed", &EngineHandle::is_closed)
      .def_property_readonly("pinned", &EngineHandle::pinned)
      .def("connect", &connect, py::arg("peers"), py::arg("timeout_ns"))
      .def("close", &EngineHandle::close, py::arg("failure") = "")
      .def("close_at_exit", &EngineHandle::close_at_exit, py::arg("failure") = "")
      .def("segment_count", &EngineHandle::segment_count, py::arg("peer"), py::arg("total_bytes"))
      .def("segment_bytes", &EngineHandle::segment_bytes, py::arg("peer"))
      .def("paths", &EngineHandle::paths, py::arg("peer"))
      .def("awaited_ranks", &EngineHandle::awaited_ranks, py::arg("operation"))
      .def("is_peer_up", &EngineHandle::is_peer_up, py::arg("peer"))
      .def("has_peer_left", &EngineHandle::has_peer_left, py::arg("peer"))
      .def("peer_failure", &EngineHandle::peer_failure, py::arg("peer"))
      .def("rate_bits_per_second", &EngineHandle::rate_bits_per_second, py::arg("peer"))
      .def(
          "traffic_class",
          [](const EngineHandle& self, std::uint32_t layer, std::uint32_t layers) {
            return self.engine().traffic_class(layer, layers);
          },
          py::arg("layer"), py::arg("layers"))
      .def("counters", &counters);
  register_transfers(engine);
  register_push_pull(engine);
  register_collectives(engine);
}

}  // namespace mlt::bindings
