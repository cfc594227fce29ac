#include "sim/micro_world.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace mlt::sim {

namespace {

using base::DurationNs;
using base::kMicrosecond;
using base::kMillisecond;
using base::kSecond;
using base::TimeNs;

// Maximum steps of a run after its last fault. A send without a receive probes every 50 ms for the eight seconds of its
// timeout; two transfers whose data is held for 1.5 s take 3,000 steps.
constexpr std::uint64_t kMaxSteps = 20'000;
// Maximum time from then to a success: a few repetitions of a probe, which is repeated at least every 50 ms.
constexpr DurationNs kRecoveryNs = 200 * kMillisecond;
constexpr std::size_t kActions = static_cast<std::size_t>(MicroAction::kCount);
constexpr std::array<const char*, kActions> kNames = {
#define MLT_X(name, us) #name,
    MLT_MICRO_ACTIONS(MLT_X)
#undef MLT_X
};
constexpr std::array<DurationNs, kActions> kDurations = {
#define MLT_X(name, us) us *kMicrosecond,
    MLT_MICRO_ACTIONS(MLT_X)
#undef MLT_X
};

HostConfig host_config(const MicroScenario& scenario, std::uint16_t rank) {
  HostConfig host;
  core::EndpointConfig& endpoint = host.endpoint;
  endpoint.rank = rank;
  endpoint.peers = 2;
  endpoint.paths = scenario.paths;
  endpoint.max_sends = endpoint.max_receives = 3;
  endpoint.max_tags = 4;
  endpoint.unknown_tags = 4;
  endpoint.retire_after = scenario.retire_after;
  endpoint.bitmap_words = 64;
  endpoint.parity_packets = 0;  // micro-scenarios send none
  endpoint.max_segment_bytes = MicroScenario::kSegmentBytes;
  endpoint.early_segments = scenario.early_segments;
  endpoint.early_transfers = scenario.early_transfers;
  endpoint.finished_log = scenario.finished_log;
  endpoint.reply_queue = scenario.reply_queue;
  endpoint.packets_per_ack = scenario.packets_per_ack;
  endpoint.operation_timeout_ns = 8 * kSecond;
  if (rank == 1) host.clock.offset_ns = 12'345'678'901;
  // 40 us after the start the low 32 bits of this clock are zero.
  if (rank == 0 && scenario.timestamps_wrap) host.clock.offset_ns = (DurationNs{1} << 32) - kSecond - 40 * kMicrosecond;
  return host;
}

}  // namespace

const char* micro_action_name(MicroAction action) { return kNames[static_cast<std::size_t>(action)]; }
DurationNs micro_action_ns(MicroAction action) { return kDurations[static_cast<std::size_t>(action)]; }

MicroWorld::MicroWorld(const MicroScenario& scenario) : scenario_(scenario), now_(kSecond) {
  events_.reserve(32);
  free_.reserve(32);
  operations_.reserve(8);
  hosts_.reserve(2);
  for (const std::uint16_t rank : {std::uint16_t{0}, std::uint16_t{1}}) {
    hosts_.emplace_back(static_cast<World&>(*this), rank, host_config(scenario, rank));
    hosts_.back().start();
  }
  oracle_.emplace(*this, true);
  connect();
  for (std::uint16_t rank = 0; rank < 2; ++rank) {
    turns_[rank].at = base::kNever;
    hosts_[rank].on_turn(now_, turns_[rank].number);
  }
  for (std::size_t i = 0; i < scenario.transfers.size(); ++i) {
    const MicroTransfer& transfer = scenario.transfers[i];
    for (const bool is_send : {false, true}) {
      if (!(is_send ? transfer.sent : transfer.received)) continue;
      Event& event = add_event(What::kCall, now_ + 1 + (is_send ? transfer.send_at_ns : transfer.receive_at_ns));
      event.call = static_cast<std::uint8_t>(i);
      event.call_is_send = is_send;
    }
  }
}

bool MicroWorld::over() const { return !fault().empty() || due().at == base::kNever; }

std::size_t MicroWorld::packets_in_use() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(events_, [](const Event* event) { return event->what == What::kDatagram; }));
}

// ---- what is due ---------------------------------------------------------------------------------------------------

MicroWorld::Due MicroWorld::find_due(const Event* but) const {
  Due found;
  const auto consider = [&](TimeNs at, std::uint32_t number) {
    return at < found.at || (at == found.at && at != base::kNever && number < found.number);
  };
  for (Event* event : events_) {
    if (event != but && consider(event->at, event->number)) found = {event, 0, event->at, event->number};
  }
  for (std::uint16_t rank = 0; rank < 2; ++rank) {
    const Turn& turn = turns_[rank];
    if (consider(turn.at, turn.event_number)) found = {nullptr, rank, turn.at, turn.event_number};
  }
  return found;
}

const MicroWorld::Due& MicroWorld::due() const {
  if (!due_known_) {
    due_ = find_due(nullptr);
    due_known_ = true;
  }
  return due_;
}

bool MicroWorld::is_open(std::uint8_t operation) const {
  return operation < operations_.size() && oracle_->is_open(operations_[operation]);
}

void MicroWorld::find_choices(MicroActions actions, Choices& choices) const {
  choices.count = 0;
  const Due& next = due();
  const auto offer = [&](MicroAction action, std::uint8_t argument = 0) {
    if ((actions & micro_bit(action)) != 0) choices.of[choices.count++] = {action, argument};
  };
  if (next.event == nullptr) {
    // A timer runs late, and what arrives in the meantime is read first.
    if (!hosts_[next.host].is_paused(now_)) offer(MicroAction::k_pause);
  } else if (next.event->what == What::kDatagram) {
    find_datagram_choices(*next.event, actions, choices);
  } else if (next.event->what != What::kConnect) {
    offer(MicroAction::k_swap);
    if (next.event->what == What::kCall) {
      offer(MicroAction::k_late_3);
      offer(MicroAction::k_late_30);
    } else {
      offer(MicroAction::k_late_400);  // TCP's shortest retransmission timeout is 200 ms
    }
  }
  if (scenario_.cancels) {
    for (std::uint8_t i = 0; i < operations_.size(); ++i) {
      if (is_open(i)) offer(MicroAction::k_cancel, i);
    }
  }
  if (scenario_.disconnects && !disconnected_ && connection_ != 0 && !operations_.empty()) {
    offer(MicroAction::k_disconnect);
    offer(MicroAction::k_disconnect_apart, 0);
    offer(MicroAction::k_disconnect_apart, 1);
  }
}

void MicroWorld::find_datagram_choices(const Event& event, MicroActions actions, Choices& choices) const {
  using A = MicroAction;
  const bool in_data_class = event.dscp != kMicroControlDscp;
  for (const A action : {A::k_drop, A::k_copy, A::k_copy_late, A::k_swap, A::k_late_3, A::k_late_30, A::k_late_1500,
                         A::k_stall_3, A::k_stall_30, A::k_stall_1500}) {
    // Losing or delaying a copy is equivalent to not making it, or to another choice.
    if (event.is_copy && action != A::k_swap) continue;
    if ((actions & micro_bit(action)) != 0) choices.of[choices.count++] = {action, 0};
  }
  for (const A action : {A::k_hold_data_3, A::k_hold_data_30, A::k_hold_data_1500}) {
    if (!in_data_class || event.is_copy) continue;
    if ((actions & micro_bit(action)) != 0) choices.of[choices.count++] = {action, 0};
  }
}

bool MicroWorld::allows(MicroChoice choice) const {
  if (choice.action == MicroAction::k_next) return true;
  Choices choices;
  find_choices(micro_bit(choice.action), choices);
  return std::find(choices.of.begin(), choices.of.begin() + choices.count, choice) !=
         choices.of.begin() + choices.count;
}

// ---- choices -------------------------------------------------------------------------------------------------------

// No later than a receiver's longest silence timeout, so that no event overtakes an operation's timer.
TimeNs MicroWorld::behind_next(const Due& due) const {
  return std::min(find_due(due.event).at, due.at + micro_action_ns(MicroAction::k_late_30));
}

void MicroWorld::choose(MicroChoice choice) {
  using A = MicroAction;
  const Due next = due();
  due_known_ = false;
  ++point_;
  if (choice.action == A::k_next) return happen(next);
  steps_when_chosen_ = steps_;
  disturbed_until_ns_ = std::max(disturbed_until_ns_, next.at + micro_action_ns(choice.action));
  const DurationNs duration_ns = micro_action_ns(choice.action);
  switch (choice.action) {
    case A::k_next:
    case A::kCount:
      return;
    case A::k_drop:
      return drop(*next.event);
    case A::k_copy:
      return copy(*next.event, behind_next(next));
    case A::k_copy_late:
      return copy(*next.event, next.at + duration_ns);
    case A::k_swap: {
      return postpone(*next.event, behind_next(next));
    }
    case A::k_late_3:
    case A::k_late_30:
    case A::k_late_400:
    case A::k_late_1500:
      return postpone(*next.event, next.at + duration_ns);
    case A::k_stall_3:
    case A::k_stall_30:
    case A::k_stall_1500:
      return stall(*next.event, duration_ns, false);
    case A::k_hold_data_3:
    case A::k_hold_data_30:
    case A::k_hold_data_1500:
      return stall(*next.event, duration_ns, true);
    case A::k_pause:
      record(TraceKind::kNote, next.host, nullptr, Fate::k_sent, "stops");
      now_ = std::max(now_, next.at);
      return oracle_->pause(next.host, duration_ns);
    case A::k_cancel:
      ++steps_;
      record(TraceKind::kNote, 0, nullptr, Fate::k_sent, "an operation is cancelled");
      return oracle_->cancel(operations_[choice.argument]);
    case A::k_disconnect:
    case A::k_disconnect_apart:
      return disconnect(choice);
  }
}

void MicroWorld::happen(const Due& due) {
  now_ = std::max(now_, due.at);
  if (steps_ - steps_when_chosen_ > kMaxSteps) {
    return fail("rule 7: " + std::to_string(kMaxSteps) +
                " steps since anything went wrong; open: " + oracle_->unfinished());
  }
  mix(static_cast<std::uint64_t>(now_));
  if (due.event == nullptr) {
    Turn& turn = turns_[due.host];
    turn.at = base::kNever;
    Host& host = hosts_[due.host];
    // A turn that only advances the datapath's input is not a separate step.
    if (host.endpoint().next_timeout() <= host.config().clock.local(now_)) ++steps_;
    mix((std::uint64_t{due.host} << 8) | 0xF0);
    host.on_turn(now_, turn.number);
    return;
  }
  Event& event = *due.event;
  mix((static_cast<std::uint64_t>(event.what) << 40) | (std::uint64_t{event.to} << 32) | event.sent);
  switch (event.what) {
    case What::kDatagram:
      return deliver(event);
    case What::kMessage: {
      ++steps_;
      remove(&event);
      if (event.connection != known_[event.to]) return;
      ++messages_delivered_;
      record(TraceKind::kMessage, event.to, nullptr, Fate::k_delivered, "a message from the other");
      return hosts_[event.to].control(now_, event.from, std::span(event.bytes).first(event.size), false);
    }
    case What::kCall:
      ++steps_;
      remove(&event);
      return call(event);
    case What::kPeerDown:
      remove(&event);
      if (known_[event.to] != event.connection) return;
      known_[event.to] = 0;
      record(TraceKind::kPeerDown, event.to, nullptr, Fate::k_sent, "the peer is down");
      return hosts_[event.to].control(now_, core::PeerDown{event.from});
    case What::kConnect:
      remove(&event);
      return connect();
  }
}

// ---- for hosts and readers of a trace -------------------------------------------------------------------------------

void MicroWorld::completed(std::uint16_t host, const core::Completion& completion) {
  mix((completion.operation << 16) | (static_cast<std::uint64_t>(completion.status) << 8) | host);
  mix(completion.missing_bytes);
  if (trace != nullptr) {
    (*trace)({now_, TraceKind::kCompletion, host, nullptr, Fate::k_sent,
              std::string(completion.kind == core::CompletionKind::kSend ? "send " : "receive ") +
                  std::to_string(completion.operation) + " ends: status " +
                  std::to_string(static_cast<int>(completion.status)) + ", missing " +
                  std::to_string(completion.missing_bytes) + " of " + std::to_string(completion.total_bytes)});
  }
  check_pace(completion);
  if (on_completion) on_completion(host, completion);
}

// Once all faults are over and both sides are posted, successes must follow soon.
void MicroWorld::check_pace(const core::Completion& completion) {
  if (core::is_failure(completion.status) || completion.status == core::CompletionStatus::kDeadline) return;
  if (now_ - disturbed_until_ns_ <= kRecoveryNs || scenario_.control_lost) return;
  fail("rule 3: operation " + std::to_string(completion.operation) + " ends " +
       std::to_string((now_ - disturbed_until_ns_) / kMillisecond) + " ms after anything went wrong");
}

void MicroWorld::schedule_turn(std::uint16_t host, TimeNs at, std::uint32_t number) {
  turns_[host] = {std::max(at, now_), number, ++pushed_};
  due_known_ = false;
}

void MicroWorld::violation(std::uint16_t host, const std::string& text) {
  fail("rank " + std::to_string(host) + ": " + text);
}

void MicroWorld::finish() { oracle_->finish(); }

void MicroWorld::record(TraceKind kind, std::uint16_t host, const Event* event, Fate fate, const char* text) {
  if (trace == nullptr) return;
  Packet packet;
  if (event != nullptr) packet = packet_of(*event);
  (*trace)({now_, kind, host, event == nullptr ? nullptr : &packet, fate, text});
}

}  // namespace mlt::sim
