// What a connection carries: for each message of ps-lite one head, and one transfer for each of its large parts. A head
// has the message's sender, the sizes of its parts, how much of part kLossyPart may be lost, and the small parts
// themselves. Part 0 is the packed meta. Head and
// parts have a tag each, so that the k-th transfer of a tag is matched by the k-th receive.
//
// All hosts of a job have the same byte order, which ps-lite's own messages require too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "mlt.h"

namespace mlt::van {

inline constexpr std::uint64_t kHeadTag = 0;
inline constexpr std::uint64_t kPartTag = 1;
inline constexpr std::size_t kMaxParts = 64;
inline constexpr std::size_t kLossyPart = 2;         // the values of a push; its keys are part 1
inline constexpr std::size_t kInlineBytes = 16'384;  // of a message's parts in its head

// A part in memory that `owner` keeps.
struct Part {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<void> owner;
};

struct Message {
  std::int32_t sender = 0;  // id of the node; ps-lite's Node::kEmpty before it has one
  std::vector<Part> parts;
  double loss_bound = 0;  // of part kLossyPart, unless it is in the head; in [0, 1)
};

// As what part kLossyPart is sent. mlt loses only whole segments, and those of numbers only; their bytes are multiples
// of
// 8. Nothing of other sizes is lost.
Element element_of(double loss_bound, std::size_t part, std::uint64_t bytes);

inline constexpr std::size_t kMaxHeadBytes = 16 + 8 * kMaxParts + kInlineBytes;

// Whether each part is in the head: parts of up to kInlineBytes in all, taken in their order.
std::vector<bool> choose_inline(std::span<const std::uint64_t> sizes);
// The head of a message of up to kMaxParts parts.
std::vector<std::byte> encode_head(const Message& message);

struct Head {
  std::int32_t sender = 0;
  double loss_bound = 0;
  std::vector<std::uint64_t> sizes;
  std::vector<bool> is_inline;
  std::span<const std::byte> content;  // of the inline parts, one after another; of the decoded bytes
};
// Nothing if the bytes are no head.
std::optional<Head> decode_head(std::span<const std::byte> bytes);

}  // namespace mlt::van
