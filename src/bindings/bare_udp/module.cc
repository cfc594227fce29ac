// The extension module mlt.perf._bare_udp, the bare UDP loop of `mlt perf`: apart from mlt._core, which a job loads.
// Python's sockets own the descriptors; the loop runs without the GIL.
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>

#include "bare_udp/loop.h"
#include "bindings/register.h"
#include "bindings/tensor_view.h"

namespace mlt::bindings {

namespace {

void send(int fd, const py::object& tensor, std::size_t payload_bytes) {
  const TensorView view(tensor, false, "");
  const py::gil_scoped_release release;
  bare_udp::send(fd, {view.data(), view.bytes()}, payload_bytes);
}

std::tuple<std::int64_t, std::int64_t, std::size_t> receive(int fd, const py::object& tensor,
                                                            std::size_t payload_bytes) {
  const TensorView view(tensor, true, "");
  const py::gil_scoped_release release;
  const bare_udp::Received received = bare_udp::receive(fd, {view.data(), view.bytes()}, payload_bytes);
  return {received.waited_ns, received.elapsed_ns, received.bytes};
}

std::size_t all_reduce(int fd, const py::object& tensor, bool is_first, std::uint32_t round, std::size_t payload_bytes,
                       std::int64_t patience_ns, std::int64_t silence_ns) {
  const TensorView view(tensor, true, "");
  const std::span<float> data(reinterpret_cast<float*>(view.data()), view.bytes() / sizeof(float));
  const py::gil_scoped_release release;
  return bare_udp::all_reduce(fd, data, is_first, round, payload_bytes, patience_ns, silence_ns);
}

}  // namespace

}  // namespace mlt::bindings

PYBIND11_MODULE(_bare_udp, module) {
  namespace py = pybind11;
  using namespace mlt;
  module.doc() = "The bare UDP loop that mlt perf compares with.";
  bindings::register_errors(module);
  module.def("prepare", &bare_udp::prepare, py::arg("fd"), py::arg("silence_ns"),
             "Make a UDP socket ready for the bare loop.");
  module.def("send", &bindings::send, py::arg("fd"), py::arg("tensor"), py::arg("payload_bytes"),
             "Send a tensor in bare datagrams to the connected peer.");
  module.def("receive", &bindings::receive, py::arg("fd"), py::arg("tensor"), py::arg("payload_bytes"),
             "Receive what comes of a tensor: nanoseconds to the first datagram, from there to the last, and bytes.");
  module.def("all_reduce", &bindings::all_reduce, py::arg("fd"), py::arg("tensor"), py::arg("is_first"),
             py::arg("round"), py::arg("payload_bytes"), py::arg("patience_ns"), py::arg("silence_ns"),
             "Sum a float32 tensor with the connected peer's in place; bytes that came.");
}
