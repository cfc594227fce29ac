// One registration function per topic; each adds its names to the extension module.
#pragma once

#include <pybind11/pybind11.h>

namespace mlt::bindings {

class EngineHandle;

void register_errors(pybind11::module_& module);
void register_tensor(pybind11::module_& module);
void register_completion(pybind11::module_& module);
void register_faults(pybind11::module_& module);
// Before the engine, because its arguments have these types.
void register_paths(pybind11::module_& module);
void register_options(pybind11::module_& module);
void register_engine(pybind11::module_& module);
void register_simulator(pybind11::module_& module);
// The push-pull part and the collective part of class Engine; called by register_engine.
void register_push_pull(pybind11::class_<EngineHandle>& engine);
void register_collectives(pybind11::class_<EngineHandle>& engine);
// Reduction and Algorithm, which the collectives take.
void register_reductions(pybind11::module_& module);

}  // namespace mlt::bindings
