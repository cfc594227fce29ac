#include "collective/exchange.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace mlt::collective {

namespace {

std::uint32_t part_pieces(std::uint64_t bytes) {
  return static_cast<std::uint32_t>((bytes + kPartPieceBytes - 1) / kPartPieceBytes);
}

// PROTOCOL 22.3.1: A part MUST be carried in pieces of 4 MiB, the last one shorter; an empty part by its shape alone.
template <typename Bytes>
Bytes piece_of(Bytes part, std::uint32_t step) {
  const std::uint64_t at = (step - 1) * kPartPieceBytes;
  return part.subspan(at, std::min<std::uint64_t>(kPartPieceBytes, part.size() - at));
}

std::vector<std::uint64_t> starts_of(const std::vector<std::uint64_t>& parts) {
  std::vector<std::uint64_t> starts(parts.size());
  std::exclusive_scan(parts.begin(), parts.end(), starts.begin(), std::uint64_t{0});
  return starts;
}

std::uint32_t root_index(const CollectiveRequest& request, const Membership& group) {
  return static_cast<std::uint32_t>(std::ranges::find(group.ranks, request.root) - group.ranks.begin());
}

// Of each member's part; an all-to-all has many.
std::uint64_t member_bytes(const CollectiveRequest& request) {
  switch (request.kind) {
    case CollectiveKind::kGather:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduce:
      return request.input.size();
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kScatter:
    case CollectiveKind::kBroadcast:
      return request.output.size();
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kBarrier:
      break;
  }
  return 0;
}

}  // namespace

std::uint32_t window_of(std::size_t peers) {
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(64 / std::max<std::size_t>(peers, 1), 1, kMaxWindow));
}

Exchange::Exchange(const CollectiveRequest& request, const Membership& group)
    : element_(request.element), loss_bound_(request.loss_bound) {
  const Routes routes = routes_of(request, group);
  if (routes.out[group.own] && routes.in[group.own]) {
    own_input_ = *routes.out[group.own];
    own_output_ = *routes.in[group.own];
  }
  if (group.size() == 1) return;
  // Receives first: arriving data then need not be buffered.
  for (const bool is_send : {false, true}) make_streams(routes, group, member_bytes(request), is_send);
}

// PROTOCOL 22.3.3: Each member MUST send its part to the members that need it: in a gather and reduce the root, in an
//     all-gather every other; a root MUST send each member its part in a scatter, and the whole tensor in a broadcast;
//     in a reduce-scatter part i goes to the member of index i, and in a barrier nothing but shapes to every other.
Exchange::Routes Exchange::routes_of(const CollectiveRequest& request, const Membership& group) {
  const std::uint32_t n = group.size(), own = group.own, root = root_index(request, group);
  const std::span<const std::byte> input = request.input;
  const std::span<std::byte> output = request.output;
  const std::uint64_t bytes = member_bytes(request);
  const auto from = starts_of(request.send_bytes), to = starts_of(request.receive_bytes);
  if (has_reduction(request.kind)) kernel_ = kernel_of(request.element, request.reduction);
  const bool is_all_to_all = request.kind == CollectiveKind::kAllToAll;
  const auto part_for = [&](std::uint32_t i) {  // of the input, for member i
    if (!request.input_parts.empty()) return request.input_parts[i];
    return is_all_to_all ? input.subspan(from[i], request.send_bytes[i]) : input.subspan(i * bytes, bytes);
  };
  const auto part_from = [&](std::uint32_t i) {  // of the output, from member i
    if (!request.output_parts.empty()) return request.output_parts[i];
    return is_all_to_all ? output.subspan(to[i], request.receive_bytes[i]) : output.subspan(i * bytes, bytes);
  };
  Routes routes(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    switch (request.kind) {
      case CollectiveKind::kAllToAll:
        routes.out[i] = part_for(i);
        routes.in[i] = part_from(i);
        break;
      case CollectiveKind::kGather:
        if (i == root) routes.out[i] = input;
        if (own == root) routes.in[i] = part_from(i);
        break;
      case CollectiveKind::kAllGather:
        routes.out[i] = input;
        routes.in[i] = part_from(i);
        break;
      case CollectiveKind::kScatter:
        if (own == root) routes.out[i] = part_for(i);
        if (i == root) routes.in[i] = output;
        break;
      case CollectiveKind::kBroadcast:
        if (own == root && i != own) routes.out[i] = output;
        if (i == root && i != own) routes.in[i] = output;
        break;
      case CollectiveKind::kReduce:
        if (i == root && i != own) routes.out[i] = input;
        break;
      case CollectiveKind::kReduceScatter:
        if (i != own) routes.out[i] = part_for(i);
        break;
      case CollectiveKind::kBarrier:
        routes.out[i] = input;
        routes.in[i] = output;
        break;
      case CollectiveKind::kAllReduce:
        break;
    }
  }
  result_ = output;
  if (request.kind == CollectiveKind::kReduceScatter) receive_terms(routes, group, part_for(own));
  if (request.kind == CollectiveKind::kReduce && own == root) receive_terms(routes, group, input);
  return routes;
}

void Exchange::receive_terms(Routes& routes, const Membership& group, std::span<const std::byte> own) {
  const std::uint64_t bytes = own.size();
  received_ = std::make_unique_for_overwrite<std::byte[]>((group.size() - 1) * bytes);
  std::byte* at = received_.get();
  for (std::uint32_t i = 0; i < group.size(); ++i) {
    if (i == group.own) {
      terms_.push_back(own.data());
      continue;
    }
    routes.in[i] = std::span(at, bytes);
    terms_.push_back(at);
    at += bytes;
  }
  const std::uint32_t element_bytes = wire::element_bytes(element_);
  budget_ = core::SharedLossBudget((group.size() - 1) * bytes / element_bytes, element_bytes, loss_bound_);
  if (loss_bound_ == 0 || kernel_->scale == nullptr) return;
  for (std::uint32_t step = 1; step <= part_pieces(bytes); ++step) {
    const std::size_t elements = piece_of(own, step).size() / element_bytes;
    counts_.emplace_back(static_cast<std::uint32_t>(elements), static_cast<std::uint16_t>(group.size()));
  }
}

// PROTOCOL 22.1.14: A member MUST send its shape to the next member of the group, and receive that of the one before,
//     also where the collective has nothing else between them.
void Exchange::make_streams(const Routes& routes, const Membership& group, std::uint64_t bytes, bool is_send) {
  const std::uint32_t n = group.size();
  const auto has_part = [&](std::uint32_t i) { return is_send ? routes.out[i].has_value() : routes.in[i].has_value(); };
  std::size_t peers = 0;
  for (std::uint32_t i = 0; i < n; ++i) peers += static_cast<std::size_t>(i != group.own && has_part(i));
  const std::uint32_t window = window_of(peers);
  for (std::uint32_t j = 1; j < n; ++j) {
    const std::uint32_t other = (group.own + (is_send ? j : n - j)) % n;
    if (!has_part(other) && j != 1) continue;
    std::span<const std::byte> source;
    std::span<std::byte> destination;
    if (is_send && has_part(other)) source = *routes.out[other];
    if (!is_send && has_part(other)) destination = *routes.in[other];
    const std::uint64_t part = is_send ? source.size() : destination.size();
    streams.push_back(
        make_stream(group.ranks[other], is_send, has_part(other) ? part : bytes, part_pieces(part), window));
    sources_.push_back(source);
    destinations_.push_back(destination);
  }
}

// The root's input may be its own part of the output.
void Exchange::begin() {
  if (own_output_.empty() || own_output_.data() == own_input_.data()) return;
  std::memmove(own_output_.data(), own_input_.data(), own_output_.size());
}

void Exchange::on_received(const Stream&, std::uint32_t step, const core::Completion& completion) {
  if (counts_.empty() || completion.received_bitmap.empty()) return;
  const auto missing = missing_elements(completion, piece_of(result_, step).size(), wire::element_bytes(element_));
  counts_[step - 1].update(missing,
                           [](std::uint32_t terms, bool is_missing) { return is_missing ? terms - 1 : terms; });
}

// PROTOCOL 22.3.4: A reduction MUST combine the members' terms in the order of the indices, and round the result once,
//     except in a chain (22.6.4) and by two levels (22.7.9).
void Exchange::finish() {
  if (terms_.empty() || result_.empty()) return;
  const std::uint32_t element_bytes = wire::element_bytes(element_);
  const auto ranks = static_cast<std::uint32_t>(terms_.size());
  if (counts_.empty()) return kernel_->combine_all(result_.data(), terms_, result_.size() / element_bytes, ranks);
  // PROTOCOL 22.3.5: A mean MUST divide each element by the number of its terms that are not missing. A member's own
  //     term never is.
  std::vector<const std::byte*> from(ranks);
  std::size_t piece = 0;
  for (const TermCounts& counts : counts_) {
    counts.for_each([&](std::uint32_t first, std::uint32_t count, std::uint16_t terms) {
      const std::size_t at = piece + std::size_t{first} * element_bytes;
      std::ranges::transform(terms_, from.begin(), [at](const std::byte* term) { return term + at; });
      kernel_->combine_all(result_.data() + at, from, count, terms);
    });
    piece += kPartPieceBytes;
  }
}

void Exchange::fill(const Stream& stream, std::uint32_t step, core::SendRequest& request) {
  request.data = piece_of(sources_[index_of(stream)], step);
  request.element = element_;
}

void Exchange::fill(const Stream& stream, std::uint32_t step, core::ReceiveRequest& request) {
  request.data = piece_of(destinations_[index_of(stream)], step);
  request.element = element_;
  // PROTOCOL 22.3.2: In a reduction it MAY be so of all terms that a member receives together, and of each piece half
  // or
  //     the bound, whichever is more, or one segment if that is more still (7.5.12).
  const bool is_shared = loss_bound_ > 0 && !terms_.empty();
  request.loss_bound = is_shared ? std::max(loss_bound_, kMaxPieceLoss) : loss_bound_;
  if (is_shared) request.shared_budget = &budget_;
}

}  // namespace mlt::collective
