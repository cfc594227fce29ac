#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

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

}  // namespace

void register_completion(py::module_& module) {
  py::class_<Completion>(module, "Completion", "How a send, receive or collective ended.")
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
      .def_property_readonly("missing", &missing_ranges);
  py::class_<PushPullResult>(module, "PushPullResult", "How a push-pull ended.")
      .def_readonly("operation", &PushPullResult::operation)
      .def_readonly("key", &PushPullResult::key)
      .def_readonly("total_bytes", &PushPullResult::total_bytes)
      .def_readonly("missing_bytes", &PushPullResult::missing_bytes)
      .def_readonly("repaired_segments", &PushPullResult::repaired_segments)
      .def_readonly("elapsed_ns", &PushPullResult::elapsed_ns)
      .def_property_readonly("status", [](const PushPullResult& self) { return status_name(self.status); })
      .def_readonly("error", &PushPullResult::error)
      .def_readonly("failed_peer", &PushPullResult::failed_peer);
}

}  // namespace mlt::bindings
