#include "frame.h"

#include <cstring>

namespace mlt::van {

namespace {

struct FixedPart {
  std::int32_t sender = 0;
  std::uint32_t parts = 0;
  double loss_bound = 0;
};
static_assert(sizeof(FixedPart) == 16);

}  // namespace

Element element_of(double loss_bound, std::size_t part, std::uint64_t bytes) {
  if (loss_bound == 0 || part != kLossyPart || bytes % 2 != 0) return Element::kUint8;
  return bytes % 4 == 0 ? Element::kFloat32 : Element::kFloat16;
}

std::vector<bool> choose_inline(std::span<const std::uint64_t> sizes) {
  std::vector<bool> chosen;
  std::uint64_t left = kInlineBytes;
  for (const std::uint64_t size : sizes) {
    chosen.push_back(size <= left);
    if (chosen.back()) left -= size;
  }
  return chosen;
}

std::vector<std::byte> encode_head(const Message& message) {
  std::vector<std::uint64_t> sizes;
  for (const Part& part : message.parts) sizes.push_back(part.bytes);
  const std::vector<bool> is_inline = choose_inline(sizes);
  std::size_t bytes = sizeof(FixedPart) + 8 * sizes.size();
  for (std::size_t i = 0; i < sizes.size(); ++i) bytes += is_inline[i] ? sizes[i] : 0;
  std::vector<std::byte> head(bytes);
  const FixedPart fixed{message.sender, static_cast<std::uint32_t>(sizes.size()), message.loss_bound};
  std::memcpy(head.data(), &fixed, sizeof fixed);
  std::byte* at = head.data() + sizeof fixed;
  if (!sizes.empty()) std::memcpy(at, sizes.data(), 8 * sizes.size());
  at += 8 * sizes.size();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (!is_inline[i] || sizes[i] == 0) continue;
    std::memcpy(at, message.parts[i].data, sizes[i]);
    at += sizes[i];
  }
  return head;
}

std::optional<Head> decode_head(std::span<const std::byte> bytes) {
  FixedPart fixed;
  if (bytes.size() < sizeof fixed) return std::nullopt;
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  bytes = bytes.subspan(sizeof fixed);
  if (fixed.parts < 1 || fixed.parts > kMaxParts || bytes.size() < 8 * fixed.parts) return std::nullopt;
  if (!(fixed.loss_bound >= 0 && fixed.loss_bound < 1)) return std::nullopt;
  Head head;
  head.sender = fixed.sender;
  head.loss_bound = fixed.loss_bound;
  head.sizes.resize(fixed.parts);
  std::memcpy(head.sizes.data(), bytes.data(), 8 * fixed.parts);
  head.content = bytes.subspan(8 * fixed.parts);
  head.is_inline = choose_inline(head.sizes);
  std::uint64_t content = 0;
  for (std::size_t i = 0; i < head.sizes.size(); ++i) content += head.is_inline[i] ? head.sizes[i] : 0;
  if (content != head.content.size()) return std::nullopt;
  return head;
}

}  // namespace mlt::van
