// The application of a simulated run, and its checker: it posts tensors, owns their buffers, and checks every
// completion against the protocol's promises. The rules:
//   1  never more missing than the bound, of a receive or of all that share a budget, never a critical segment
//   2  every element delivered is what was sent, at its place; what is missing is filled as promised
//   3  every posted operation completes exactly once, in time
//   4  no write to a buffer outside its transfer's life (canaries, and another use of the memory afterwards)
//   5  packets and bytes are conserved: sent = received + dropped, by name
//   6  queues, timers and memory stay within the limits of core/config.h, and are free again at the end
//   7  no run of events without progress longer than a bound
//   8  `patient` loses nothing until the network drops, damages or reorders something (promise 6)
//   9  no event in a phase that its state table excludes
// and, of what single hosts read and send (sim/send_watch.h, sim/receive_watch.h), where the driver shows it:
//  10  no more in flight than the window
//  11  no sooner than the rate allows, and no longer runs
//  12  in send order
//  13  no more early data than was offered; what was offered is kept
//  14  an operation completes or fails as soon as its result is known
//  15  each datagram's fields match the state of its transfer and path
//  16  no path is found to carry short datagrams only where every link carries all
// The oracle knows the protocol's promises and nothing of its implementation. The rules over one transfer are functions
// on plain records (sim/completion_rules.h), so that runs on real sockets are checked by them too (tests/sim/chaos).
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/completion_rules.h"
#include "sim/receive_watch.h"
#include "sim/send_watch.h"
#include "sim/virtual_driver.h"

namespace mlt::sim {

inline constexpr std::uint32_t kNoShortLink = ~std::uint32_t{0};

class Oracle final : private Observer {
 public:
  // `faultless`: nothing in the network drops, repeats or delays beyond its queues, so rule 8 applies.
  Oracle(VirtualDriver& driver, bool faultless);
  ~Oracle();
  Oracle(const Oracle&) = delete;
  Oracle& operator=(const Oracle&) = delete;

  // The operation's number, from 1; 0 if the post was rejected (for a reason that the oracle accepts).
  core::OperationId post_send(const Plan& plan);
  core::OperationId post_receive(const Plan& plan);
  void cancel(core::OperationId operation);
  // Receives of plans that name the returned number may together miss `bound` of `elements` of `element_bytes`.
  std::uint32_t share_budget(std::uint64_t elements, std::uint32_t element_bytes, double bound);
  // Marks one part of a fed send as ready (Plan::fed_parts).
  void feed(core::OperationId operation, std::uint32_t part);
  // From now on the network is not faultless: it dropped something, or let data overtake data of the same path.
  void on_network_fault() { faultless_ = false; }
  // Some link loses datagrams of more than `bytes` from now on, or did.
  void on_short_link(std::uint32_t bytes) { shortest_link_bytes_ = std::min(shortest_link_bytes_, bytes); }
  // This host sends more early data than it was offered: its losses from that are not violations.
  void on_overrunning(std::uint16_t host) { overrunning_ = host; }
  // Suspends a host for a while.
  void pause(std::uint16_t host, base::DurationNs duration_ns);

  bool all_ended() const { return open_ == 0; }
  bool is_open(core::OperationId operation) const {
    return !operations_[operation - 1]->ended && !operations_[operation - 1]->lost;
  }
  std::uint64_t posted() const { return operations_.size(); }
  std::uint64_t completions() const { return completions_; }
  // Increases with all progress: posts, placed segments, completions.
  std::uint64_t progress() const;

  // Rule 6: what every endpoint holds is within its limits; `at_the_end`: nothing.
  void check_limits(bool at_the_end);
  // After the run: all operations have ended, memory is unchanged since, and the counters balance. Reports to the
  // simulator.
  void finish();
  std::string unfinished() const;

 private:
  struct Key {
    std::uint64_t connection = 0;
    std::uint16_t from = 0;
    std::uint16_t to = 0;
    std::uint64_t tag = 0;
    std::uint64_t generation = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Match {
    core::OperationId send = 0;
    core::OperationId receive = 0;
  };
  struct Operation {
    core::OperationId id = 0;
    core::CompletionKind kind = core::CompletionKind::kSend;
    Plan plan;
    Key key;
    base::TimeNs posted_ns = 0;  // by its host's clock
    base::TimeNs posted_virtual_ns = 0;
    base::TimeNs ended_ns = 0;
    std::vector<std::byte> memory;                  // canaries, the tensor, canaries
    std::vector<std::uint8_t> placed;               // per segment, by the place function
    std::vector<core::SegmentPriority> priorities;  // of a send that receives them while it sends
    std::uint32_t classified = 0;                   // number of them that it has received
    core::SendFeed feed;                            // of a send whose segments become ready in parts
    std::vector<std::uint64_t> feed_words;
    std::uint32_t parts_fed = 0;
    bool ended = false;
    bool lost = false;  // its process crashed: no rule requires its completion
    bool cancelled = false;
    bool told = false;      // a send: its receiver succeeded and left in order
    bool too_long = false;  // a send: the network carries no segment of this length
    core::CompletionStatus status = core::CompletionStatus::kComplete;
    std::uint64_t missing_bytes = 0;
    std::uint64_t ended_at = 0;  // a receive: number of receives that had ended at its host, this one included
    std::uint8_t epoch = 0;      // use of the memory: 0 as posted, 1 reused by the application
    Oracle* oracle = nullptr;
    std::uint32_t segment_bytes = 0;
  };

  struct Budget {
    core::SharedLossBudget shared;
    std::uint64_t elements = 0;
    std::uint32_t element_bytes = 1;
    double bound = 0;
    std::uint64_t missing_bytes = 0;  // of receives that ended within their bounds
  };

  // The models of what hosts must do, and the ends that they determine.
  struct Watches {
    struct Due {
      core::OperationId operation = 0;
      const char* why = nullptr;
    };
    SendWatch sends;
    ReceiveWatch receives;
    std::vector<std::vector<Due>> due;  // per host: operations that must end in its current turn
  };

  void came_up(std::uint16_t rank, const core::PeerUp& up) override;
  void went_down(std::uint16_t rank, std::uint16_t peer) override;
  void hears_goodbye(std::uint16_t rank, std::uint16_t peer, std::uint64_t connection) override;
  void is_limited(std::uint16_t rank, const core::PathLimit& limit) override;
  void reads(std::uint16_t rank, base::TimeNs local, std::span<const std::byte> bytes, bool by_control) override;
  void sends_run(std::uint16_t rank, base::TimeNs local, const core::Transmit& run) override;
  void sends(std::uint16_t rank, base::TimeNs local, const Packet& packet) override;
  void sends_message(std::uint16_t rank, base::TimeNs local, const core::ControlOutput& output) override;
  void turn_ended(std::uint16_t rank, base::TimeNs local) override;
  void excuse_too_long(std::uint16_t rank);
  void must_end(core::OperationId operation, const char* why);
  // Its priorities fit the connection's segments; those of another plan are left out.
  bool has_tag_per_segment(const Plan& plan) const;
  void watch(const Operation& operation);
  void unwatch(const Operation& operation);
  void unwatch_host(std::uint16_t rank);

  core::OperationId post(const Plan& plan, core::CompletionKind kind);
  void for_segments_of(Operation& operation, std::uint32_t part,
                       const std::function<void(std::uint32_t, std::size_t, std::span<std::byte>)>& each);
  void check_not_fed(Operation& operation);
  void on_completion(std::uint16_t rank, const core::Completion& completion);
  void check_common(Operation& operation, const core::Completion& completion);
  bool names_size(const Operation& operation, const core::Completion& completion) const;
  void check_send(Operation& operation, const core::Completion& completion);
  void check_receive(Operation& operation, const core::Completion& completion);
  void check_contents(const Operation& receive, const core::Completion& completion);
  void check_status(const Operation& receive, const core::Completion& completion);
  void check_shared_budget(const Operation& receive, const core::Completion& completion);
  void check_end(const Operation& operation, const core::Completion& completion);
  bool may_be_too_long(const Operation& operation) const;
  std::uint32_t longest_datagram(const Operation& operation) const;
  void check_memory(const Operation& operation);
  void check_conservation();
  void check_early(const Operation& receive, const std::vector<std::uint32_t>& offsets);
  void mix_contents(const Operation& operation, const core::Completion& completion);
  void end(Operation& operation);
  static Side side_of(const Operation& operation);
  bool outcome_forgotten(const Operation& operation) const;
  static void place(void* context, std::uint64_t offset, std::span<const std::byte> payload);
  static void classify(void* context, std::uint32_t first, std::uint32_t count);
  void violate(int rule, const Operation& operation, const std::string& text);
  void hold(const Operation& operation, const Finding& verdict);

  VirtualDriver& simulator_;
  bool faultless_;
  std::vector<std::unique_ptr<Operation>> operations_;
  std::deque<Budget> budgets_;  // each stays where it is: endpoints refer to it
  std::map<Key, Match> matches_;
  std::map<Key, std::uint64_t> generations_;  // by Key with generation 0 and, for receives, the ranks in their order
  std::map<Key, std::uint64_t> receive_generations_;
  std::uint64_t open_ = 0;
  std::uint64_t completions_ = 0;
  std::vector<std::uint64_t> retired_;         // counters of endpoints that no longer exist
  std::vector<std::uint64_t> receives_ended_;  // per host
  std::vector<bool> paused_;                   // hosts that were suspended at some time: exempt from rules about time
  std::uint16_t overrunning_ = 0xFFFF;
  std::uint32_t shortest_link_bytes_ = kNoShortLink;
  std::vector<std::uint64_t> limits_found_;  // per host, at the last check
  std::unique_ptr<Watches> watches_;         // none if the driver does not show everything
};

}  // namespace mlt::sim
