// The extension module mlt._core: thin, exact wrappers of mlt.h. The user-facing API is python/mlt.
#include <pybind11/pybind11.h>

#include "bindings/register.h"
#include "mlt.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "Native part of mlt; use the names of the package mlt instead.";
  module.attr("PROTOCOL_VERSION") = mlt::protocol_version();
  mlt::bindings::register_errors(module);
  mlt::bindings::register_tensor(module);
  mlt::bindings::register_completion(module);
  mlt::bindings::register_faults(module);
  mlt::bindings::register_paths(module);
  mlt::bindings::register_options(module);
  mlt::bindings::register_reductions(module);
  mlt::bindings::register_engine(module);
  mlt::bindings::register_simulator(module);
}
