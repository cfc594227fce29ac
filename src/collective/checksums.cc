#include "collective/checksums.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/bytes.h"
#include "base/crc32c.h"

namespace mlt::collective {

namespace {

std::string in_hexadecimal(std::uint64_t value) {
  std::array<char, 16> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value, 16).ptr};
}

}  // namespace

ChecksumCounts& ChecksumCounts::operator+=(const ChecksumCounts& other) {
  compared += other.compared;
  incomplete += other.incomplete;
  different += other.different;
  return *this;
}

std::string damage_text(std::uint16_t sender, std::uint16_t receiver, const std::string& place, std::uint64_t sent,
                        std::uint64_t received, const std::string& unusable) {
  return "data of rank " + std::to_string(sender) + " arrived changed at rank " + std::to_string(receiver) + " (" +
         place + "checksum sent " + in_hexadecimal(sent) + ", received " + in_hexadecimal(received) +
         "): the memory, an interface or a driver of one of the two hosts damages data; do not use " + unusable +
         ", and test both hosts before they continue";
}

std::string checksums_differ_text(std::uint16_t with, std::uint16_t without) {
  return "rank " + std::to_string(with) + " takes checksums and rank " + std::to_string(without) +
         " none: set checksums (MLT_CHECKSUMS) on all ranks alike";
}

// PROTOCOL 22.9.2: The checksum of a transfer MUST be the sum, modulo 2^64, of m(x) over the payloads of its packets
//     that are not empty, where x is the offset of the payload times 2^32 plus its CRC-32C, and m(x) is computed so: x
//     becomes (x xor x / 2^30) times 0xBF58476D1CE4E5B9, then (x xor x / 2^27) times 0x94D049BB133111EB, then x xor x /
//     2^31, each quotient rounded down and each product modulo 2^64.
std::uint64_t segment_checksum(std::uint64_t offset_bytes, std::span<const std::byte> payload) {
  if (payload.empty()) return 0;
  std::uint64_t x = (offset_bytes << 32) + base::crc32c(payload);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

std::uint64_t transfer_checksum(std::span<const std::byte> data, std::uint32_t segment_bytes) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < data.size(); at += segment_bytes) {
    sum += segment_checksum(at, data.subspan(at, std::min<std::size_t>(segment_bytes, data.size() - at)));
  }
  return sum;
}

StreamChecksums::StreamChecksums(std::uint32_t steps, std::uint32_t window, std::uint32_t segment_bytes)
    : steps_(steps),
      segment_bytes_(std::max(1U, segment_bytes)),
      carried_(steps * kChecksumBytes),
      watches_(window),
      found_(steps) {}

void StreamChecksums::set(std::uint32_t step, std::uint64_t checksum) {
  base::store_le64(carried_.data() + step * kChecksumBytes, checksum);
  ++computed_;
}

void StreamChecksums::on_posted(std::uint32_t step, std::span<const std::byte> data) {
  set(step, transfer_checksum(data, segment_bytes_));
}

void StreamChecksums::on_posted(std::uint32_t step, const std::optional<std::uint64_t>& fed) {
  if (!fed) return unsettled_.push_back(step);
  set(step, *fed);
}

void StreamChecksums::watch(std::uint32_t step, core::ReceiveRequest& request) {
  Watch& watch = watches_[step % watches_.size()];
  watch = {0, request.data, request.place, request.place_context};
  if (request.place == nullptr) return;
  request.place = &StreamChecksums::take_segment;
  request.place_context = &watch;
}

// What is placed may be combined there: the payload is all that the sender's memory held.
void StreamChecksums::take_segment(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload) {
  Watch& watch = *static_cast<Watch*>(context);
  watch.sum += segment_checksum(offset_bytes, payload);
  watch.place(watch.place_context, offset_bytes, payload);
}

void StreamChecksums::on_received(std::uint32_t step, const core::Completion& completion) {
  if (completion.missing_bytes > 0) return;
  const Watch& watch = watches_[step % watches_.size()];
  found_[step] = watch.place == nullptr ? transfer_checksum(watch.data, segment_bytes_) : watch.sum;
  ++computed_;
}

std::optional<StreamChecksums::Difference> StreamChecksums::difference() const {
  for (std::uint32_t step = 0; step < steps_; ++step) {
    const std::uint64_t sent = base::load_le64(carried_.data() + step * kChecksumBytes);
    if (found_[step] && *found_[step] != sent) return Difference{step, sent, *found_[step]};
  }
  return std::nullopt;
}

}  // namespace mlt::collective
