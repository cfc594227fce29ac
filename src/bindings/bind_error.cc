// Translates mlt::Error to the exception class of its code; python/mlt/errors.py defines the classes.
#include <pybind11/pybind11.h>

#include <exception>

#include "bindings/register.h"
#include "mlt.h"

namespace mlt::bindings {

namespace py = pybind11;

namespace {

// The values of mlt.errors.ErrorCode.
const char* code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kConfig:
      return "config";
    case ErrorCode::kPortInUse:
      return "port_in_use";
    case ErrorCode::kRendezvous:
      return "rendezvous";
    case ErrorCode::kPeerMismatch:
      return "peer_mismatch";
    case ErrorCode::kUnknownPeer:
      return "unknown_peer";
    case ErrorCode::kPeerFailed:
      return "peer_failed";
    case ErrorCode::kBuffer:
      return "buffer";
    case ErrorCode::kSizeMismatch:
      return "size_mismatch";
    case ErrorCode::kTypeMismatch:
      return "type_mismatch";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kLimit:
      return "limit";
    case ErrorCode::kUnknownOperation:
      return "unknown_operation";
    case ErrorCode::kClosed:
      return "closed";
    case ErrorCode::kSystem:
      return "system";
  }
  return "system";
}

}  // namespace

void register_errors(py::module_&) {
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      const py::object instance =
          py::module_::import("mlt.errors").attr("from_code")(code_name(error.code()), error.what(), error.peer());
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(instance.ptr())), instance.ptr());
    }
  });
}

}  // namespace mlt::bindings
