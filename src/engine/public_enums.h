// Conversions between the enumerators of the public API and those of the core and the wire, whose values are equal.
#pragma once

#include "collective/algorithm.h"
#include "collective/reduction.h"
#include "core/event.h"
#include "mlt.h"
#include "wire/element.h"

namespace mlt::engine {

inline wire::ElementType wire_element(Element element) { return static_cast<wire::ElementType>(element); }
inline Element public_element(wire::ElementType element) { return static_cast<Element>(element); }
inline collective::Reduction inner_reduction(Reduction reduction) {
  return static_cast<collective::Reduction>(reduction);
}
inline collective::CollectiveAlgorithm inner_algorithm(Algorithm algorithm) {
  return static_cast<collective::CollectiveAlgorithm>(algorithm);
}
inline Status public_status(core::CompletionStatus status) { return static_cast<Status>(status); }

template <auto kPublic, auto kInner>
constexpr bool kSame = static_cast<int>(kPublic) == static_cast<int>(kInner);
static_assert(kSame<Status::kComplete, core::CompletionStatus::kComplete>);
static_assert(kSame<Status::kWithinBound, core::CompletionStatus::kWithinBound>);
static_assert(kSame<Status::kDeadline, core::CompletionStatus::kDeadline>);
static_assert(kSame<Status::kSizeMismatch, core::CompletionStatus::kSizeMismatch>);
static_assert(kSame<Status::kTypeMismatch, core::CompletionStatus::kTypeMismatch>);
static_assert(kSame<Status::kPeerFailed, core::CompletionStatus::kPeerFailed>);
static_assert(kSame<Status::kTimedOut, core::CompletionStatus::kTimedOut>);
static_assert(kSame<Status::kCancelled, core::CompletionStatus::kCancelled>);
static_assert(kSame<Element::kUint8, wire::ElementType::kUint8>);
static_assert(kSame<Element::kInt8, wire::ElementType::kInt8>);
static_assert(kSame<Element::kInt16, wire::ElementType::kInt16>);
static_assert(kSame<Element::kInt32, wire::ElementType::kInt32>);
static_assert(kSame<Element::kInt64, wire::ElementType::kInt64>);
static_assert(kSame<Element::kFloat16, wire::ElementType::kFloat16>);
static_assert(kSame<Element::kBfloat16, wire::ElementType::kBfloat16>);
static_assert(kSame<Element::kFloat32, wire::ElementType::kFloat32>);
static_assert(kSame<Element::kFloat64, wire::ElementType::kFloat64>);
static_assert(kSame<Element::kUint16, wire::ElementType::kUint16>);
static_assert(kSame<Element::kUint32, wire::ElementType::kUint32>);
static_assert(kSame<Element::kUint64, wire::ElementType::kUint64>);
static_assert(kSame<Element::kBool, wire::ElementType::kBool>);
static_assert(kSame<Reduction::kSum, collective::Reduction::kSum>);
static_assert(kSame<Reduction::kMean, collective::Reduction::kMean>);
static_assert(kSame<Reduction::kMin, collective::Reduction::kMin>);
static_assert(kSame<Reduction::kMax, collective::Reduction::kMax>);
static_assert(kSame<Reduction::kProduct, collective::Reduction::kProduct>);
static_assert(kSame<Reduction::kAnd, collective::Reduction::kAnd>);
static_assert(kSame<Reduction::kOr, collective::Reduction::kOr>);
static_assert(kSame<Reduction::kXor, collective::Reduction::kXor>);
static_assert(kReductionCount == collective::kReductionCount);
static_assert(kSame<Algorithm::kAutomatic, collective::CollectiveAlgorithm::kAutomatic>);
static_assert(kSame<Algorithm::kDirect, collective::CollectiveAlgorithm::kDirect>);
static_assert(kSame<Algorithm::kCentral, collective::CollectiveAlgorithm::kCentral>);
static_assert(kSame<Algorithm::kRing, collective::CollectiveAlgorithm::kRing>);
static_assert(kSame<Algorithm::kHalving, collective::CollectiveAlgorithm::kHalving>);
static_assert(kSame<Algorithm::kChain, collective::CollectiveAlgorithm::kChain>);
static_assert(kSame<Algorithm::kTwoLevel, collective::CollectiveAlgorithm::kTwoLevel>);
static_assert(kAlgorithmCount == collective::kCollectiveAlgorithmCount);

}  // namespace mlt::engine
