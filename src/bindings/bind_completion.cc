#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/engine_handle.h"
#include "bindings/register.h"
#include "mlt.h"

namespace mlt::bindings {

namespace py = pybind11;

namespace {

const char* status_name(Status status) {
  switch (status) {
    case Status::kComplete:
      return "complete";
    case Status::kWithinBound:
      return "within_bound";
    case Status::kDeadline:
      return "deadline";
    case Status::kSizeMismatch:
      return "size_mismatch";
    case Status::kTypeMismatch:
      return "type_mismatch";
    case Status::kPeerFailed:
      return "peer_failed";
    case Status::kTimedOut:
      return "timed_out";
    case Status::kCancelled:
      return "cancelled";
  }
  return "cancelled";
}

const char* verb_name(Verb verb) {
  switch (verb) {
    case Verb::kSend:
      return "send";
    case Verb::kReceive:
      return "recv";
    case Verb::kAllReduce:
      return "all_reduce";
    case Verb::kAllToAll:
      return "all_to_all";
    case Verb::kGather:
      return "gather";
    case Verb::kAllGather:
      return "all_gather";
    case Verb::kReduceScatter:
      return "reduce_scatter";
    case Verb::kBroadcast:
      return "broadcast";
    case Verb::kReduce:
      return "reduce";
    case Verb::kScatter:
      return "scatter";
    case Verb::kBarrier:
      return "barrier";
    case Verb::kPushPull:
      return "push_pull";
  }
  return "recv";
}

py::list missing_ranges(const Completion& completion) {
  py::list ranges(completion.missing.size());
  for (std::size_t i = 0; i < completion.missing.size(); ++i) {
    ranges[i] = py::make_tuple(completion.missing[i].offset_bytes, completion.missing[i].length_bytes);
  }
  return ranges;
}

// The caller's handle of a push-pull.
py::object handle(const Completion& completion) {
  const auto* const lent = static_cast<const Lent*>(completion.lent.get());
  return lent == nullptr || !lent->handle ? py::none() : lent->handle;
}

}  // namespace

void register_completion(py::module_& module) {
  py::class_<Completion>(module, "Completion", "How an operation ended.")
      .def_readonly("operation", &Completion::operation)
      .def_property_readonly("kind", [](const Completion& self) { return verb_name(self.verb); })
      .def_readonly("is_send", &Completion::is_send)
      .def_property_readonly("status", [](const Completion& self) { return status_name(self.status); })
      .def_readonly("peer", &Completion::peer)
      .def_readonly("tag", &Completion::tag)
      .def_readonly("total_bytes", &Completion::total_bytes)
      .def_readonly("missing_bytes", &Completion::missing_bytes)
      .def_readonly("allowed_missing_bytes", &Completion::allowed_missing_bytes)
      .def_readonly("repaired_segments", &Completion::repaired_segments)
      .def_readonly("elapsed_ns", &Completion::elapsed_ns)
      .def_readonly("error", &Completion::error)
      .def_readonly("failed_peer", &Completion::failed_peer)
      .def_property_readonly("failed", &Completion::failed)
      .def_property_readonly("handle", &handle)
      .def_property_readonly("missing", &missing_ranges);
}

}  // namespace mlt::bindings
