#include "core/parity_store.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace mlt::core {

ParityStore::ParityStore(std::uint32_t packets, std::uint32_t bytes)
    : packets_(packets), storage_(std::size_t{packets} * bytes), bytes_(bytes) {}

bool ParityStore::keep(List& list, std::uint32_t block, std::uint8_t index, std::span<const std::byte> payload) {
  MLT_CHECK(payload.size() <= bytes_ && !has(list, block, index));
  std::uint32_t at = free_;
  if (at != kNil) {
    free_ = packets_[at].next;
  } else {
    if (packets_.size() == packets_.capacity()) return false;
    at = static_cast<std::uint32_t>(packets_.size());
    packets_.grow();
  }
  packets_[at] = {block, index, list.first};
  list.first = at;
  ++used_;
  if (!payload.empty()) std::memcpy(bytes_of(at), payload.data(), payload.size());
  return true;
}

bool ParityStore::has(const List& list, std::uint32_t block, std::uint8_t index) const {
  for (std::uint32_t at = list.first; at != kNil; at = packets_[at].next) {
    if (packets_[at].block == block && packets_[at].index == index) return true;
  }
  return false;
}

std::size_t ParityStore::find(const List& list, std::uint32_t block, std::span<std::uint8_t> indices,
                              std::span<std::byte*> bytes) {
  std::size_t found = 0;
  const std::size_t limit = std::min(indices.size(), bytes.size());
  for (std::uint32_t at = list.first; at != kNil && found < limit; at = packets_[at].next) {
    if (packets_[at].block != block) continue;
    indices[found] = packets_[at].index;
    bytes[found++] = bytes_of(at);
  }
  return found;
}

void ParityStore::release(List& list, std::uint32_t block) {
  std::uint32_t* link = &list.first;
  while (*link != kNil) {
    const std::uint32_t at = *link;
    if (packets_[at].block != block) {
      link = &packets_[at].next;
      continue;
    }
    *link = packets_[at].next;
    free(at);
  }
}

void ParityStore::release_all(List& list) {
  while (list.first != kNil) {
    const std::uint32_t at = list.first;
    list.first = packets_[at].next;
    free(at);
  }
}

void ParityStore::free(std::uint32_t packet) {
  packets_[packet].next = free_;
  free_ = packet;
  --used_;
}

}  // namespace mlt::core
