#include "collective/collective.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <numeric>
#include <optional>

#include "base/bytes.h"
#include "collective/central_allreduce.h"
#include "collective/chain.h"
#include "collective/direct_allreduce.h"
#include "collective/exchange.h"
#include "collective/ring_allreduce.h"
#include "collective/staged.h"
#include "collective/two_level.h"

namespace mlt::collective {

namespace {

std::uint64_t total(const std::vector<std::uint64_t>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::uint64_t{0});
}

// PROTOCOL 22.2.8: A member MUST refuse the mean of integers and bool, which is not exact, bitwise reductions of
//     floating point, and a loss bound above 0 unless it is a sum or mean of floating point.
std::string check_reduction(const CollectiveRequest& request) {
  const std::string element = wire::element_name(request.element);
  if (kernel_of(request.element, request.reduction) == nullptr) {
    const std::string what = "the " + std::string(reduction_name(request.reduction)) + " of " + element;
    if (static_cast<std::uint8_t>(request.reduction) >= kReductionCount) return what + " is unknown";
    if (request.reduction == Reduction::kMean) return what + " is not exact: use a sum, or a floating-point tensor";
    return what + " is undefined: use integers or bool";
  }
  if (request.loss_bound > 0 && !may_lose_terms(request.reduction)) {
    return "a " + std::string(reduction_name(request.reduction)) +
           " must not lose terms: use a loss bound of 0, or a sum or mean";
  }
  // PROTOCOL 22.2.9: ... A member MUST refuse this of anything but a sum or mean of floating point.
  const bool is_lossy_type = wire::is_floating_point(request.element) && may_lose_terms(request.reduction);
  if (request.lossy_results && !is_lossy_type) {
    return "the results of a " + std::string(reduction_name(request.reduction)) + " of " + element +
           " must not be lost: only a sum or mean of floating point may have lossy results";
  }
  return "";
}

GroupSize group_size(const CollectiveRequest& request) { return {request.ranks.size(), request.ranks_per_host}; }

std::string check_all_reduce(const CollectiveRequest& request) {
  if (std::string problem = check_reduction(request); !problem.empty()) return problem;
  if (request.output.size() % wire::element_bytes(request.element) != 0)
    return "its size is not a multiple of the element size";
  return check_algorithm(request.algorithm, group_size(request), request.output.size());
}

template <typename Byte>
std::size_t total(const std::vector<std::span<Byte>>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::size_t{0},
                         [](std::size_t sum, std::span<Byte> part) { return sum + part.size(); });
}

// Of one side whose parts have memory of their own; `each`: the size of every part, unless they may differ.
template <typename Byte>
std::string check_parts(const CollectiveRequest& request, const std::vector<std::span<Byte>>& parts,
                        const std::string& side, bool may_have_parts, std::optional<std::size_t> each) {
  if (parts.empty()) return "";
  if (!may_have_parts) return "its " + side + " has no part for each member: pass one tensor instead of a list";
  if (parts.size() != request.ranks.size()) {
    return side + " has " + std::to_string(parts.size()) + " parts; a group of " +
           std::to_string(request.ranks.size()) + " ranks needs one per rank";
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string part = "part " + std::to_string(i) + " of the " + side;
    if (parts[i].size() % wire::element_bytes(request.element) != 0) return part + " is not a whole number of elements";
    if (each && parts[i].size() != *each) {
      return part + " has " + std::to_string(parts[i].size()) + " bytes; every part needs " + std::to_string(*each);
    }
  }
  return "";
}

std::string check_parts(const CollectiveRequest& request) {
  const CollectiveKind kind = request.kind;
  const bool is_all_to_all = kind == CollectiveKind::kAllToAll;
  const auto each = [&](std::size_t bytes) { return is_all_to_all ? std::nullopt : std::optional(bytes); };
  const bool has_in = is_all_to_all || kind == CollectiveKind::kScatter || kind == CollectiveKind::kReduceScatter;
  const bool has_out = is_all_to_all || kind == CollectiveKind::kGather || kind == CollectiveKind::kAllGather;
  if (std::string problem = check_parts(request, request.input_parts, "input", has_in, each(request.output.size()));
      !problem.empty()) {
    return problem;
  }
  return check_parts(request, request.output_parts, "output", has_out, each(request.input.size()));
}

std::string check_all_to_all(const CollectiveRequest& request) {
  const auto check = [&](const std::vector<std::uint64_t>& parts, std::size_t bytes, const std::string& side) {
    if (parts.size() != request.ranks.size()) {
      return side + " has " + std::to_string(parts.size()) + " parts; a group of " +
             std::to_string(request.ranks.size()) + " ranks needs one per rank";
    }
    for (const std::uint64_t part : parts) {
      if (part % wire::element_bytes(request.element) != 0)
        return "a part of the " + side + " is not a whole number of elements";
    }
    // Compare each part first: their sum might wrap.
    const bool fits = std::ranges::all_of(parts, [&](std::uint64_t part) { return part <= bytes; });
    if (!fits || total(parts) != bytes) {
      return "the parts of the " + side + " have " + std::to_string(total(parts)) + " bytes in all, it has " +
             std::to_string(bytes);
    }
    return std::string();
  };
  if (request.input_parts.empty()) {
    if (std::string problem = check(request.send_bytes, request.input.size(), "input"); !problem.empty())
      return problem;
  }
  return request.output_parts.empty() ? check(request.receive_bytes, request.output.size(), "output") : "";
}

std::string check_fit(std::uint64_t bytes, const char* side, std::uint64_t needed, const std::string& why) {
  if (bytes == needed) return "";
  return "the " + std::string(side) + " has " + std::to_string(bytes) + " bytes; " + why + " have " +
         std::to_string(needed);
}

std::string check_sizes(const CollectiveRequest& request, std::uint16_t rank) {
  const std::uint64_t in = request.input_bytes(), out = request.output_bytes(), n = request.ranks.size();
  const std::string ranks = std::to_string(n) + " ranks", root = "only the root, rank " + std::to_string(request.root);
  const bool is_root = rank == request.root;
  switch (request.kind) {
    case CollectiveKind::kGather:
      if (!is_root) return out == 0 ? "" : root + ", has an output";
      return check_fit(out, "output", in * n, "the inputs of " + ranks);
    case CollectiveKind::kAllGather:
      return check_fit(out, "output", in * n, "the inputs of " + ranks);
    case CollectiveKind::kReduceScatter:
      return check_fit(in, "input", out * n, "the outputs of " + ranks);
    case CollectiveKind::kScatter:
      if (!is_root) return in == 0 ? "" : root + ", has an input";
      return check_fit(in, "input", out * n, "the outputs of " + ranks);
    case CollectiveKind::kReduce:
      if (!is_root) return out == 0 ? "" : root + ", has an output";
      return check_fit(out, "output", in, "the inputs");
    case CollectiveKind::kBroadcast:
      return in == 0 ? "" : "it has one tensor, which is the output of all but the root";
    case CollectiveKind::kBarrier:
      return in == 0 && out == 0 ? "" : "it carries no tensor";
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kAllToAll:
      break;
  }
  return "";
}

// Of all but all-reduce and all-to-all.
std::string check_exchange(const CollectiveRequest& request, std::uint16_t rank) {
  if (has_root(request.kind) && std::ranges::find(request.ranks, request.root) == request.ranks.end()) {
    return "its root, rank " + std::to_string(request.root) + ", is not in the group";
  }
  const std::uint32_t element_bytes = wire::element_bytes(request.element);
  if (request.input.size() % element_bytes != 0 || request.output.size() % element_bytes != 0) {
    return "its size is not a multiple of the element size";
  }
  // PROTOCOL 22.3.2: ... A broadcast and a barrier MUST NOT lose.
  const bool must_not_lose = request.kind == CollectiveKind::kBroadcast || request.kind == CollectiveKind::kBarrier;
  if (must_not_lose && request.loss_bound > 0) {
    return "a " + std::string(collective_name(request.kind)) + " must not lose: use a loss bound of 0";
  }
  if (has_algorithm(request.kind)) {
    std::string problem = check_other_algorithm(request.algorithm, group_size(request), has_root(request.kind),
                                                collective_name(request.kind));
    if (!problem.empty()) return problem;
  }
  if (has_reduction(request.kind)) {
    if (std::string problem = check_reduction(request); !problem.empty()) return problem;
  }
  return check_sizes(request, rank);
}

bool do_overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

// As may_share(), where a side has parts of its own: the own part may stay where it is, in all of them.
std::string check_overlap_of_parts(const CollectiveRequest& request, std::size_t own) {
  std::vector<std::span<const std::byte>> in = request.input_parts,
                                          out(request.output_parts.begin(), request.output_parts.end());
  if (in.empty()) in.push_back(request.input);
  if (out.empty()) out.push_back(request.output);
  const std::span<const std::byte> own_in = in.size() == 1 ? in[0] : in[own],
                                   own_out = out.size() == 1 ? out[0] : out[own];
  const bool is_in_place = own_in.data() == own_out.data() && own_in.size() == own_out.size();
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (const std::span<const std::byte> part : in) {
      const bool is_own = is_in_place && (out.size() == 1 || i == own) && part.data() == own_in.data();
      if (do_overlap(out[i], part) && !is_own) return "the output overlaps the input; pass separate memory";
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (do_overlap(out[i], out[j])) {
        return "parts " + std::to_string(j) + " and " + std::to_string(i) +
               " of the output overlap; pass separate memory";
      }
    }
  }
  return "";
}

// Input and output must not overlap: arriving data would change data not sent yet. They may share what stays here: a
// member's own part, and the input of a reduce, which is combined once everything has arrived.
bool may_share(const CollectiveRequest& request, std::size_t own) {
  const std::byte* const in = request.input.data();
  const std::byte* const out = request.output.data();
  switch (request.kind) {
    case CollectiveKind::kGather:
    case CollectiveKind::kAllGather:
      return in == out + own * request.input.size();
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kScatter:
      return out == in + own * request.output.size();
    case CollectiveKind::kReduce:
      return in == out;
    default:
      return false;
  }
}

constexpr std::size_t kRateAt = 28, kFlagsAt = 29;
constexpr std::byte kLossyResults{1}, kChecksums{2};

}  // namespace

std::string in_short(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

const char* collective_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kAllToAll:
      return "all-to-all";
    case CollectiveKind::kGather:
      return "gather";
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kReduce:
      return "reduce";
    case CollectiveKind::kScatter:
      return "scatter";
    case CollectiveKind::kBarrier:
      return "barrier";
  }
  return "unknown collective";
}

// PROTOCOL 22.1.5: The first transfer from one member to another MUST be the shape, 32 bytes of uint8: kind (8; 1
//     all-reduce, 2 all-to-all, 3 gather, 4 all-gather, 5 reduce-scatter, 6 broadcast, 7 reduce, 8 scatter, 9 barrier),
//     reduction (8; as in 22.2; 0 where there is none), root (16; 0 where there is none), sequence (32), bytes (64; in
//     an all-to-all of what follows, else of the tensor or of a member's part), loss bound (float64), element type (8),
//     algorithm (8; of an all-reduce, broadcast, reduce, all-gather or reduce-scatter, as in 22.2; else 0), ranks of a
//     host (16; of two levels, as in 22.7; else 0), rate (8; as in 22.8), flags (8; the sum of 1 if the results of an
//     all-reduce may be lost, as in 22.2.9, and 2 if checksums follow, as in 22.9), cut (16; of a ring, as in 22.8;
//     else 0).
std::array<std::byte, kShapeBytes> encode(const Shape& shape) {
  std::array<std::byte, kShapeBytes> out{};
  out[0] = static_cast<std::byte>(shape.kind);
  out[1] = static_cast<std::byte>(shape.reduction);
  base::store_le16(out.data() + 2, shape.root);
  base::store_le32(out.data() + 4, shape.sequence);
  base::store_le64(out.data() + 8, shape.bytes);
  base::store_le64(out.data() + 16, std::bit_cast<std::uint64_t>(shape.loss_bound));
  out[24] = static_cast<std::byte>(shape.element);
  out[25] = static_cast<std::byte>(shape.algorithm);
  base::store_le16(out.data() + 26, shape.ranks_per_host);
  out[kRateAt] = static_cast<std::byte>(shape.rate);
  if (shape.lossy_results) out[kFlagsAt] |= kLossyResults;
  if (shape.checksums) out[kFlagsAt] |= kChecksums;
  base::store_le16(out.data() + 30, shape.cut);
  return out;
}

bool is_same_call(std::span<const std::byte, kShapeBytes> a, std::span<const std::byte, kShapeBytes> b) {
  return std::ranges::equal(a.first<kRateAt>(), b.first<kRateAt>()) &&
         std::ranges::equal(a.subspan<kRateAt + 1>(), b.subspan<kRateAt + 1>());
}

std::uint8_t announced_rate(std::span<const std::byte, kShapeBytes> shape) {
  return static_cast<std::uint8_t>(shape[kRateAt]);
}

std::string describe_shape(std::span<const std::byte, kShapeBytes> bytes) {
  const auto kind = static_cast<CollectiveKind>(bytes[0]);
  const auto element = static_cast<std::uint8_t>(bytes[24]);
  // People count calls from 1.
  const std::uint64_t number = std::uint64_t{base::load_le32(&bytes[4])} + 1;
  std::string text = std::string(collective_name(kind)) + " number " + std::to_string(number);
  const std::string checksums = (bytes[kFlagsAt] & kChecksums) != std::byte{0} ? ", with checksums" : "";
  if (kind == CollectiveKind::kBarrier) return text + checksums;  // it has no data
  text += " of " + std::to_string(base::load_le64(&bytes[8])) + " bytes of " +
          wire::element_name(static_cast<wire::ElementType>(element)) + ", loss bound " +
          in_short(std::bit_cast<double>(base::load_le64(&bytes[16])));
  if ((bytes[kFlagsAt] & kLossyResults) != std::byte{0}) text += ", lossy results";
  if (has_reduction(kind)) text += std::string(", ") + reduction_name(static_cast<Reduction>(bytes[1]));
  if (has_algorithm(kind)) {
    text += std::string(", algorithm ") + algorithm_name(static_cast<CollectiveAlgorithm>(bytes[25]));
    if (const auto local = base::load_le16(&bytes[26])) text += " of " + std::to_string(local) + " ranks per host";
    if (const auto cut = base::load_le16(&bytes[30])) text += " by rates (cut " + std::to_string(cut) + ")";
  }
  if (has_root(kind)) text += ", root " + std::to_string(base::load_le16(&bytes[2]));
  return text + checksums;
}

Stream make_stream(std::uint16_t peer, bool is_send, std::uint64_t bytes, std::uint32_t pieces, std::uint32_t window) {
  Stream stream;
  stream.peer = peer;
  stream.is_send = is_send;
  stream.bytes = bytes;
  stream.steps = pieces + 1;
  stream.window = window;
  return stream;
}

bool Collective::is_ready(const Stream&, std::uint32_t) const { return true; }
bool Collective::may_receive(const Stream&, std::uint32_t) const { return true; }
void Collective::on_received(const Stream&, std::uint32_t, const core::Completion&) {}

namespace {

// Of the tensor, or of a member's part, where has_algorithm().
std::uint64_t carried_bytes(const CollectiveRequest& request) {
  const bool is_input = request.kind == CollectiveKind::kReduce || request.kind == CollectiveKind::kAllGather;
  return is_input ? request.input.size() : request.output.size();
}

}  // namespace

bool depends_on_hosts(const CollectiveRequest& request) {
  if (!has_algorithm(request.kind)) return false;
  const std::uint64_t bytes = carried_bytes(request);
  if (request.kind == CollectiveKind::kAllReduce) {
    return depends_on_hosts(request.algorithm, request.ranks.size(), bytes);
  }
  return has_root(request.kind) ? rooted_depends_on_hosts(request.algorithm, bytes)
                                : parted_depends_on_hosts(request.algorithm, bytes);
}

CollectiveAlgorithm algorithm_of(const CollectiveRequest& request) {
  if (!has_algorithm(request.kind)) return CollectiveAlgorithm::kAutomatic;
  const std::uint64_t bytes = carried_bytes(request);
  const GroupSize group = group_size(request);
  if (request.kind == CollectiveKind::kAllReduce) return algorithm_of(request.algorithm, group, bytes);
  return has_root(request.kind) ? rooted_algorithm_of(request.algorithm, group, bytes)
                                : parted_algorithm_of(request.algorithm, group, bytes);
}

namespace {

std::unique_ptr<Collective> make_staged_all_reduce(const CollectiveRequest& request, const Membership& group) {
  const std::uint32_t element_bytes = wire::element_bytes(request.element);
  const std::span<std::byte> data = request.output;
  const StagePlan plan = algorithm_of(request) == CollectiveAlgorithm::kHalving
                             ? halving_stages(group.size(), group.own, data, element_bytes)
                             : two_level_stages(group.size(), group.own, request.ranks_per_host, data, element_bytes);
  return std::make_unique<Staged>(group, data.size(), request.element, request.reduction, plan);
}

std::unique_ptr<Collective> make_two_level(const CollectiveRequest& request, const Membership& group) {
  switch (request.kind) {
    case CollectiveKind::kAllGather:
      return make_two_level_all_gather(request, group);
    case CollectiveKind::kReduceScatter:
      return make_two_level_reduce_scatter(request, group);
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce: {
      const auto root = std::ranges::find(group.ranks, request.root) - group.ranks.begin();
      return std::make_unique<Chain>(
          request, group,
          two_level_chain(group.size(), request.ranks_per_host, static_cast<std::uint32_t>(root),
                          request.kind == CollectiveKind::kReduce));
    }
    default:
      return make_staged_all_reduce(request, group);
  }
}

}  // namespace

std::unique_ptr<Collective> make_collective(const CollectiveRequest& request, const Membership& group,
                                            std::span<const std::uint16_t> shares) {
  const std::span<std::byte> data = request.output;
  switch (algorithm_of(request)) {
    case CollectiveAlgorithm::kDirect:
      if (request.kind != CollectiveKind::kAllReduce) break;
      return std::make_unique<DirectAllReduce>(group, data, request.element, request.reduction);
    case CollectiveAlgorithm::kCentral:
      return std::make_unique<CentralAllReduce>(group, data, request.element, request.reduction);
    case CollectiveAlgorithm::kRing:
      return std::make_unique<RingAllReduce>(group, data, request.element, request.reduction, request.loss_bound,
                                             shares, request.lossy_results);
    case CollectiveAlgorithm::kHalving:
      return make_staged_all_reduce(request, group);
    case CollectiveAlgorithm::kTwoLevel:
      return make_two_level(request, group);
    case CollectiveAlgorithm::kChain:
      return std::make_unique<Chain>(request, group);
    case CollectiveAlgorithm::kAutomatic:
      break;
  }
  return std::make_unique<Exchange>(request, group);
}

std::vector<std::uint16_t> partners(const CollectiveRequest& request, std::uint16_t rank) {
  const auto own = std::ranges::find(request.ranks, rank) - request.ranks.begin();
  const auto plan = make_collective(request, {request.ranks, static_cast<std::uint32_t>(own)});
  std::vector<std::uint16_t> peers;
  for (const Stream& stream : plan->streams) peers.push_back(stream.peer);
  std::ranges::sort(peers);
  peers.erase(std::ranges::unique(peers).begin(), peers.end());
  return peers;
}

std::size_t CollectiveRequest::input_bytes() const { return input.size() + total(input_parts); }
std::size_t CollectiveRequest::output_bytes() const { return output.size() + total(output_parts); }

std::string check_request(const CollectiveRequest& request, std::uint16_t rank) {
  if (!(request.loss_bound >= 0.0 && request.loss_bound < 1.0)) {
    return "loss bound " + in_short(request.loss_bound) + ": it must be at least 0 and below 1";
  }
  // PROTOCOL 22.3.2: Each piece of floating-point elements MAY lose up to the bound; what is missing becomes zero. ...
  if (request.loss_bound > 0 && !wire::is_floating_point(request.element)) {
    return "only floating-point tensors may be lossy: use a loss bound of 0";
  }
  if (request.lossy_results && request.kind != CollectiveKind::kAllReduce) {
    return "only an all-reduce may have lossy results";
  }
  if (request.timeout_ns < 0) return "a timeout must not be negative";
  std::vector<std::uint16_t> sorted = request.ranks;
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) != sorted.end()) return "a rank is in its group twice";
  if (!std::ranges::binary_search(sorted, rank)) return "rank " + std::to_string(rank) + " is not in its group";
  if (request.kind == CollectiveKind::kAllReduce) return check_all_reduce(request);
  std::string problem = check_parts(request);
  if (problem.empty()) {
    const bool is_all_to_all = request.kind == CollectiveKind::kAllToAll;
    problem = is_all_to_all ? check_all_to_all(request) : check_exchange(request, rank);
  }
  if (!problem.empty()) return problem;
  const auto own = static_cast<std::size_t>(std::ranges::find(request.ranks, rank) - request.ranks.begin());
  if (!request.input_parts.empty() || !request.output_parts.empty()) return check_overlap_of_parts(request, own);
  if (!do_overlap(request.input, request.output)) return "";
  return may_share(request, own) ? "" : "the output overlaps the input; pass separate memory";
}

}  // namespace mlt::collective
