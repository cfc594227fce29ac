// Translates mlt::Error to the exception class of its code; python/mlt/errors.py defines the classes.
#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
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

constexpr ErrorCode kLastCode = ErrorCode::kSystem;

// The class of a code, and the code as mlt.errors.ErrorCode. Kept until the process ends: an error may be the last
// thing that happens.
struct ErrorClass {
  PyObject* type = nullptr;
  PyObject* code = nullptr;
};
using ErrorClasses = std::array<ErrorClass, static_cast<std::size_t>(kLastCode) + 1>;

ErrorClasses& classes() {
  static ErrorClasses all;
  return all;
}

// What mlt.errors.from_code() makes, without a line of Python: interpreted code may hand over the GIL, and a daemon
// thread that asks for it back while the interpreter ends is ended there (before Python 3.14), through frames that
// handle a C++ exception; that aborts the process. Null with an error of Python's set if memory is short.
py::object instance_of(const Error& error) {
  const ErrorClass& known = classes()[static_cast<std::size_t>(error.code())];
  const auto arguments = py::reinterpret_steal<py::object>(Py_BuildValue("(s)", error.what()));
  if (!arguments) return {};
  auto* const type = reinterpret_cast<PyTypeObject*>(known.type);
  auto instance = py::reinterpret_steal<py::object>(type->tp_new(type, arguments.ptr(), nullptr));
  if (!instance) return {};
  const auto peer = error.peer() >= 0 ? py::reinterpret_steal<py::object>(PyLong_FromLong(error.peer()))
                                      : py::reinterpret_borrow<py::object>(Py_None);
  // An OSError takes its arguments only in its constructor's second half.
  const bool is_set = peer && PyObject_SetAttrString(instance.ptr(), "args", arguments.ptr()) == 0 &&
                      PyObject_SetAttrString(instance.ptr(), "code", known.code) == 0 &&
                      PyObject_SetAttrString(instance.ptr(), "peer", peer.ptr()) == 0;
  return is_set ? instance : py::object();
}

}  // namespace

void register_errors(py::module_&) {
  const py::module_ errors = py::module_::import("mlt.errors");
  for (std::size_t i = 0; i < classes().size(); ++i) {
    py::object code = errors.attr("ErrorCode")(code_name(static_cast<ErrorCode>(i)));
    py::object type = errors.attr("class_of")(code);
    classes()[i] = {type.release().ptr(), code.release().ptr()};
  }
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      const py::object instance = instance_of(error);
      if (instance) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(instance.ptr())), instance.ptr());
    }
  });
}

}  // namespace mlt::bindings
