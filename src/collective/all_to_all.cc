#include "collective/all_to_all.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace mlt::collective {

namespace {

std::uint32_t pieces_of(std::uint64_t bytes) {
  return static_cast<std::uint32_t>((bytes + kPartPieceBytes - 1) / kPartPieceBytes);
}

// PROTOCOL 22.3.1: A part MUST be carried in pieces of 4 MiB, the last one shorter; an empty part by its shape alone.
template <typename Bytes>
Bytes piece_of(Bytes memory, const Stream& stream, std::uint64_t offset, std::uint32_t step) {
  const std::uint64_t at = (step - 1) * kPartPieceBytes;
  return memory.subspan(offset + at, std::min(kPartPieceBytes, stream.bytes - at));
}

std::vector<std::uint64_t> starts_of(const std::vector<std::uint64_t>& parts) {
  std::vector<std::uint64_t> starts(parts.size());
  std::exclusive_scan(parts.begin(), parts.end(), starts.begin(), std::uint64_t{0});
  return starts;
}

}  // namespace

std::uint32_t window_of(std::uint32_t peers) { return std::clamp(64 / std::max(peers, 1U), 1U, kMaxWindow); }

AllToAll::AllToAll(const CollectiveRequest& request, const Membership& group)
    : input_(request.input), output_(request.output), element_(request.element), loss_bound_(request.loss_bound) {
  const std::vector<std::uint64_t> from = starts_of(request.send_bytes);
  const std::vector<std::uint64_t> to = starts_of(request.receive_bytes);
  own_input_ = input_.subspan(from[group.own], request.send_bytes[group.own]);
  own_output_ = output_.subspan(to[group.own], request.receive_bytes[group.own]);
  const std::uint32_t n = group.size();
  const std::uint32_t window = window_of(n - 1);
  for (const bool is_send : {false, true}) {  // receives first: arriving data then need not be buffered
    for (std::uint32_t j = 1; j < n; ++j) {
      const std::uint32_t other = (group.own + (is_send ? j : n - j)) % n;
      const std::uint64_t bytes = is_send ? request.send_bytes[other] : request.receive_bytes[other];
      streams.push_back(make_stream(group.ranks[other], is_send, bytes, pieces_of(bytes), window));
      offsets_.push_back(is_send ? from[other] : to[other]);
    }
  }
}

void AllToAll::begin() {
  if (!own_input_.empty()) std::memcpy(own_output_.data(), own_input_.data(), own_input_.size());
}

bool AllToAll::is_lossy(std::uint32_t) const { return loss_bound_ > 0; }

void AllToAll::fill(const Stream& stream, std::uint32_t step, core::SendRequest& request) {
  request.data = piece_of(input_, stream, offsets_[index_of(stream)], step);
  request.element = element_;
}

void AllToAll::fill(const Stream& stream, std::uint32_t step, core::ReceiveRequest& request) {
  request.data = piece_of(output_, stream, offsets_[index_of(stream)], step);
  request.element = element_;
  request.loss_bound = loss_bound_;
}

}  // namespace mlt::collective
