// Collectives in which each part goes straight from the rank that has it to the ranks that need it: all-to-all, gather,
// all-gather, reduce-scatter, broadcast, reduce, scatter and barrier. Long broadcasts and
// reduces are chains (collective/chain.h).
//
// Parts are stored one after another in group order, or each in memory of its own (CollectiveRequest::input_parts).
// The order of peers is rotated: at index j, a rank sends to the j-th rank after it and receives from the j-th before
// it, so that the ranks do not all start with the same peer. The senders are not throttled here: the endpoints' rate
// control prevents overload of a root's link. A reduction keeps the terms in memory of its own, and combines them in
// group order when all have arrived: the result is rounded once, does not depend on the order of arrival, and is not
// written if the collective fails. A mean is divided by the terms that arrived, element by element. Each rank also
// sends its shape to the next one, with which it may share no part: calls that differ are found whatever they are.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collective/collective.h"
#include "collective/reduction.h"
#include "collective/term_counts.h"

namespace mlt::collective {

// Max bytes of a transfer; a multiple of every element's size.
inline constexpr std::uint64_t kPartPieceBytes = 4U << 20;

// Max transfers in progress with each of `peers` peers: a window's worth with one peer, fewer with many, at least one.
std::uint32_t window_of(std::size_t peers);

class Exchange final : public Collective {
 public:
  Exchange(const CollectiveRequest& request, const Membership& group);

  void begin() override;
  void finish() override;
  void fill(const Stream& stream, std::uint32_t step, core::SendRequest& request) override;
  void fill(const Stream& stream, std::uint32_t step, core::ReceiveRequest& request) override;
  void on_received(const Stream& stream, std::uint32_t step, const core::Completion& completion) override;
  bool is_lossy(std::uint32_t) const override { return loss_bound_ > 0; }

 private:
  // What this rank sends to each member and receives from it, its own parts included. No part differs from an empty
  // one.
  struct Routes {
    explicit Routes(std::uint32_t members) : out(members), in(members) {}
    std::vector<std::optional<std::span<const std::byte>>> out;
    std::vector<std::optional<std::span<std::byte>>> in;
  };

  Routes routes_of(const CollectiveRequest& request, const Membership& group);
  // Receives every other member's term of `bytes`; the own one is `own`.
  void receive_terms(Routes& routes, const Membership& group, std::span<const std::byte> own);
  void make_streams(const Routes& routes, const Membership& group, std::uint64_t bytes, bool is_send);
  std::size_t index_of(const Stream& stream) const { return static_cast<std::size_t>(&stream - streams.data()); }

  wire::ElementType element_;
  double loss_bound_;
  std::span<const std::byte> own_input_;  // copied to own_output_
  std::span<std::byte> own_output_;
  std::vector<std::span<const std::byte>> sources_;  // of each stream that sends
  std::vector<std::span<std::byte>> destinations_;   // of each stream that receives
  const Kernel* kernel_ = nullptr;                   // null: nothing is combined here
  core::SharedLossBudget budget_;                    // of all receives of terms
  std::span<std::byte> result_;
  std::vector<const std::byte*> terms_;    // in group order
  std::vector<TermCounts> counts_;         // of a mean that may lose terms: for each piece of the result
  std::unique_ptr<std::byte[]> received_;  // the other members' terms
};

}  // namespace mlt::collective
