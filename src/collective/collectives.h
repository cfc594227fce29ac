// Runs the collectives of one rank: starts them in group order, posts their transfers a window at a time, and ends each
// exactly once.
//
// A state machine over Verbs: no thread, no socket. The members of a group call the same collectives in the same order;
// each stream of its ranks is a group of its own here.
// Each collective gets the group's next sequence number, and kLanes of a group are in progress at once. A failure at
// one member fails the collective at all members: the first to notice reports it to the others. So fail all calls that
// a member made before it noticed, because their transfers can no longer be matched; then the group resumes, with other
// tags, unless a member is down. Absent on purpose: the data of a collective
// (collective/collective.h) and how members agree on a group. Owned by the driver's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collective/collective.h"
#include "collective/deadlines.h"
#include "collective/messages.h"
#include "collective/rate_exchange.h"

namespace mlt::collective {

// Max transfers in each direction posted by collectives that are not the first of their group. Beyond it only the first
// ones may post, and beyond twice as many these only one at a time. Transfers that other members wait for thus always
// find space. The endpoint has more slots than that (EndpointConfig::max_sends, max_receives).
inline constexpr std::uint32_t kSharedTransfers = 256;
// Max groups in a context's life; they are never forgotten, as their tags are not.
inline constexpr std::size_t kMaxGroups = 16'384;
// Max failures, reported by one rank, of groups not used here yet.
inline constexpr std::size_t kMaxHeard = 64;

class Collectives {
 public:
  Collectives(std::uint16_t rank, Verbs& verbs, base::DurationNs default_timeout_ns,
              std::uint32_t shared_transfers = kSharedTransfers)
      : rank_(rank), verbs_(verbs), default_timeout_ns_(default_timeout_ns), shared_transfers_(shared_transfers) {}

  // Whether this rank takes shares by rate (shares.h): before the first call. A group takes them if all members do.
  void set_shares_by_rate(bool shares_by_rate) { shares_by_rate_ = shares_by_rate; }
  // Whether this rank's collectives carry checksums (checksums.h): before the first call. All members must agree.
  void set_checksums(bool checksums) { has_checksums_ = checksums; }

  // Whether members may have no connection with each other until one uses it: before the first call.
  void set_connects_on_use(bool connects_on_use) { connects_on_use_ = connects_on_use; }

  // The request must have passed check_request(); later errors end it like any other failure.
  void start(TimeNs now, CollectiveRequest request);
  // `reason`: in the error of every member.
  void cancel(TimeNs now, OperationId operation, const std::string& reason = {});
  void on_message(TimeNs now, std::uint16_t from, const Failed& failed);
  void on_message(TimeNs now, std::uint16_t from, const Called& called);
  void on_completion(TimeNs now, const core::Completion& completion);
  // Reports to it the failures of groups that it is a member of.
  void on_peer_up(std::uint16_t peer);
  void on_peer_down(TimeNs now, std::uint16_t peer);
  // Retries posts that failed for lack of space; call after completions were taken.
  void retry(TimeNs now);
  void on_timeout(TimeNs now);
  TimeNs next_timeout() const { return timers_.next(); }
  bool poll_done(CollectiveDone& done);

  // Ranks whose transfers a collective still waits for, as far as this rank knows; empty if it is not in progress.
  std::vector<std::uint16_t> awaited(OperationId operation) const;
  // All-reduces of unequal chunks that began.
  std::uint64_t rings_cut_by_rate() const { return rings_cut_by_rate_; }
  const ChecksumCounts& checksum_counts() const { return checksum_counts_; }
  // In progress or waiting for a lane.
  std::size_t open() const { return open_; }
  // PROTOCOL 22.1.2: ... A group's name MUST be the low 40 bits of FNV-1a over its ranks, two bytes each in
  //     little-endian order, in the group's order, and, unless the stream is 0, the bytes 255, 255 and the stream, four
  //     bytes in little-endian order.
  static std::uint64_t group_id(const std::vector<std::uint16_t>& ranks, std::uint32_t stream = 0);

 private:
  static constexpr unsigned kStepBits = 22, kStreamBits = 17;  // and 17 for the slot
  static constexpr std::uint32_t kMaxSteps = 1U << kStepBits;
  static constexpr std::uint32_t kMaxStreams = 1U << kStreamBits;

  // Why a group's calls fail from one of its sequence numbers on.
  struct Cause {
    core::CompletionStatus status = core::CompletionStatus::kComplete;
    int peer = -1;
    std::string text;
    bool is_damage = false;  // data arrived changed
    bool ends_group = false;
  };
  struct Group {
    std::uint64_t id = 0;
    std::vector<std::uint16_t> ranks;
    std::uint32_t stream = 0;
    std::uint32_t own = 0;
    std::uint32_t next = 0;   // sequence of the next collective
    std::uint32_t epoch = 0;  // failures that it has resumed after
    bool broken = false;      // from `broken_from` on
    bool is_final = false;    // it never resumes
    bool is_told = false;     // the members have received this epoch's `failed` from here, or need none
    std::uint32_t broken_from = 0;
    std::uint32_t own_next = 0;             // `next` when it broke
    std::uint32_t resumes_at = 0;           // sequence, by what was reported so far
    std::set<std::uint16_t> reported;       // members whose `failed` of this epoch arrived
    std::map<std::uint16_t, Failed> early;  // of the next epoch
    Cause cause;
    std::uint32_t failed_below = 0;  // calls before the group resumed last, which fail because of `last_cause`
    Cause last_cause;
    // Calls that failed while they waited for the group to resume.
    std::map<std::uint32_t, Cause> held_failures;
    RateExchange rates;
    std::deque<std::uint32_t> open;  // slots, by sequence: the first kLanes are in progress, the rest waits
  };
  // A failure of a group that was not used here yet. Once it is used, the rank that reported it must be a member.
  struct ReportedFailure {
    std::uint64_t group = 0;
    Failed failed;
  };
  struct Active {
    std::uint32_t slot = 0;
    std::uint32_t sequence = 0;
    std::uint32_t epoch = 0;  // the group's next one: it waits for the group to resume
    Group* group = nullptr;
    CollectiveRequest request;
    std::unique_ptr<Collective> collective;  // null: it waits for a lane
    std::uint8_t rate = kNoShares;           // announced
    std::uint16_t cut = 0;                   // of a ring, unless its chunks are equal
    CollectiveDone done;
    TimeNs started_ns = 0;
    TimeNs expires_ns = base::kNever;  // in timers_
    std::uint32_t outstanding = 0;     // transfers posted that have not ended
    std::size_t streams_left = 0;
    bool stalled = false;   // a post failed for lack of space
    bool stopping = false;  // no more posts
    bool failed = false;    // cause in done.status and done.error
    // The peer that aborted a transfer. It reports the cause to every member over the control connection; wait for it
    // briefly.
    int aborted_by = -1;
    // The peer whose transfer had another size than this rank's. Wait equally long for its shape or its `called`.
    int differs_from = -1;
    // The peer that it waited for when the time of `late` was up. Another member may know who never called; wait for
    // its report.
    int late_from = -1;
    std::uint16_t late = 0;
    bool may_post() const { return !stopping && late_from < 0; }
  };

  std::string down_text(int peer) const;
  std::string late_text(std::uint16_t late, int peer) const;
  static std::string rank_text(int rank) { return "rank " + std::to_string(rank); }
  Shape shape_of(const Active& active, const Stream& stream) const;
  // Null if there are too many groups.
  Group* group_of(TimeNs now, const CollectiveRequest& request);
  void remember(std::uint16_t from, const Failed& failed);
  void apply(TimeNs now, Group& group, std::uint16_t from, const Failed& failed);
  void refuse(const CollectiveRequest& request, const std::string& text);
  void begin(TimeNs now, Active& active);
  void advance(TimeNs now, Active& active, std::size_t stream);
  void advance_all(TimeNs now, Active& active);
  static bool may_post(const Collective& collective, const Stream& stream);
  bool has_share(const Active& active, const Stream& stream) const;
  core::PostStatus post(TimeNs now, Active& active, std::size_t stream);
  core::PostStatus post_send(TimeNs now, Active& active, Stream& stream, OperationId operation);
  core::PostStatus post_receive(TimeNs now, Active& active, Stream& stream, OperationId operation);
  // The checksums of a stream that has received everything.
  void compare_checksums(TimeNs now, Active& active, const Stream& stream);
  void tag_segments(Active& active, Stream& stream, core::SendRequest& request);
  void on_post_refused(TimeNs now, Active& active, const Stream& stream, core::PostStatus status);
  void check_shape(TimeNs now, Active& active, const Stream& stream, std::span<const std::byte, kShapeBytes> found);
  void take_announced_rate(const Active& active, const Stream& stream, std::span<const std::byte, kShapeBytes> found);
  void on_transfer_failed(TimeNs now, Active& active, const core::Completion& completion);
  void on_mismatch(TimeNs now, Active& active, const core::Completion& completion);
  // Its time is up while it waits for `peer`.
  void on_late(TimeNs now, Active& active, int peer);
  void on_late_in_line(TimeNs now, Active& active);
  // The time of `from` is up.
  void on_asked(TimeNs now, Active& active, std::uint16_t from);
  void await_cause(TimeNs now, Active& active, std::uint16_t late, int peer, base::DurationNs duration);
  // The time of `late` is up, and this rank waits for `peer`.
  void fail_late(TimeNs now, Active& active, std::uint16_t late, int peer);
  void send_called(const Active& active, const Stream& stream, std::uint16_t peer);
  void on_aborted(TimeNs now, Active& active, int peer);
  // The first member besides `besides` whose shape should have arrived here; -1: none.
  static int absent_member(const Active& active, int besides = -1);
  // The peer of its first stream that has not ended; -1: all have.
  static int awaited_member(const Active& active);
  // Whether no member can have called it and wait for a lane.
  static bool never_waits(const Active& active) { return active.sequence < kLanes; }
  // Whether the shape of every other member has arrived here.
  static bool has_all_shapes(const Active& active);
  // Only the first cause counts. Reports it to the other members unless one of them reported it.
  void fail(TimeNs now, Active& active, const Cause& cause, bool tell);
  // The group never resumes: this call, which its member makes for that, is the first that fails.
  void end_group(TimeNs now, Active& active);
  void mark_failed(TimeNs now, Active& active, const Cause& cause);
  // Breaks the group's epoch from this sequence on. `next`: a member's next call when it noticed.
  // `fails_next`: the call that this member makes next fails too.
  void break_group(TimeNs now, Group& group, std::uint32_t from, std::uint32_t next, const Cause& cause,
                   bool fails_next = false);
  // Whether no call here is to fail of a failure elsewhere, though this one did: its result may be wrong.
  bool has_missed(const Group& group, std::uint32_t failed) const;
  // Fails the open calls of an epoch from this sequence on.
  void fail_open(TimeNs now, Group& group, std::uint32_t epoch, std::uint32_t from, const Cause& cause);
  void encode_failed(const Group& group, std::uint32_t epoch, std::uint32_t sequence, const Cause& cause);
  void report(TimeNs now, Group& group, std::uint32_t epoch, std::uint32_t sequence, const Cause& cause);
  void resume(TimeNs now, Group& group);
  // Cancels posted transfers and waits for them, so that the memory is no longer in use.
  void stop(TimeNs now, Active& active);
  void set_timer(Active& active, TimeNs at);
  // Reports ended collectives and starts those that may; every entry point calls it last.
  void settle(TimeNs now);
  void settle(TimeNs now, Group& group);
  bool is_over(const Active& active) const;
  OperationId operation(const Active& active, std::size_t stream, std::uint32_t step) const;
  // As a mismatch names a call: "all-reduce number 3 of ".
  std::string name(const Active& active) const;

  std::uint16_t rank_;
  Verbs& verbs_;
  base::DurationNs default_timeout_ns_;
  std::uint32_t shared_transfers_;
  std::uint32_t sends_ = 0, receives_ = 0;  // posted and not ended, over all collectives
  std::map<std::uint64_t, Group> groups_;   // by id; nodes do not move
  std::map<std::uint64_t, Group*> busy_;    // those with open collectives
  std::map<std::uint16_t, std::deque<ReportedFailure>> reported_failures_;  // by reporting rank
  std::vector<std::unique_ptr<Active>> slots_;
  std::vector<std::uint32_t> free_slots_;
  Deadlines timers_;  // one per open collective
  std::deque<CollectiveDone> finished_;
  std::vector<std::byte> scratch_;
  std::size_t open_ = 0;
  std::uint64_t rings_cut_by_rate_ = 0;
  ChecksumCounts checksum_counts_;
  bool any_stalled_ = false;
  bool shares_by_rate_ = false;
  bool has_checksums_ = false;
  bool connects_on_use_ = false;
};

}  // namespace mlt::collective
