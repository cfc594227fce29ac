// One world of the micro-swarm: two hosts with production endpoints, the datagrams and messages in flight between them,
// and a virtual clock. It stops at every event and takes a choice: the event as it would happen, or one of the possible
// faults. The oracle posts and checks, as in the swarm.
//
// The network has no queues: a datagram takes 10 us, and 4 us more on the second path; a message of the control
// connection takes 60 us. There are no faults but the chosen ones. Absent on purpose: the choosing (sim/micro.h). One
// thread; all memory lies in a WorldMemory.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sim/micro_scenario.h"
#include "sim/oracle.h"
#include "sim/simulator.h"

namespace mlt::sim {

// X(name, duration in microseconds)
#define MLT_MICRO_ACTIONS(X)                                                                                 \
  X(next, 0)               /* what is due happens */                                                         \
  X(drop, 0)               /* of a datagram: it is lost */                                                   \
  X(copy, 0)               /* a copy of it arrives behind the next event */                                  \
  X(copy_late, 30'000)     /* ... or so much later */                                                        \
  X(swap, 0)               /* it arrives, or the call is made, behind the next event */                      \
  X(late_3, 3'000)         /* ... or so much later: past a first retransmission timeout */                   \
  X(late_30, 30'000)       /* past the silence after which a receiver asks */                                \
  X(late_1500, 1'500'000)  /* past every timer but those of whole operations */                              \
  X(late_400, 400'000)     /* of a message of the control connection: TCP repeats it */                      \
  X(stall_3, 3'000)        /* so much later, and all that is or will be on its path that way */              \
  X(stall_30, 30'000)      /* */                                                                             \
  X(stall_1500, 1'500'000) /* */                                                                             \
  X(hold_data_3, 3'000)    /* the same of its path's data only: the control class overtakes (a PFC pause) */ \
  X(hold_data_30, 30'000)  /* */                                                                             \
  X(hold_data_1500, 1'500'000)                                                                               \
  X(pause, 30'000)         /* of a timer: its host stops */                                                  \
  X(cancel, 0)             /* the operation that the argument names */                                       \
  X(disconnect, 0)         /* the connection breaks; a new one is there after 1 ms */                        \
  X(disconnect_apart, 200) /* ... and the host that the argument names learns of it so much later */

enum class MicroAction : std::uint8_t {
#define MLT_X(name, us) k_##name,
  MLT_MICRO_ACTIONS(MLT_X)
#undef MLT_X
      kCount
};
const char* micro_action_name(MicroAction action);
base::DurationNs micro_action_ns(MicroAction action);
// The control class; everything else that a world's hosts send is of the data class.
inline constexpr std::uint8_t kMicroControlDscp = core::DscpMap{}.control;

struct MicroChoice {
  MicroAction action = MicroAction::k_next;
  std::uint8_t argument = 0;
  bool operator==(const MicroChoice&) const = default;
};

// One bit per action.
using MicroActions = std::uint32_t;
constexpr MicroActions micro_bit(MicroAction action) { return 1U << static_cast<std::uint32_t>(action); }

class MicroWorld final : public VirtualDriver {
 public:
  static constexpr std::size_t kMaxChoices = 24;
  struct Choices {
    std::array<MicroChoice, kMaxChoices> of;
    std::size_t count = 0;
  };

  explicit MicroWorld(const MicroScenario& scenario);
  MicroWorld(const MicroWorld&) = delete;
  MicroWorld& operator=(const MicroWorld&) = delete;

  // No event is left, or a rule is violated.
  bool over() const;
  // Number of choices made, which is the number of the next one.
  std::uint32_t point() const { return point_; }
  // Finds the possible faults at this point, among the given actions; over() must be false.
  void find_choices(MicroActions actions, Choices& choices) const;
  // True if the choice is possible at this point.
  bool allows(MicroChoice choice) const;
  // Makes one choice; over() must be false.
  void choose(MicroChoice choice);
  // Final checks, once over(): every operation has ended, nothing is left.
  void finish();

  // Datagrams delivered, dropped or copied, messages delivered, timers serviced and calls taken by an endpoint.
  std::uint64_t steps() const { return steps_; }
  bool faultless() const { return faultless_; }

  base::TimeNs now() const override { return now_; }
  std::uint16_t hosts() const override { return 2; }
  Host& host(std::uint16_t rank) override { return hosts_[rank]; }
  std::uint64_t connection(std::uint16_t, std::uint16_t) const override { return connection_; }
  const Ledger& ledger() const override { return ledger_; }
  std::size_t packets_in_use() const override;
  std::uint64_t messages_delivered() const override { return messages_delivered_; }
  std::uint64_t lost_in_crashes() const override { return 0; }
  bool shows_everything() const override { return scenario_.retire_after == 0; }

  // outside the world's memory, or null
  const std::function<void(const TraceRecord&)>* trace = nullptr;

 private:
  enum class What : std::uint8_t { kDatagram, kMessage, kCall, kPeerDown, kConnect };
  struct Event {
    static constexpr std::size_t kMaxBytes = 120;
    base::TimeNs at = 0;
    std::uint32_t number = 0;  // at equal times the smaller is first
    std::uint32_t sent = 0;    // datagrams: in the order in which they were sent
    What what = What::kDatagram;
    bool is_copy = false;
    std::uint8_t from = 0;
    std::uint8_t to = 0;
    std::uint8_t path = 0;
    std::uint8_t dscp = 0;
    base::Ecn ecn = base::Ecn::kNotEct;
    wire::PacketType type = wire::PacketType::kData;
    std::uint8_t call = 0;  // the transfer, and which side
    bool call_is_send = false;
    std::uint16_t size = 0;
    std::uint64_t connection = 0;
    std::array<std::byte, kMaxBytes> bytes;
  };
  struct Turn {
    base::TimeNs at = base::kNever;
    std::uint32_t number = 0;  // the host's
    std::uint32_t event_number = 0;
  };
  struct Stall {
    base::TimeNs all_until = 0;
    base::TimeNs data_until = 0;
  };
  // The next thing that is due: an event, or the turn of a host.
  struct Due {
    Event* event = nullptr;
    std::uint16_t host = 0;
    base::TimeNs at = base::kNever;
    std::uint32_t number = 0;
  };

  void transmit(std::uint16_t host, const core::Transmit& run) override;
  void message(std::uint16_t host, const core::ControlOutput& output) override;
  void completed(std::uint16_t host, const core::Completion& completion) override;
  void machine_message(std::uint16_t, std::uint16_t, std::span<const std::byte>) override {}
  void went_down(std::uint16_t, std::uint16_t) override {}
  void schedule_turn(std::uint16_t host, base::TimeNs at, std::uint32_t number) override;
  std::uint64_t nic_backlog_bytes(std::uint16_t) const override { return 0; }
  base::TimeNs nic_drained_ns(std::uint16_t, std::uint64_t) const override { return now_; }
  void violation(std::uint16_t host, const std::string& text) override;

  const Due& due() const;
  Due find_due(const Event* but) const;
  base::TimeNs behind_next(const Due& due) const;
  void find_datagram_choices(const Event& event, MicroActions actions, Choices& choices) const;
  bool is_open(std::uint8_t operation) const;
  Event& add_event(What what, base::TimeNs at);
  void remove(Event* event);
  void happen(const Due& due);
  void deliver(Event& event);
  void drop(Event& event);
  void copy(const Event& event, base::TimeNs at);
  void postpone(Event& event, base::TimeNs at);
  void stall(const Event& event, base::DurationNs duration_ns, bool data_only);
  void call(const Event& event);
  void connect();
  void disconnect(MicroChoice choice);
  void peer_up(std::uint16_t rank);
  void note_overtaking(const Event& event);
  base::TimeNs arrival_ns(const Event& event) const;
  static Packet packet_of(const Event& event);
  std::uint64_t cookie(std::uint16_t from) const;
  void record(TraceKind kind, std::uint16_t host, const Event* event, Fate fate, const char* text);
  void check_pace(const core::Completion& completion);

  const MicroScenario& scenario_;
  base::TimeNs now_;
  std::vector<Host> hosts_;
  std::array<Turn, 2> turns_;
  std::vector<Event*> events_;
  std::vector<Event*> free_;
  std::array<std::array<Stall, 2>, 2> stalls_{};  // by sender and path
  std::uint64_t connection_ = 0;
  std::uint64_t connections_made_ = 0;
  std::array<std::uint64_t, 2> known_{};  // the connection that a host knows of
  std::uint32_t pushed_ = 0;
  std::uint32_t sent_ = 0;
  std::uint32_t point_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t steps_when_chosen_ = 0;
  base::TimeNs disturbed_until_ns_ = 0;  // end of disturbances by choices, and by calls still to come
  std::uint64_t messages_delivered_ = 0;
  bool faultless_ = true;
  bool disconnected_ = false;
  Ledger ledger_;
  std::optional<Oracle> oracle_;
  std::vector<core::OperationId> operations_;  // those posted
  mutable Due due_;                            // the next due event, once determined
  mutable bool due_known_ = false;
};

}  // namespace mlt::sim
