// A view of a Python object for the engine: a pinned, validated, C-contiguous piece of host memory and its element
// type.
//
// Accepts numpy arrays, other objects with the buffer protocol, and torch CPU tensors (by their methods: torch is never
// imported). Copies nothing. Requires the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mlt.h"

namespace mlt::bindings {

namespace py = pybind11;

const char* element_name(Element element);
std::size_t element_bytes(Element element);
bool is_floating_point(Element element);

class TensorView {
 public:
  // Throws Error(kBuffer) if the object is no host memory, not contiguous, read-only despite `writable`, or of an
  // unsupported element type. `dtype` reads the bytes as another element type (numpy has no bfloat16, for example);
  // empty: the object's own.
  TensorView(py::handle object, bool writable, std::string_view dtype);

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Element element() const { return element_; }
  std::size_t element_count() const { return bytes_ / element_bytes(element_); }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  // For error texts: float32[3, 4].
  std::string description() const;

 private:
  void take_buffer(py::handle object, bool writable);
  void take_torch(py::handle object);
  void reinterpret(std::string_view dtype);

  struct ReleaseBuffer {
    void operator()(Py_buffer* buffer) const {
      PyBuffer_Release(buffer);
      delete buffer;
    }
  };

  py::object owner_;                                  // a torch tensor
  std::unique_ptr<Py_buffer, ReleaseBuffer> buffer_;  // anything else; it owns its object
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Element element_ = Element::kUint8;
  std::vector<std::int64_t> shape_;
};

}  // namespace mlt::bindings
