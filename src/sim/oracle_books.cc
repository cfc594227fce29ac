// Checks over all operations together: progress, the network's accounts against the endpoints' counters, limits.
#include <string_view>

#include "sim/oracle.h"
#include "sim/oracle_contents.h"

namespace mlt::sim {

using core::Counter;

std::uint64_t Oracle::progress() const {
  std::uint64_t sum = completions_ + operations_.size();
  for (std::uint16_t rank = 0; rank < simulator_.hosts(); ++rank) {
    if (simulator_.host(rank).is_up()) {
      sum += simulator_.endpoint(rank).counters().value(Counter::k_segments_placed);
      sum += simulator_.endpoint(rank).counters().value(Counter::k_segments_restored);
    }
  }
  return sum;
}

std::string Oracle::unfinished() const {
  std::string text;
  for (const auto& operation : operations_) {
    if (operation->ended || operation->lost) continue;
    text += std::string(text.empty() ? "" : ", ") + kind_name(operation->kind) + " " + std::to_string(operation->id) +
            " (rank " + std::to_string(operation->plan.host) + ", peer " + std::to_string(operation->plan.peer) +
            ", tag " + std::to_string(operation->plan.tag) + ")";
  }
  return text;
}

void Oracle::finish() {
  if (!all_ended()) simulator_.fail("rule 3: never ended: " + unfinished());
  for (const auto& operation : operations_) {
    if (operation->lost) continue;
    check_not_fed(*operation);
    check_memory(*operation);
  }
  check_conservation();
  check_limits(true);
}

// Rule 5. The network's accounts against the endpoints' own counters.
void Oracle::check_conservation() {
  const Ledger& ledger = simulator_.ledger();
  std::vector<std::uint64_t> sums = retired_;
  for (std::uint16_t rank = 0; rank < simulator_.hosts(); ++rank) {
    if (!simulator_.host(rank).is_up()) continue;
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += simulator_.endpoint(rank).counters().values()[i];
  }
  const auto sum = [&](auto... which) { return (sums[static_cast<std::size_t>(which)] + ...); };
  const auto balance = [&](const char* what, std::uint64_t left, std::uint64_t right) {
    if (left == right) return;
    simulator_.fail(std::string("rule 5: ") + what + ": " + std::to_string(left) + " against " + std::to_string(right));
  };
  using C = Counter;
  const Tally& data = ledger.of(Fate::k_sent, true);
  balance("data packets sent, by endpoints and network", sum(C::k_data_packets_sent, C::k_parity_packets_sent),
          data.packets);
  balance("data bytes sent, by endpoints and network",
          sum(C::k_data_bytes_sent, C::k_parity_bytes_sent) +
              MLT_DATA_HEADER_BYTES * sum(C::k_data_packets_sent, C::k_parity_packets_sent),
          data.bytes);
  balance("control datagrams sent, by endpoints and network",
          sum(C::k_acks_sent, C::k_probes_sent, C::k_bitmaps_sent, C::k_stops_sent, C::k_mtu_probes_sent,
              C::k_mtu_replies_sent) -
              sum(C::k_tcp_fallback_packets_sent),
          ledger.of(Fate::k_sent, false).packets);
  balance("data packets neither delivered nor dropped", ledger.in_flight(true).packets, 0);
  balance("control datagrams neither delivered nor dropped", ledger.in_flight(false).packets, 0);
  balance("packets that the simulator forgot", simulator_.packets_in_use(), 0);
  const std::uint64_t taken = ledger.packets(Fate::k_delivered) + simulator_.messages_delivered();
  balance("what hosts took, and what endpoints counted", taken - simulator_.lost_in_crashes(),
          sum(C::k_data_packets_received, C::k_parity_packets_received, C::k_acks_received, C::k_probes_received,
              C::k_bitmaps_received, C::k_stops_received, C::k_aborts_received, C::k_retirements_received,
              C::k_mtu_probes_received, C::k_mtu_replies_received, C::k_drop_too_short, C::k_drop_bad_version,
              C::k_drop_unknown_type, C::k_drop_unknown_flags, C::k_drop_unknown_element, C::k_drop_bad_length,
              C::k_drop_bad_cookie, C::k_drop_bad_path));
  // Clause R2.6.3: random losses, pauses and dead paths that affect both probes alike are no evidence.
  if (shortest_link_bytes_ == kNoShortLink && sum(C::k_mtu_limits_found) > 0) {
    simulator_.fail("rule 16: a path is said to carry short datagrams only, and every link carries all");
  }
  // Events that a state table excludes: correct endpoints never encounter one, except a late cancellation.
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::string_view name = core::kCounterNames[i];
    if (sums[i] == 0 || !name.starts_with("wrong_state_") || name.ends_with("_cancel")) continue;
    simulator_.fail("rule 9: " + std::string(name) + " is " + std::to_string(sums[i]));
  }
  // The fates of each data packet. Early ones are counted again when their receive is posted, at most once each.
  const std::uint64_t fates =
      sum(C::k_segments_placed, C::k_duplicate_segments, C::k_stale_packets, C::k_early_segments_kept,
          C::k_early_segments_dropped, C::k_drop_bad_segment, C::k_drop_mismatch);
  const std::uint64_t received = sum(C::k_data_packets_received);
  if (fates < received ||
      fates > received + sum(C::k_early_segments_kept, C::k_probes_received, C::k_parity_packets_received)) {
    simulator_.fail("rule 5: of " + std::to_string(received) + " data packets " + std::to_string(fates) +
                    " have a fate");
  }
}

// Rule 6, at any time. At the end no operation and no timer may be left.
void Oracle::check_limits(bool at_the_end) {
  for (std::uint16_t rank = 0; rank < simulator_.hosts(); ++rank) {
    if (!simulator_.host(rank).is_up()) continue;
    const core::Usage usage = simulator_.endpoint(rank).usage();
    const auto check = [&](const char* what, const core::Held& held) {
      if (held.used <= (at_the_end ? 0 : held.limit)) return;
      simulator_.fail("rule 6: rank " + std::to_string(rank) + " holds " + std::to_string(held.used) + " " + what +
                      " of " + std::to_string(held.limit) + (at_the_end ? ", although everything has ended" : ""));
    };
    // A completion's slot is returned in the driver's next call: one of them may be in use.
    core::Held sends = usage.sends;
    core::Held receives = usage.receives;
    core::Held words = usage.bitmap_words;
    if (at_the_end) {
      core::Held& last = sends.used > 0 ? sends : receives;
      if (last.used > 0) {
        --last.used;
        if (&last == &receives) words.used = 0;  // its bitmap is freed with it
      }
    }
    check("sends", sends);
    check("receives", receives);
    check("bitmap words", words);
    check("replies", usage.replies);
    check("parity packets", usage.parity_packets);
    check("early segments and transfers sent", usage.early_sent);
    check("completions", usage.completions);
    // Segments for receives that were never posted remain: the buffer is for them.
    if (!at_the_end) check("early segments", usage.early_segments);
    if (at_the_end && simulator_.endpoint(rank).next_timeout() != base::kNever) {
      simulator_.fail("rule 6: rank " + std::to_string(rank) + " still has a timer, although everything has ended");
    }
  }
}

}  // namespace mlt::sim
