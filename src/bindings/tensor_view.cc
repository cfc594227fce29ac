#include "bindings/tensor_view.h"

#include <array>
#include <optional>

namespace mlt::bindings {

namespace {

struct ElementInfo {
  Element element;
  const char* name;
  std::size_t bytes;
  bool floating_point;
};

// Indexed by the enumeration's values.
constexpr std::array<ElementInfo, 13> kElements = {{
    {Element::kUint8, "uint8", 1, false},
    {Element::kInt8, "int8", 1, false},
    {Element::kInt16, "int16", 2, false},
    {Element::kInt32, "int32", 4, false},
    {Element::kInt64, "int64", 8, false},
    {Element::kFloat16, "float16", 2, true},
    {Element::kBfloat16, "bfloat16", 2, true},
    {Element::kFloat32, "float32", 4, true},
    {Element::kFloat64, "float64", 8, true},
    {Element::kUint16, "uint16", 2, false},
    {Element::kUint32, "uint32", 4, false},
    {Element::kUint64, "uint64", 8, false},
    {Element::kBool, "bool", 1, false},
}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kElements.size(); ++i) {
    if (static_cast<std::size_t>(kElements[i].element) != i) return false;
  }
  return true;
}
static_assert(in_order());

const ElementInfo& info(Element element) { return kElements[static_cast<std::size_t>(element)]; }

std::optional<Element> element_of_name(std::string_view name) {
  for (const ElementInfo& candidate : kElements) {
    if (name == candidate.name) return candidate.element;
  }
  return std::nullopt;
}

std::string all_names() {
  std::string names;
  for (const ElementInfo& candidate : kElements) {
    if (!names.empty()) names += ", ";
    names += candidate.name;
  }
  return names;
}

[[noreturn]] void refuse(const std::string& text) { throw Error(ErrorCode::kBuffer, text); }

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::optional<Element> integer_of_size(std::size_t bytes, bool is_signed) {
  switch (bytes) {
    case 1:
      return is_signed ? Element::kInt8 : Element::kUint8;
    case 2:
      return is_signed ? Element::kInt16 : Element::kUint16;
    case 4:
      return is_signed ? Element::kInt32 : Element::kUint32;
    case 8:
      return is_signed ? Element::kInt64 : Element::kUint64;
    default:
      return std::nullopt;
  }
}

// Parses one item of the buffer protocol's format (struct module); byte order marks may precede it.
std::optional<Element> element_of_format(const char* format, std::size_t item_bytes) {
  std::string_view code = format == nullptr ? std::string_view("B") : std::string_view(format);
  if (!code.empty() && (code[0] == '@' || code[0] == '=' || code[0] == '<')) code.remove_prefix(1);
  if (code.size() == 2 && (code[0] == '>' || code[0] == '!') && item_bytes == 1) code.remove_prefix(1);
  if (code.size() != 1) return std::nullopt;
  switch (code[0]) {
    case '?':
      return Element::kBool;
    case 'e':
      return Element::kFloat16;
    case 'f':
      return Element::kFloat32;
    case 'd':
      return Element::kFloat64;
    case 'c':
      return Element::kUint8;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      return integer_of_size(item_bytes, true);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
      return integer_of_size(item_bytes, false);
    default:
      return std::nullopt;
  }
}

std::string type_name(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

bool looks_like_torch(py::handle object) {
  for (const char* name : {"data_ptr", "is_contiguous", "device", "dtype", "numel", "element_size"}) {
    if (!py::hasattr(object, name)) return false;
  }
  return true;
}

}  // namespace

const char* element_name(Element element) { return info(element).name; }
std::size_t element_bytes(Element element) { return info(element).bytes; }
bool is_floating_point(Element element) { return info(element).floating_point; }

TensorView::TensorView(py::handle object, bool writable, std::string_view dtype) {
  if (PyObject_CheckBuffer(object.ptr()) != 0) {
    take_buffer(object, writable);
  } else if (looks_like_torch(object)) {
    take_torch(object);
  } else {
    refuse("a " + type_name(object) +
           " is not a tensor: pass a numpy array, a torch CPU tensor, or an object with the buffer protocol");
  }
  if (!dtype.empty()) reinterpret(dtype);
}

std::string TensorView::description() const { return element_name(element_) + shape_text(shape_); }

void TensorView::take_buffer(py::handle object, bool writable) {
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), view.get(), PyBUF_FULL_RO) != 0) {
    const py::error_already_set error;
    refuse("a " + type_name(object) + " does not export a buffer (" + std::string(error.what()) +
           "); for a bfloat16 array pass array.view(numpy.uint16) with dtype='bfloat16'");
  }
  buffer_.reset(view.release());
  for (int i = 0; i < buffer_->ndim; ++i) {
    shape_.push_back(buffer_->shape != nullptr ? buffer_->shape[i] : buffer_->len / buffer_->itemsize);
  }
  const std::optional<Element> element =
      element_of_format(buffer_->format, static_cast<std::size_t>(buffer_->itemsize));
  if (!element) {
    refuse("unsupported element type '" + std::string(buffer_->format) + "' (supported: " + all_names() +
           "); convert the array, or pass its bytes with dtype=");
  }
  element_ = *element;
  data_ = static_cast<std::byte*>(buffer_->buf);
  bytes_ = static_cast<std::size_t>(buffer_->len);
  if (PyBuffer_IsContiguous(buffer_.get(), 'C') == 0) {
    refuse("tensor " + description() + " is not C-contiguous; pass a contiguous one, for example from " +
           "numpy.ascontiguousarray(x)");
  }
  if (writable && buffer_->readonly != 0) {
    refuse("tensor " + description() + " is read-only, so that nothing can be received into it; pass a writable one");
  }
}

void TensorView::take_torch(py::handle object) {
  const std::string device = py::str(object.attr("device"));
  const std::string dtype = py::str(object.attr("dtype"));
  for (py::handle extent : object.attr("shape")) shape_.push_back(py::cast<std::int64_t>(extent));
  const std::string what = dtype + shape_text(shape_);
  if (!device.starts_with("cpu")) {
    refuse("tensor " + what + " is on device " + device +
           ", not in host memory; pass tensor.cpu() and copy the result back");
  }
  if (py::hasattr(object, "layout") && std::string(py::str(object.attr("layout"))) != "torch.strided") {
    refuse("tensor " + what + " has layout " + std::string(py::str(object.attr("layout"))) +
           "; pass tensor.to_dense()");
  }
  constexpr std::string_view kPrefix = "torch.";
  const std::optional<Element> element =
      element_of_name(dtype.starts_with(kPrefix) ? std::string_view(dtype).substr(kPrefix.size()) : dtype);
  if (!element) {
    refuse("unsupported element type " + dtype + " (supported: " + all_names() +
           "); convert the tensor, for example torch.view_as_real(x) for complex numbers");
  }
  if (!py::cast<bool>(object.attr("is_contiguous")())) {
    refuse("tensor " + what + " is not C-contiguous; pass tensor.contiguous()");
  }
  if (py::hasattr(object, "is_neg") && py::cast<bool>(object.attr("is_neg")())) {
    refuse("tensor " + what + " is a lazily negated view; pass tensor.resolve_neg()");
  }
  element_ = *element;
  data_ = reinterpret_cast<std::byte*>(py::cast<std::uintptr_t>(object.attr("data_ptr")()));
  bytes_ = py::cast<std::size_t>(object.attr("numel")()) * py::cast<std::size_t>(object.attr("element_size")());
  if (data_ == nullptr && bytes_ > 0) {
    refuse("tensor " + what + " has no storage of its own (a fake, meta or wrapper tensor); pass a real CPU tensor");
  }
  owner_ = py::reinterpret_borrow<py::object>(object);
}

void TensorView::reinterpret(std::string_view dtype) {
  const std::optional<Element> element = element_of_name(dtype);
  if (!element) {
    refuse("dtype '" + std::string(dtype) + "' is not a supported element type (supported: " + all_names() + ")");
  }
  if (bytes_ % element_bytes(*element) != 0) {
    refuse("tensor " + description() + " has " + std::to_string(bytes_) + " bytes, which is not a whole number of " +
           std::string(dtype) + " elements");
  }
  if (element_bytes(*element) != element_bytes(element_)) {
    shape_ = {static_cast<std::int64_t>(bytes_ / element_bytes(*element))};
  }
  element_ = *element;
}

}  // namespace mlt::bindings
