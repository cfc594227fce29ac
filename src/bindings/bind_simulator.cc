#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/register.h"
#include "sim/port_load.h"
#include "sim/transfers.h"

namespace mlt::bindings {

namespace py = pybind11;

namespace {

using CableTuple = std::tuple<std::uint32_t, std::uint32_t, double, std::int64_t>;
using WaysTuple = std::tuple<std::uint32_t, std::uint32_t, std::vector<std::vector<std::uint32_t>>>;
using TransferTuple = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::int64_t, std::vector<std::uint32_t>>;

// Casts one element at a time, so that the error can name the wrong one.
template <typename Tuple>
Tuple cast_element(const char* list, std::size_t index, py::handle element, const char* expected) {
  try {
    return element.cast<Tuple>();
  } catch (const py::cast_error&) {
    throw py::type_error(std::string(list) + "[" + std::to_string(index) + "] is " +
                         py::repr(element).cast<std::string>() + "; expected " + expected);
  }
}

std::vector<sim::Cable> cables_of(const py::sequence& cables) {
  std::vector<sim::Cable> out;
  for (std::size_t i = 0; i < cables.size(); ++i) {
    const auto [a, b, rate, propagation] =
        cast_element<CableTuple>("cables", i, cables[i], "(node, node, rate_bytes_per_second, propagation_ns)");
    out.push_back({a, b, rate, propagation});
  }
  return out;
}

std::vector<sim::ScheduledTransfer> transfers_of(const py::sequence& transfers) {
  std::vector<sim::ScheduledTransfer> out;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    auto [from, to, bytes, start, after] = cast_element<TransferTuple>(
        "transfers", i, transfers[i], "(from, to, bytes, start_ns, after), all of them integers but `after`, a list");
    out.push_back({from, to, bytes, start, std::move(after)});
  }
  return out;
}

std::vector<sim::ScheduledWays> ways_of(const py::sequence& ways) {
  std::vector<sim::ScheduledWays> out;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    auto [from, to, nodes] =
        cast_element<WaysTuple>("ways", i, ways[i], "(from, to, [[from, node, ..., to], ...]), integers all of them");
    out.push_back({from, to, std::move(nodes)});
  }
  return out;
}

py::dict simulate_transfers(std::uint32_t hosts, std::uint32_t switches, const py::sequence& cables,
                            const py::sequence& transfers, const py::sequence& ways,
                            const std::vector<double>& line_rates, const std::vector<std::uint64_t>& buffers,
                            std::uint32_t paths, std::uint64_t queue_limit_bytes, std::uint64_t queue_threshold_bytes,
                            double loss, double loss_bound, std::uint64_t seed, std::uint32_t segment_bytes,
                            std::int64_t limit_ns, const py::object& progress) {
  const sim::TransferSchedule schedule{.hosts = hosts,
                                       .switches = switches,
                                       .cables = cables_of(cables),
                                       .transfers = transfers_of(transfers),
                                       .ways = ways_of(ways),
                                       .line_rates = line_rates,
                                       .buffers = buffers,
                                       .paths = paths,
                                       .queue_limit_bytes = queue_limit_bytes,
                                       .queue_threshold_bytes = queue_threshold_bytes,
                                       .loss = loss,
                                       .loss_bound = loss_bound,
                                       .seed = seed,
                                       .segment_bytes = segment_bytes,
                                       .limit_ns = limit_ns};
  // Also lets Ctrl-C interrupt the run.
  const auto report = [&progress](std::uint64_t arrived) {
    const py::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (!progress.is_none()) progress(arrived);
  };
  sim::TransferTimes times;
  {
    const py::gil_scoped_release released;
    times = sim::run_transfers(schedule, report);
  }
  py::dict out;
  out["finish_ns"] = times.finish_ns;
  out["data_packets"] = times.data_packets;
  out["drops"] = times.drops;
  out["hops"] = times.hops;
  out["events"] = times.events;
  out["digest"] = times.digest;
  return out;
}

using ClassTuple = std::tuple<std::uint64_t, std::uint64_t, double, double>;

py::list simulate_port(const py::sequence& classes, std::uint64_t packets, std::uint32_t burst_packets,
                       std::uint32_t senders, std::uint32_t packet_bytes, double port_rate, double nic_rate,
                       std::uint64_t seed) {
  sim::PortLoad load{.classes = {},
                     .packets = packets,
                     .burst_packets = burst_packets,
                     .senders = senders,
                     .packet_bytes = packet_bytes,
                     .port_bytes_per_second = port_rate,
                     .nic_bytes_per_second = nic_rate,
                     .seed = seed};
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const auto [threshold, limit, rate, ratio] = cast_element<ClassTuple>(
        "classes", i, classes[i], "(threshold_bytes, limit_bytes, load, small_ratio), the first two integers");
    load.classes.push_back({threshold, limit, rate, ratio});
  }
  std::vector<sim::QueueCounters> counters;
  {
    const py::gil_scoped_release released;
    counters = sim::run_port_load(load);
  }
  py::list out;
  for (const sim::QueueCounters& each : counters) {
    out.append(py::make_tuple(each.offered[0], each.dropped[0], each.offered[1], each.dropped[1], each.marked));
  }
  return out;
}

}  // namespace

void register_simulator(py::module_& module) {
  const sim::TransferSchedule standard;
  module.def("simulate_transfers", &simulate_transfers,
             "Run transfers with dependencies through production endpoints in virtual time.", py::kw_only(),
             py::arg("hosts"), py::arg("switches"), py::arg("cables"), py::arg("transfers"),
             py::arg("ways") = py::tuple(), py::arg("line_rates") = standard.line_rates,
             py::arg("buffers") = standard.buffers, py::arg("paths") = standard.paths,
             py::arg("queue_limit_bytes") = standard.queue_limit_bytes,
             py::arg("queue_threshold_bytes") = standard.queue_threshold_bytes, py::arg("loss") = standard.loss,
             py::arg("loss_bound") = standard.loss_bound, py::arg("seed") = standard.seed,
             py::arg("segment_bytes") = standard.segment_bytes, py::arg("limit_ns") = standard.limit_ns,
             py::arg("progress") = py::none());
  const sim::PortLoad port;
  module.def("simulate_port", &simulate_port,
             "Offer a load to one switch port; of each class (Not-ECT offered, dropped, ECT offered, dropped, marked).",
             py::kw_only(), py::arg("classes"), py::arg("packets"), py::arg("burst_packets") = port.burst_packets,
             py::arg("senders") = port.senders, py::arg("packet_bytes") = port.packet_bytes,
             py::arg("port_rate") = port.port_bytes_per_second, py::arg("nic_rate") = port.nic_bytes_per_second,
             py::arg("seed") = port.seed);
}

}  // namespace mlt::bindings
