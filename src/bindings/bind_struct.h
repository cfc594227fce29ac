// Python constructors of structs of options.
#pragma once

#include <pybind11/pybind11.h>

namespace mlt::bindings {

namespace py = pybind11;

// Python constructor of a struct of options: default values, with any field overridden by keyword.
template <class Struct>
auto by_keywords() {
  return py::init([](const py::kwargs& given) {
    py::object made = py::cast(Struct{});
    for (const auto& [name, value] : given) py::setattr(made, name, value);
    return made.cast<Struct>();
  });
}

}  // namespace mlt::bindings
