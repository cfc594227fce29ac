// The state tables of sender and receiver, whole: compared with tests/golden/*_states.txt, and every excluded cell
// tried. After a change that is meant, MLT_REWRITE_GOLDEN=1 in the environment writes the snapshots anew; read the
// difference.
#include "core/state_machine.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/peer_up.h"
#include "support/transfer.h"

using namespace mlt;
using namespace mlt::test;
using core::Outcome;
using core::ReceiveEvent;
using core::ReceivePhase;
using core::SendEvent;
using core::SendPhase;

namespace {

// The names of a machine's phases and events, in the order of its table.
#define MLT_PHASE_NAME(name) #name,
#define MLT_EVENT_NAME(name) #name + 1,  // without the underscore
#define MLT_NAMES(Type, PHASES, EVENTS)                               \
  struct Type {                                                       \
    static constexpr std::array phases = {PHASES(MLT_PHASE_NAME)};    \
    static constexpr std::array events = {EVENTS(MLT_EVENT_NAME, _)}; \
  }
MLT_NAMES(SendNames, MLT_SEND_PHASES, MLT_SEND_EVENTS);
MLT_NAMES(ReceiveNames, MLT_RECEIVE_PHASES, MLT_RECEIVE_EVENTS);
MLT_NAMES(ProbeNames, MLT_PROBE_PHASES, MLT_PROBE_EVENTS);
MLT_NAMES(WindowNames, MLT_WINDOW_PHASES, MLT_WINDOW_EVENTS);
#undef MLT_NAMES
#undef MLT_EVENT_NAME
#undef MLT_PHASE_NAME

using ProbeMachine =
    core::StateMachine<core::ProbePhase, core::ProbeEvent, core::kProbeTable, Counter::k_wrong_state_probe_schedule>;
using WindowMachine = core::StateMachine<core::WindowPhase, core::WindowEvent, core::kWindowTable,
                                         Counter::k_wrong_state_window_no_space>;

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

// One line per event, one column per phase: the phase afterwards, or how the event is refused.
template <typename Names, typename Phase, typename Event>
std::string text_of(const core::StateTable<Phase, Event>& table) {
  constexpr std::size_t kWidth = 14;
  std::string text = padded("event", kWidth);
  for (const char* phase : Names::phases) text += padded(phase, kWidth);
  const auto end_line = [&] {
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  };
  end_line();
  for (std::size_t event = 0; event < table.kEvents; ++event) {
    text += padded(Names::events[event], kWidth);
    for (std::size_t phase = 0; phase < table.kPhases; ++phase) {
      const auto& cell = table.at(static_cast<Phase>(phase), static_cast<Event>(event));
      const std::string next = std::string("-> ") + Names::phases[static_cast<std::size_t>(cell.next)];
      text += padded(cell.outcome == Outcome::kTaken ? next : cell.outcome == Outcome::kStale ? "stale" : ".", kWidth);
    }
    end_line();
  }
  return text + "\n. is wrong: counted under the event's name. stale: counted as stale_control.\n";
}

void compare_with_golden(const std::string& file, const std::string& text) {
  const std::string path = std::string(MLT_GOLDEN_FOLDER) + "/" + file;
  if (std::getenv("MLT_REWRITE_GOLDEN") != nullptr) std::ofstream(path) << text;
  std::ifstream in(path);
  const std::string golden{std::istreambuf_iterator<char>(in), {}};
  CHECK_MESSAGE(text == golden, file << ": the table is now\n" << text);
}

// A machine brought into `phase` by events that the table takes, breadth first.
template <typename Machine, typename Phase, typename Event>
Machine in_phase(const core::StateTable<Phase, Event>& table, Phase phase) {
  std::vector<Machine> reached(1);
  for (std::size_t i = 0; i < reached.size(); ++i) {
    if (reached[i].phase() == phase) return reached[i];
    for (std::size_t event = 0; event < table.kEvents; ++event) {
      Machine next = reached[i];
      core::Counters counters;
      if (table.at(next.phase(), static_cast<Event>(event)).outcome != Outcome::kTaken) continue;
      REQUIRE(next.on(static_cast<Event>(event), counters));
      if (next.phase() != reached[i].phase() && reached.size() < 100) reached.push_back(next);
    }
  }
  FAIL("phase " << static_cast<int>(phase) << " cannot be reached");
  return {};
}

// Every cell: what is taken moves and counts nothing; what is not taken moves nothing and counts once, by name.
template <typename Machine, typename Phase, typename Event>
void check_every_cell(const core::StateTable<Phase, Event>& table) {
  std::size_t wrong = 0;
  for (std::size_t p = 0; p < table.kPhases; ++p) {
    for (std::size_t e = 0; e < table.kEvents; ++e) {
      CAPTURE(p);
      CAPTURE(e);
      const auto phase = static_cast<Phase>(p);
      const auto event = static_cast<Event>(e);
      const auto& cell = table.at(phase, event);
      Machine machine = in_phase<Machine>(table, phase);
      core::Counters counters;
      CHECK(machine.on(event, counters) == (cell.outcome == Outcome::kTaken));
      CHECK(machine.phase() == (cell.outcome == Outcome::kTaken ? cell.next : phase));
      core::Counters expected;
      if (cell.outcome == Outcome::kStale) expected.add(Counter::k_stale_control);
      if (cell.outcome == Outcome::kWrong) expected.add(Machine::wrong(event));
      CHECK(counters.values() == expected.values());
      wrong += cell.outcome == Outcome::kWrong ? 1U : 0U;
    }
  }
  CHECK(wrong > 0);
}

}  // namespace

TEST_CASE("table__sender_is_what_the_snapshot_shows") {
  compare_with_golden("sender_states.txt", text_of<SendNames>(core::kSendTable));
}

TEST_CASE("table__receiver_is_what_the_snapshot_shows") {
  compare_with_golden("receiver_states.txt", text_of<ReceiveNames>(core::kReceiveTable));
}

TEST_CASE("table__probe_is_what_the_snapshot_shows") {
  compare_with_golden("probe_states.txt", text_of<ProbeNames>(core::kProbeTable));
}

TEST_CASE("table__window_is_what_the_snapshot_shows") {
  compare_with_golden("window_states.txt", text_of<WindowNames>(core::kWindowTable));
}

TEST_CASE("machine__every_probe_cell_moves_or_is_counted") { check_every_cell<ProbeMachine>(core::kProbeTable); }

TEST_CASE("machine__every_window_cell_moves_or_is_counted") { check_every_cell<WindowMachine>(core::kWindowTable); }

TEST_CASE("machine__every_sender_cell_moves_or_is_counted") { check_every_cell<core::SendMachine>(core::kSendTable); }

TEST_CASE("machine__every_receiver_cell_moves_or_is_counted") {
  check_every_cell<core::ReceiveMachine>(core::kReceiveTable);
}

TEST_CASE("counter__is_named_after_the_event") {
  for (std::size_t e = 0; e < core::kSendTable.kEvents; ++e) {
    const auto counter = static_cast<std::size_t>(core::SendMachine::wrong(static_cast<SendEvent>(e)));
    CHECK(std::string(core::kCounterNames[counter]) == std::string("wrong_state_send_") + SendNames::events[e]);
  }
  for (std::size_t e = 0; e < core::kReceiveTable.kEvents; ++e) {
    const auto counter = static_cast<std::size_t>(core::ReceiveMachine::wrong(static_cast<ReceiveEvent>(e)));
    CHECK(std::string(core::kCounterNames[counter]) == std::string("wrong_state_receive_") + ReceiveNames::events[e]);
  }
  for (std::size_t e = 0; e < core::kProbeTable.kEvents; ++e) {
    const auto counter = static_cast<std::size_t>(ProbeMachine::wrong(static_cast<core::ProbeEvent>(e)));
    CHECK(std::string(core::kCounterNames[counter]) == std::string("wrong_state_probe_") + ProbeNames::events[e]);
  }
  for (std::size_t e = 0; e < core::kWindowTable.kEvents; ++e) {
    const auto counter = static_cast<std::size_t>(WindowMachine::wrong(static_cast<core::WindowEvent>(e)));
    CHECK(std::string(core::kCounterNames[counter]) == std::string("wrong_state_window_") + WindowNames::events[e]);
  }
}

// ---- wrong events that an endpoint can be made to meet
// ---------------------------------------------------------------

TEST_CASE("endpoint__cancel_after_the_end_is_counted_and_changes_nothing") {
  core::EndpointConfig config;
  core::Endpoint endpoint(config);
  endpoint.on_control(0, peer_up(0, 1));
  std::vector<std::byte> bytes(8);
  core::SendRequest send;
  send.operation = 1;
  send.peer = 1;
  send.data = bytes;
  core::ReceiveRequest receive;
  receive.operation = 2;
  receive.peer = 1;
  receive.data = bytes;
  REQUIRE(endpoint.post_send(0, send) == core::PostStatus::kPosted);
  REQUIRE(endpoint.post_recv(0, receive) == core::PostStatus::kPosted);
  endpoint.on_control(10, core::PeerDown{1});  // both end, and wait to be polled
  endpoint.on_control(20, core::Cancel{1, core::CompletionKind::kSend});
  endpoint.on_control(20, core::Cancel{2, core::CompletionKind::kReceive});
  CHECK(endpoint.counters().value(Counter::k_wrong_state_send_cancel) == 1);
  CHECK(endpoint.counters().value(Counter::k_wrong_state_receive_cancel) == 1);
  core::Completion completion;
  for (int i = 0; i < 2; ++i) {
    REQUIRE(endpoint.poll_completion(completion));
    CHECK(completion.status == core::CompletionStatus::kPeerFailed);
  }
  CHECK_FALSE(endpoint.poll_completion(completion));
}

TEST_CASE("endpoint__bitmap_of_a_round_that_is_still_being_sent_is_counted_and_changes_nothing") {
  SimulationConfig config;
  config.endpoint.timely.line_rate_bytes_per_second = 1.25e7;
  Simulation network(config);
  Transfer transfer(network, 500'000);
  transfer.post();
  network.run_for(kMillisecond);
  REQUIRE_FALSE(transfer.ended());
  wire::BitmapMessage bitmap;
  bitmap.prefix.type = wire::PacketType::kBitmap;
  bitmap.prefix.cookie = network.cookie(1, 0);
  bitmap.transfer = {7, 0};
  const std::array<std::byte, 1> nothing_arrived{};
  bitmap.segment_count = 8;
  bitmap.bits = nothing_arrived;
  std::vector<std::byte> bytes(wire::kMaxControlBytes);
  bytes.resize(wire::encode_bitmap(bitmap, bytes.data()));
  network.inject(0, bytes);
  CHECK(network.counter(0, Counter::k_wrong_state_send_bitmap) == 1);
  REQUIRE(transfer.run());
  CHECK(transfer.fault() == "");
  CHECK(network.counter(0, Counter::k_segments_repaired) == 0);
}

TEST_CASE("endpoint__bitmap_that_requests_nothing_starts_no_round") {
  // Three segments arrive, no answer does: the sender waits.
  Simulation network(SimulationConfig{});
  network.drop_if = [](const Flight& f) { return f.type != wire::PacketType::kData; };
  Transfer transfer(network, 3 * 1'432);
  transfer.post();
  network.run_for(kMillisecond);
  REQUIRE(network.counter(0, Counter::k_data_packets_sent) == 3);
  wire::BitmapMessage bitmap;
  bitmap.prefix.type = wire::PacketType::kBitmap;
  bitmap.prefix.cookie = network.cookie(1, 0);
  bitmap.transfer = {7, 0};
  const std::array<std::byte, 1> all_arrived{std::byte{0x07}};  // the byte's other bits are no segments
  bitmap.segment_count = 3;
  bitmap.bits = all_arrived;
  std::vector<std::byte> bytes(wire::kMaxControlBytes);
  bytes.resize(wire::encode_bitmap(bitmap, bytes.data()));
  const std::uint64_t stale = network.counter(0, Counter::k_stale_control);
  network.inject(0, bytes);
  CHECK(network.counter(0, Counter::k_stale_control) == stale + 1);
  network.drop_if = nullptr;
  REQUIRE(transfer.run());
  CHECK(transfer.fault() == "");
}
