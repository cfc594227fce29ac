#include "sim/collective_call.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/prng.h"
#include "core/loss_bound.h"
#include "wire/element.h"

namespace mlt::sim {

namespace {

using collective::CollectiveKind;
using collective::CollectiveRequest;
using collective::Reduction;
using wire::ElementType;

constexpr std::byte kUsedAgain{0xA5};

// Whole numbers up to 256 have no bits to lose in any of the types.
void store_whole(std::byte* at, ElementType element, std::uint32_t value) {
  const auto single = static_cast<float>(value);
  const auto bits = std::bit_cast<std::uint32_t>(single);
  switch (element) {
    case ElementType::kFloat64: {
      const double exact = value;
      std::memcpy(at, &exact, sizeof exact);
      return;
    }
    case ElementType::kBfloat16: {
      const auto upper = static_cast<std::uint16_t>(bits >> 16);
      std::memcpy(at, &upper, sizeof upper);
      return;
    }
    case ElementType::kFloat16: {
      const std::uint32_t exponent = (bits >> 23) - 127 + 15, mantissa = (bits >> 13) & 0x3FF;
      const auto half = static_cast<std::uint16_t>(value == 0 ? 0 : (exponent << 10) | mantissa);
      std::memcpy(at, &half, sizeof half);
      return;
    }
    default:
      std::memcpy(at, &single, sizeof single);
  }
}

double load_whole(const std::byte* at, ElementType element) {
  if (element == ElementType::kFloat64) {
    double value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint32_t bits = 0;
  std::memcpy(&bits, at, std::min<std::size_t>(sizeof bits, wire::element_bytes(element)));
  if (element == ElementType::kBfloat16) bits <<= 16;
  if (element == ElementType::kFloat16 && bits != 0) bits = (((bits >> 10) - 15 + 127) << 23) | ((bits & 0x3FF) << 13);
  return std::bit_cast<float>(bits);
}

bool is_signed(ElementType element) {
  return element == ElementType::kInt8 || element == ElementType::kInt16 || element == ElementType::kInt32 ||
         element == ElementType::kInt64;
}

// Of an element's low bits, extended by its sign where it has one.
std::uint64_t load_integer(const std::byte* at, ElementType element) {
  const std::size_t each = wire::element_bytes(element);
  std::uint64_t bits = 0;
  std::memcpy(&bits, at, each);
  const auto unused = static_cast<unsigned>(64 - 8 * each);
  if (!is_signed(element)) return bits;
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(bits << unused) >> unused);
}

std::uint64_t combine_integers(std::uint64_t a, std::uint64_t b, ElementType element, Reduction reduction) {
  const bool is_bool = element == ElementType::kBool;
  const bool is_less = is_signed(element) ? static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b) : a < b;
  switch (reduction) {
    case Reduction::kMin:
      return is_less ? a : b;
    case Reduction::kMax:
      return is_less ? b : a;
    case Reduction::kProduct:
      return is_bool ? a & b : a * b;
    case Reduction::kAnd:
      return a & b;
    case Reduction::kOr:
      return a | b;
    case Reduction::kXor:
      return a ^ b;
    default:
      return is_bool ? a | b : a + b;
  }
}

double combine_whole(double a, double b, Reduction reduction) {
  if (reduction == Reduction::kMin) return std::min(a, b);
  if (reduction == Reduction::kMax) return std::max(a, b);
  return reduction == Reduction::kProduct ? a * b : a + b;
}

std::uint32_t draw_term(base::Prng& prng, const CallPlan& plan) {
  if (plan.loss_bound > 0 && plan.kind == CollectiveKind::kAllReduce) return 1;  // a sum is the number of its terms
  if (plan.reduction == Reduction::kProduct) return 1 + static_cast<std::uint32_t>(prng.below(2));
  return 1 + static_cast<std::uint32_t>(prng.below(20));
}

void fill_terms(base::Prng& prng, const CallPlan& plan, std::span<std::byte> terms) {
  if (wire::is_floating_point(plan.element)) {
    const std::size_t each = wire::element_bytes(plan.element);
    for (std::size_t at = 0; at < terms.size(); at += each)
      store_whole(&terms[at], plan.element, draw_term(prng, plan));
    return;
  }
  const std::uint64_t values = plan.element == ElementType::kBool ? 2 : 256;
  for (std::byte& byte : terms) byte = static_cast<std::byte>(prng.below(values));
}

std::string first_difference(std::span<const std::byte> a, std::span<const std::byte> b) {
  const auto [at, other] = std::ranges::mismatch(a, b);
  return "byte " + std::to_string(at - a.begin()) + " of " + std::to_string(a.size()) + " differs";
}

float float_at(std::span<const std::byte> bytes, std::size_t index) {
  float value = 0;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

}  // namespace

CollectiveCall::CollectiveCall(const CallPlan& plan, const GroupPlan& group)
    : plan_(plan), group_(group), part_bytes_(plan.elements * wire::element_bytes(plan.element)) {
  const std::size_t n = group.ranks.size();
  const bool has_parts_in = plan.kind == CollectiveKind::kReduceScatter || plan.kind == CollectiveKind::kAllToAll ||
                            plan.kind == CollectiveKind::kScatter;
  const bool has_parts_out = plan.kind == CollectiveKind::kAllGather || plan.kind == CollectiveKind::kAllToAll ||
                             plan.kind == CollectiveKind::kGather;
  base::Prng prng(plan.seed);
  terms_.assign(n, Bytes(has_parts_in ? n * part_bytes_ : part_bytes_));
  for (Bytes& terms : terms_) fill_terms(prng, plan, terms);
  inputs_ = terms_;
  outputs_.assign(n, Bytes(has_parts_out ? n * part_bytes_ : part_bytes_, std::byte{9}));
  if (is_in_place()) outputs_ = terms_;
  is_given_back_.assign(n, false);
}

bool CollectiveCall::is_in_place() const {
  return plan_.kind == CollectiveKind::kAllReduce || plan_.kind == CollectiveKind::kBroadcast;
}

bool CollectiveCall::has_output(std::size_t member) const {
  switch (plan_.kind) {
    case CollectiveKind::kGather:
    case CollectiveKind::kReduce:
      return member == plan_.root;
    case CollectiveKind::kBarrier:
      return false;
    default:
      return true;
  }
}

CollectiveRequest CollectiveCall::request(std::size_t member, core::OperationId operation) {
  CollectiveRequest made;
  made.operation = operation;
  made.kind = plan_.kind;
  made.ranks = group_.ranks;
  made.stream = group_.stream;
  made.element = plan_.element;
  made.reduction = plan_.reduction;
  made.algorithm = plan_.algorithm;
  made.ranks_per_host = plan_.ranks_per_host;
  made.loss_bound = plan_.loss_bound;
  made.lossy_results = plan_.lossy_results;
  if (has_root(plan_.kind)) made.root = group_.ranks[plan_.root];
  const bool has_input = !is_in_place() && plan_.kind != CollectiveKind::kBarrier &&
                         (plan_.kind != CollectiveKind::kScatter || member == plan_.root);
  if (has_input) made.input = inputs_[member];
  if (has_output(member)) made.output = outputs_[member];
  if (plan_.kind == CollectiveKind::kAllToAll) {
    made.send_bytes.assign(group_.ranks.size(), part_bytes_);
    made.receive_bytes = made.send_bytes;
  }
  return made;
}

CollectiveRequest CollectiveCall::other_request(core::OperationId operation) const {
  CollectiveRequest made;
  made.operation = operation;
  made.kind = plan_.kind == CollectiveKind::kBarrier ? CollectiveKind::kAllGather : CollectiveKind::kBarrier;
  made.ranks = group_.ranks;
  made.stream = group_.stream;
  return made;
}

// By itself, but for a mean, whose rounding is the kernel's (22.2.5).
CollectiveCall::Bytes CollectiveCall::reduced() const {
  if (plan_.reduction == Reduction::kMean) return reduced_by_kernel();
  const std::size_t each = wire::element_bytes(plan_.element);
  Bytes all = terms_[0];
  for (std::size_t at = 0; at < all.size(); at += each) {
    if (wire::is_floating_point(plan_.element)) {
      double value = load_whole(&all[at], plan_.element);
      for (std::size_t i = 1; i < terms_.size(); ++i) {
        value = combine_whole(value, load_whole(&terms_[i][at], plan_.element), plan_.reduction);
      }
      store_whole(&all[at], plan_.element, static_cast<std::uint32_t>(value));
      continue;
    }
    std::uint64_t value = load_integer(&all[at], plan_.element);
    for (std::size_t i = 1; i < terms_.size(); ++i) {
      value = combine_integers(value, load_integer(&terms_[i][at], plan_.element), plan_.element, plan_.reduction);
    }
    std::memcpy(&all[at], &value, each);
  }
  return all;
}

CollectiveCall::Bytes CollectiveCall::reduced_by_kernel() const {
  const collective::Kernel& kernel = *collective::kernel_of(plan_.element, plan_.reduction);
  const auto n = static_cast<std::uint32_t>(terms_.size());
  Bytes all = terms_[0];
  const std::size_t elements = all.size() / wire::element_bytes(plan_.element);
  for (std::uint32_t i = 1; i < n; ++i) {
    if (i + 1 == n && kernel.combine_last != nullptr) {
      kernel.combine_last(all.data(), terms_[i].data(), elements, n);
    } else {
      kernel.combine(all.data(), terms_[i].data(), elements);
    }
  }
  return all;
}

CollectiveCall::Bytes CollectiveCall::expected(std::size_t member) const {
  const auto part_of = [&](const Bytes& from) {
    const auto first = from.begin() + static_cast<std::ptrdiff_t>(member * part_bytes_);
    return Bytes(first, first + static_cast<std::ptrdiff_t>(part_bytes_));
  };
  Bytes all;
  switch (plan_.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
      return reduced();
    case CollectiveKind::kReduceScatter:
      return part_of(reduced());
    case CollectiveKind::kBroadcast:
      return terms_[plan_.root];
    case CollectiveKind::kScatter:
      return part_of(terms_[plan_.root]);
    case CollectiveKind::kGather:
    case CollectiveKind::kAllGather:
      for (const Bytes& terms : terms_) all.insert(all.end(), terms.begin(), terms.end());
      return all;
    case CollectiveKind::kAllToAll:
      for (const Bytes& terms : terms_) {
        const Bytes part = part_of(terms);
        all.insert(all.end(), part.begin(), part.end());
      }
      return all;
    case CollectiveKind::kBarrier:
      break;
  }
  return all;
}

std::string CollectiveCall::check_exact(std::size_t member) const {
  const Bytes right = expected(member);
  return outputs_[member] == right ? "" : first_difference(outputs_[member], right);
}

// Each element is the number of its terms, of which the member's own is one; nothing is counted twice.
std::string CollectiveCall::check_lossy_sum(std::size_t member, std::uint64_t missing_bytes) {
  const auto n = static_cast<float>(group_.ranks.size());
  const std::span<const std::byte> sums = outputs_[member];
  double missing_terms = 0;
  for (std::size_t i = 0; i < plan_.elements; ++i) {
    const float terms = float_at(sums, i);
    missing_terms += n - terms;
    if (terms >= 1 && terms <= n && terms == std::floor(terms)) continue;
    return "element " + std::to_string(i) + " of a sum of " + std::to_string(group_.ranks.size()) + " ones is " +
           std::to_string(terms);
  }
  if (!plan_.lossy_results && has_first_sum_ && outputs_[member] != first_sum_) {
    return "members end with other bits: " + first_difference(outputs_[member], first_sum_);
  }
  // Of all terms that reach it, in sums and in results.
  const auto received = static_cast<double>(2 * (group_.ranks.size() - 1) * plan_.elements * sizeof(float));
  if (static_cast<double>(missing_bytes) > plan_.loss_bound * received) {
    return std::to_string(missing_bytes) + " bytes are missing of " + std::to_string(received);
  }
  // A sum takes n - 1 transfers of each element, whoever adds, and each that loses one loses n - 1 terms at most; so do
  // those of the results.
  const double allowed = plan_.loss_bound * static_cast<double>(plan_.elements) * (n - 1) * (n - 1);
  if (missing_terms > allowed * (plan_.lossy_results ? 2 : 1)) {
    return std::to_string(missing_terms) + " terms are missing of which " + std::to_string(allowed) + " may be";
  }
  missing_terms_.push_back(missing_terms);
  reported_bytes_ += missing_bytes;
  return check_reported_terms();
}

std::string CollectiveCall::check_reported_terms() const {
  if (missing_terms_.size() < group_.ranks.size()) return "";
  const std::uint64_t reported = reported_bytes_ / sizeof(float) * (group_.ranks.size() - 1);
  for (const double missing : missing_terms_) {
    if (missing <= static_cast<double>(reported)) continue;
    return std::to_string(missing) + " terms are missing, and what all members report explains " +
           std::to_string(reported);
  }
  return "";
}

// Missing elements are zero, and no element passed is.
std::string CollectiveCall::check_lossy(std::size_t member, std::uint64_t missing_bytes) {
  if (plan_.kind == CollectiveKind::kAllReduce) return check_lossy_sum(member, missing_bytes);
  const Bytes right = expected(member);
  std::uint64_t missing = 0;
  std::vector<std::uint64_t> missing_of(group_.ranks.size());
  for (std::size_t i = 0; i < right.size() / sizeof(float); ++i) {
    const float value = float_at(outputs_[member], i);
    if (value == float_at(right, i)) continue;
    if (value != 0) return "element " + std::to_string(i) + " is neither what was passed nor zero";
    ++missing;
    ++missing_of[i / plan_.elements];
  }
  if (missing * sizeof(float) != missing_bytes) {
    return std::to_string(missing) + " elements are zero, and " + std::to_string(missing_bytes) +
           " bytes are reported missing";
  }
  // By two levels a part of another host may pass through one of its own.
  const std::uint64_t hops = plan_.kind == CollectiveKind::kAllGather && plan_.ranks_per_host > 0 ? 2 : 1;
  const std::uint64_t of_part = core::allowed_missing(plan_.elements, plan_.loss_bound);
  for (std::size_t part = 0; part < missing_of.size(); ++part) {
    const std::uint64_t allowed = part == member ? 0 : hops * of_part;
    if (missing_of[part] <= allowed) continue;
    return std::to_string(missing_of[part]) + " elements of part " + std::to_string(part) + " are missing of which " +
           std::to_string(allowed) + " may be";
  }
  const std::uint64_t allowed = (group_.ranks.size() - 1) * of_part;
  return missing <= allowed
             ? ""
             : std::to_string(missing) + " elements are missing of which " + std::to_string(allowed) + " may be";
}

std::string CollectiveCall::take_result(std::size_t member, std::uint64_t missing_bytes) {
  std::string problem;
  if (has_output(member)) {
    problem = plan_.loss_bound > 0 ? check_lossy(member, missing_bytes) : check_exact(member);
    if (problem.empty() && plan_.loss_bound == 0 && missing_bytes > 0) problem = "something is missing without a bound";
    if (!std::exchange(has_first_sum_, true)) first_sum_ = outputs_[member];
  }
  give_up(member);
  return problem;
}

void CollectiveCall::give_up(std::size_t member) {
  is_given_back_[member] = true;
  std::ranges::fill(inputs_[member], kUsedAgain);
  std::ranges::fill(outputs_[member], kUsedAgain);
}

bool CollectiveCall::was_touched(std::size_t member) const {
  return is_given_back_[member] &&
         !std::ranges::all_of(outputs_[member], [](std::byte one) { return one == kUsedAgain; });
}

std::string CollectiveCall::text() const {
  static constexpr const char* kFaults[] = {"", " cancels", " differs", " has a fault of its own"};
  std::string text = std::string(collective_name(plan_.kind)) + " of " + std::to_string(plan_.elements) + " " +
                     std::string(wire::element_name(plan_.element));
  if (has_reduction(plan_.kind)) text += std::string(", ") + reduction_name(plan_.reduction);
  if (has_algorithm(plan_.kind)) {
    text += std::string(", algorithm ") + algorithm_name(plan_.algorithm) + ", " +
            std::to_string(plan_.ranks_per_host) + " ranks per host";
  }
  if (has_root(plan_.kind)) text += ", root " + std::to_string(group_.ranks[plan_.root]);
  if (plan_.loss_bound > 0) text += ", loss bound " + collective::in_short(plan_.loss_bound);
  text += ", ranks";
  for (const std::uint16_t rank : group_.ranks) text += " " + std::to_string(rank);
  text += ", stream " + std::to_string(group_.stream);
  if (plan_.fault == CallPlan::Fault::kNone) return text;
  return text + ", of which " + std::to_string(group_.ranks[plan_.culprit]) +
         kFaults[static_cast<std::size_t>(plan_.fault)];
}

}  // namespace mlt::sim
