// Element types of transfers; the code is four bits on the wire. Only floating point may have a loss bound.
#pragma once

#include <cstdint>

namespace mlt::wire {

enum class ElementType : std::uint8_t {
  kUint8 = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kFloat16 = 5,
  kBfloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kUint16 = 9,
  kUint32 = 10,
  kUint64 = 11,
  kBool = 12,
};
inline constexpr std::uint8_t kElementTypeCount = 13;

constexpr std::uint32_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::kUint8:
    case ElementType::kInt8:
    case ElementType::kBool:
      return 1;
    case ElementType::kInt16:
    case ElementType::kUint16:
    case ElementType::kFloat16:
    case ElementType::kBfloat16:
      return 2;
    case ElementType::kInt32:
    case ElementType::kUint32:
    case ElementType::kFloat32:
      return 4;
    case ElementType::kInt64:
    case ElementType::kUint64:
    case ElementType::kFloat64:
      return 8;
  }
  return 1;
}

constexpr bool is_floating_point(ElementType type) {
  return type == ElementType::kFloat16 || type == ElementType::kBfloat16 || type == ElementType::kFloat32 ||
         type == ElementType::kFloat64;
}

constexpr const char* element_name(ElementType type) {
  switch (type) {
    case ElementType::kUint8:
      return "uint8";
    case ElementType::kInt8:
      return "int8";
    case ElementType::kInt16:
      return "int16";
    case ElementType::kInt32:
      return "int32";
    case ElementType::kInt64:
      return "int64";
    case ElementType::kFloat16:
      return "float16";
    case ElementType::kBfloat16:
      return "bfloat16";
    case ElementType::kFloat32:
      return "float32";
    case ElementType::kFloat64:
      return "float64";
    case ElementType::kUint16:
      return "uint16";
    case ElementType::kUint32:
      return "uint32";
    case ElementType::kUint64:
      return "uint64";
    case ElementType::kBool:
      return "bool";
  }
  return "unknown";
}

}  // namespace mlt::wire
