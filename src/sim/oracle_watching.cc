// The oracle as an observer: passes reads and sends of the hosts to the two models, and checks that operations whose
// end they determine do end.
#include <algorithm>
#include <cstring>
#include <string>

#include "sim/oracle.h"
#include "sim/oracle_contents.h"

namespace mlt::sim {

using core::CompletionKind;

void Oracle::came_up(std::uint16_t rank, const core::PeerUp& up) {
  watches_->sends.came_up(rank, up);
  watches_->receives.came_up(rank, up);
}

// Clause 18.1.1
void Oracle::went_down(std::uint16_t rank, std::uint16_t peer) {
  watches_->sends.went_down(rank, peer);
  watches_->receives.went_down(rank, peer);
  for (const auto& operation : operations_) {
    if (operation->plan.host == rank && operation->plan.peer == peer) must_end(operation->id, "its peer is down");
  }
}

// Clause 10.1.1: the outcomes of all receives of the last two seconds arrived before the goodbye; less here, as the
// goodbye took time to arrive.
void Oracle::hears_goodbye(std::uint16_t rank, std::uint16_t peer, std::uint64_t connection) {
  for (const auto& operation : operations_) {
    if (operation->kind != CompletionKind::kSend || operation->plan.host != rank || operation->plan.peer != peer)
      continue;
    // A host that was suspended has not yet read that an earlier connection ended.
    if (operation->ended || operation->lost || operation->key.connection != connection) continue;
    const core::OperationId id = matches_.at(operation->key).receive;
    if (id == 0) continue;
    const Operation& receive = *operations_[id - 1];
    operation->told = receive.ended && !core::is_failure(receive.status) && !outcome_forgotten(receive) &&
                      simulator_.now() - receive.ended_ns < base::kSecond;
  }
}

// Clause 18.1.5
void Oracle::is_limited(std::uint16_t rank, const core::PathLimit& limit) {
  const std::uint32_t segment = simulator_.host(rank).config().endpoint.max_segment_bytes;
  for (const auto& operation : operations_) {
    const Plan& plan = operation->plan;
    if (operation->kind != CompletionKind::kSend || plan.host != rank || plan.peer != limit.peer) continue;
    if (operation->ended || operation->lost || operation->cancelled) continue;
    if (std::min(plan.bytes, segment) <= limit.payload_bytes) continue;
    operation->too_long = true;
    must_end(operation->id, "its segments are too long for the path");
    unwatch(*operation);
  }
}

void Oracle::reads(std::uint16_t rank, base::TimeNs local, std::span<const std::byte> bytes, bool by_control) {
  wire::Prefix prefix;
  if (wire::decode_prefix(bytes, prefix) != wire::DropReason::kNone) return;
  if (!watches_->receives.is_up(rank, prefix.cookie)) return;
  if (prefix.path >= simulator_.host(rank).config().endpoint.paths) return;
  watches_->sends.reads(rank, local, prefix, bytes);
  must_end(watches_->sends.stopped(), "its receiver said how it ended");
  must_end(watches_->receives.reads(rank, local, prefix, bytes, by_control), "what arrived settles it");
}

// Clause 18.1.5, of a limit found by the host itself: its sends have failed, and their completions follow.
void Oracle::excuse_too_long(std::uint16_t rank) {
  const std::uint64_t found = simulator_.endpoint(rank).counters().value(core::Counter::k_mtu_limits_found);
  if (found == limits_found_[rank]) return;
  limits_found_[rank] = found;
  for (const auto& operation : operations_) {
    if (operation->plan.host != rank || operation->ended || operation->lost || !may_be_too_long(*operation)) continue;
    const std::uint32_t limit = simulator_.endpoint(rank).path_limit_bytes(operation->plan.peer);
    if (limit == 0 || longest_datagram(*operation) <= limit) continue;
    operation->too_long = true;
    unwatch(*operation);
  }
}

void Oracle::sends_run(std::uint16_t rank, base::TimeNs local, const core::Transmit& run) {
  if (shortest_link_bytes_ != kNoShortLink) excuse_too_long(rank);
  watches_->sends.sends_run(rank, local, run);
}

void Oracle::sends(std::uint16_t rank, base::TimeNs local, const Packet& packet) {
  watches_->sends.sends(rank, local, packet);
  watches_->receives.sends(rank, local, packet.to, packet.datagram(), packet.path);
}

void Oracle::sends_message(std::uint16_t rank, base::TimeNs local, const core::ControlOutput& output) {
  watches_->sends.sends_message(rank, local, output);
  watches_->receives.sends(rank, local, output.peer, {output.bytes, output.size}, wire::kNoReplyPath);
}

void Oracle::must_end(core::OperationId id, const char* why) {
  if (id == 0 || watches_ == nullptr) return;
  const Operation& operation = *operations_[id - 1];
  if (!operation.ended && !operation.lost) watches_->due[operation.plan.host].push_back({id, why});
}

void Oracle::turn_ended(std::uint16_t rank, base::TimeNs local) {
  (void)local;
  // Before the application posts again: an operation posted after a limit was found is tried (18.1.5), and watched.
  if (shortest_link_bytes_ != kNoShortLink) excuse_too_long(rank);
  watches_->sends.turn_ended(rank);
  for (const Watches::Due& due : watches_->due[rank]) {
    const Operation& operation = *operations_[due.operation - 1];
    if (!operation.ended && !operation.lost) {
      violate(14, operation, std::string(due.why) + ", and it did not end at once");
    }
  }
  watches_->due[rank].clear();
}

// An operation that was posted.
void Oracle::watch(const Operation& operation) {
  if (watches_ == nullptr) return;
  const Plan& plan = operation.plan;
  const auto generation = static_cast<std::uint32_t>(operation.key.generation);
  if (operation.kind == CompletionKind::kReceive) {
    const ReceiveWatch::Early early = watches_->receives.posted(
        plan.host, plan.peer, {operation.id, plan.tag, generation, plan.bytes, plan.element, plan.up_to});
    check_early(operation, early.kept);
    if (early.must_end) must_end(operation.id, "what came before its post settles it");
    return;
  }
  WatchedSend send;
  send.operation = operation.id;
  send.tag = plan.tag;
  send.generation = generation;
  send.bytes = plan.bytes;
  send.element = plan.element;
  send.order = plan.order;
  send.uniform = plan.uniform_priority;
  if (has_tag_per_segment(plan)) {
    send.priorities = plan.priorities;
    send.classified_late = !operation.priorities.empty();
  }
  send.is_fed = plan.fed_parts > 0;
  const base::DurationNs timeout =
      plan.timeout_ns > 0 ? plan.timeout_ns : simulator_.host(plan.host).config().endpoint.operation_timeout_ns;
  send.expires_ns = operation.posted_ns + timeout;
  watches_->sends.posted(plan.host, plan.peer, std::move(send));
}

void Oracle::unwatch(const Operation& operation) {
  if (watches_ == nullptr) return;
  const Plan& plan = operation.plan;
  if (operation.kind == CompletionKind::kSend) return watches_->sends.ended(plan.host, plan.peer, operation.id);
  watches_->receives.ended(plan.host, plan.peer, operation.id);
}

void Oracle::unwatch_host(std::uint16_t rank) {
  if (watches_ == nullptr) return;
  watches_->sends.crashed(rank);
  watches_->receives.crashed(rank);
  watches_->due[rank].clear();
}

// Rule 13: data that arrived before the post, and fitted, is in the buffer now.
void Oracle::check_early(const Operation& receive, const std::vector<std::uint32_t>& offsets) {
  const Match& match = matches_.at(receive.key);
  if (match.send == 0) return;
  const Plan& sent = operations_[match.send - 1]->plan;
  if (sent.bytes == 0 || !sizes_agree(sent, receive.plan) || sent.element != receive.plan.element) return;
  const Contents contents(match.send, 0);
  const std::span<const std::byte> data = std::span(receive.memory).subspan(kCanaryBytes, sent.bytes);
  const std::size_t segment = simulator_.host(receive.plan.host).config().endpoint.max_segment_bytes;
  for (const std::uint32_t offset : offsets) {
    if (contents.hold(offset, data.subspan(offset, std::min(segment, data.size() - offset)))) continue;
    return violate(13, receive, "early data from " + std::to_string(offset) + " on was within the share, and is lost");
  }
}

// Adds all delivered bytes and the outcome to the digest.
void Oracle::mix_contents(const Operation& operation, const core::Completion& completion) {
  simulator_.mix(operation.id);
  simulator_.mix((completion.missing_bytes << 8) ^ static_cast<std::uint64_t>(completion.status));
  if (operation.kind != CompletionKind::kReceive) return;
  const std::span<const std::byte> data = std::span(operation.memory).subspan(kCanaryBytes, operation.plan.bytes);
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at + 8 <= data.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data() + at, 8);
    sum = (sum + word) * 0x9E3779B97F4A7C15ULL;
  }
  for (std::size_t at = data.size() & ~std::size_t{7}; at < data.size(); ++at) {
    sum = (sum + std::to_integer<std::uint64_t>(data[at])) * 0x9E3779B97F4A7C15ULL;
  }
  simulator_.mix(sum);
}

}  // namespace mlt::sim
