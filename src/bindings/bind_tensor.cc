#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
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

double sum_of_squares_of(py::handle object, const std::string& dtype) {
  const TensorView view(object, false, dtype);
  if (!is_floating_point(view.element())) {
    throw Error(ErrorCode::kBuffer, view.description() + " has no norm here: give a tensor of floating point");
  }
  const py::gil_scoped_release unlocked;
  return sum_of_squares({view.data(), view.bytes()}, view.element());
}

void clear(py::handle object) {
  const TensorView view(object, true, "");
  std::fill_n(view.data(), view.bytes(), std::byte{0});
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
  module.def("sum_of_squares", &sum_of_squares_of, py::arg("tensor"), py::arg("dtype") = "",
             "Sum of the squares of a tensor's elements, in float64; of floating point only.");
  module.def("clear", &clear, py::arg("tensor"), "Set a tensor to zero.");
}

}  // namespace mlt::bindings
