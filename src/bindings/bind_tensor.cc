#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "bindings/register.h"
#include "bindings/tensor_view.h"

namespace mlt::bindings {

namespace {

// For priority functions and tests; does not keep the memory alive.
struct TensorInfo {
  std::uintptr_t address;
  std::size_t bytes;
  std::size_t elements;
  std::size_t element_bytes;
  std::string dtype;
  bool floating_point;
  py::tuple shape;
};

TensorInfo tensor_info(py::handle object, const std::string& dtype, bool writable) {
  const TensorView view(object, writable, dtype);
  return TensorInfo{.address = reinterpret_cast<std::uintptr_t>(view.data()),
                    .bytes = view.bytes(),
                    .elements = view.element_count(),
                    .element_bytes = element_bytes(view.element()),
                    .dtype = element_name(view.element()),
                    .floating_point = is_floating_point(view.element()),
                    .shape = py::tuple(py::cast(view.shape()))};
}

}  // namespace

void register_tensor(py::module_& module) {
  py::class_<TensorInfo>(module, "TensorInfo", "What the engine sees of a tensor.")
      .def_readonly("address", &TensorInfo::address)
      .def_readonly("bytes", &TensorInfo::bytes)
      .def_readonly("elements", &TensorInfo::elements)
      .def_readonly("element_bytes", &TensorInfo::element_bytes)
      .def_readonly("dtype", &TensorInfo::dtype)
      .def_readonly("floating_point", &TensorInfo::floating_point)
      .def_readonly("shape", &TensorInfo::shape);
  module.def("tensor_info", &tensor_info, py::arg("tensor"), py::arg("dtype") = "", py::arg("writable") = false,
             "Check a tensor as a post does, and tell what the engine would see of it.");
}

}  // namespace mlt::bindings
