// Machines of one group joined without endpoints: transfers meet by tag and order as the protocol says, complete in an
// order drawn from a seed, lose what the receiver allows, and fail where a test wants it. One thread, no time but what
// a test passes.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <set>
#include <tuple>
#include <vector>

#include "base/prng.h"
#include "collective/collectives.h"
#include "core/loss_budget.h"
#include "core/segmenter.h"
#include "support/tensors.h"

namespace mlt::test {

using namespace mlt::collective;

constexpr std::uint32_t kFakeSegmentBytes = 64;
constexpr base::DurationNs kFakeTimeoutNs = 10 * base::kSecond;

class FakeBus {
 public:
  struct Options {
    std::uint16_t ranks = 2;
    std::uint64_t seed = 1;
    bool lossy = false;          // receives lose all that their bound allows
    std::size_t max_posted = 0;  // of sends, and of receives, per rank; 0: no limit
    std::uint32_t shared_transfers = kSharedTransfers;
    // Of the packets between two ranks.
    std::function<std::uint32_t(std::uint16_t, std::uint16_t)> segment_bytes = [](auto, auto) {
      return kFakeSegmentBytes;
    };
    // Of the way from a rank to another; 0: no limit.
    std::function<double(std::uint16_t, std::uint16_t)> port_rate = [](auto, auto) { return 0.0; };
    bool shares_by_rate = false;
    bool checksums = false;
    bool connects_on_use = false;  // a call connects its rank with its partners, as the engine does
  };
  // A segment that arrived or is missing for good, before it is written.
  struct Segment {
    std::uint16_t from = 0, to = 0;
    const core::SendRequest& send;
    const core::ReceiveRequest& receive;
    std::size_t offset = 0, length = 0;
    bool is_missing = false;
  };
  std::function<void(const Segment&)> on_segment = [](const Segment&) {};
  // Whether a segment arrives with a bit changed.
  std::function<bool(const Segment&)> is_damaged = [](const Segment&) { return false; };

  explicit FakeBus(const Options& options) : options_(options), prng_(options.seed) {
    for (std::uint16_t rank = 0; rank < options.ranks; ++rank) {
      hosts_.push_back(std::make_unique<Host>(*this, rank));
      hosts_.back()->machine.set_shares_by_rate(options.shares_by_rate);
      hosts_.back()->machine.set_checksums(options.checksums);
      hosts_.back()->machine.set_connects_on_use(options.connects_on_use);
    }
  }

  // The request's group is all ranks unless it names one.
  void start(std::uint16_t rank, CollectiveRequest request) {
    if (request.ranks.empty()) {
      for (std::uint16_t i = 0; i < options_.ranks; ++i) request.ranks.push_back(i);
    }
    REQUIRE(check_request(request, rank) == "");
    if (options_.connects_on_use && !request.ends_group) {
      for (const std::uint16_t peer : partners(request, rank)) connect(rank, peer);
    }
    host(rank).machine.start(now, std::move(request));
  }
  Collectives& machine(std::uint16_t rank) { return host(rank).machine; }
  const std::vector<CollectiveDone>& done(std::uint16_t rank) { return host(rank).done; }
  std::size_t posted(std::uint16_t rank) { return host(rank).sends.size() + host(rank).receives.size(); }
  std::size_t max_posted() const { return max_posted_; }
  std::uint64_t lost_elements() const { return lost_elements_; }
  std::size_t messages() const { return messages_.size(); }
  // Its transfers end as peer failed at once, its peers hear of it, and nothing reaches it any more.
  void kill(std::uint16_t rank) {
    dead_.insert(rank);
    for (const auto& other : hosts_) {
      if (other->rank == rank || !are_connected(rank, other->rank)) continue;
      end_all(*other, rank, core::CompletionStatus::kPeerFailed);
      other->machine.on_peer_down(now, rank);
    }
  }
  // Whether they have or had a connection.
  bool are_connected(std::uint16_t a, std::uint16_t b) const {
    return !options_.connects_on_use || links_.contains({std::min(a, b), std::max(a, b)});
  }
  // Messages to and from this rank are lost.
  void mute(std::uint16_t rank) { muted_.insert(rank); }
  // The next receive of `rank` ends like this instead of arriving.
  void fail_next_receive(std::uint16_t rank, core::CompletionStatus status) { failures_[rank] = status; }

  // The time of this rank's transfers is up, then that of its collectives; the other ends hear of an abort.
  void expire(std::uint16_t rank) {
    Host& at = host(rank);
    const auto expire_in = [&](auto& queue, core::CompletionKind kind) {
      while (!queue.empty()) {
        cancel(at, queue, queue.front().request.operation, kind, core::CompletionStatus::kTimedOut);
      }
    };
    expire_in(at.sends, core::CompletionKind::kSend);
    expire_in(at.receives, core::CompletionKind::kReceive);
    deliver_completions();
    at.machine.on_timeout(now);
    deliver_completions();
  }

  // One thing that can happen; false if nothing can.
  bool step() {
    deliver_completions();
    if (!asked_.empty()) {
      const auto [rank, peer] = asked_.front();
      asked_.pop_front();
      connect(rank, peer);
      return true;
    }
    if (!messages_.empty() && prng_.chance(0.3)) return deliver_message();
    if (transfer_one()) return true;
    return deliver_message();
  }
  void run() {
    while (step()) {
    }
    deliver_completions();
  }
  void run_steps(int steps) {
    for (int i = 0; i < steps && step(); ++i) {
    }
    deliver_completions();
  }
  // Nothing happens until the first timer of any rank: it is brought to that time.
  bool run_to_next_timeout() {
    base::TimeNs at = base::kNever;
    for (const auto& one : hosts_) {
      if (!dead_.contains(one->rank)) at = std::min(at, one->machine.next_timeout());
    }
    if (at == base::kNever) return false;
    now = std::max(now, at);
    for (const auto& one : hosts_) {
      if (!dead_.contains(one->rank) && one->machine.next_timeout() <= now) one->machine.on_timeout(now);
    }
    deliver_completions();
    return true;
  }

  base::TimeNs now = base::kSecond;
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::string> peer_errors;  // what a rank knows of a peer

 private:
  template <typename Request>
  struct Posted {
    Request request;
    std::uint64_t number = 0;  // of its (peer, tag)
  };
  using Key = std::tuple<std::uint16_t, std::uint64_t>;  // peer, tag

  struct Host final : Verbs {
    Host(FakeBus& owner, std::uint16_t own)
        : bus(owner), rank(own), machine(own, *this, kFakeTimeoutNs, owner.options_.shared_transfers) {}
    core::PostStatus post_send(base::TimeNs, const core::SendRequest& request) override {
      return bus.post(*this, sends, sent, request);
    }
    core::PostStatus post_recv(base::TimeNs, const core::ReceiveRequest& request) override {
      return bus.post(*this, receives, received, request);
    }
    void cancel(base::TimeNs, OperationId operation, core::CompletionKind kind) override {
      kind == core::CompletionKind::kSend ? bus.cancel(*this, sends, operation, kind)
                                          : bus.cancel(*this, receives, operation, kind);
    }
    bool send_message(std::uint16_t peer, std::span<const std::byte> bytes) override {
      if (bus.dead_.contains(peer) || bus.muted_.contains(rank) || bus.muted_.contains(peer)) return false;
      if (!bus.are_connected(rank, peer)) return false;
      bus.messages_.push_back({rank, peer, {bytes.begin(), bytes.end()}});
      return true;
    }
    void use(base::TimeNs, std::uint16_t peer) override { bus.asked_.emplace_back(rank, peer); }
    std::uint32_t segment_bytes(std::uint16_t peer) const override { return bus.options_.segment_bytes(rank, peer); }
    double port_rate(base::TimeNs, std::uint16_t peer) const override { return bus.options_.port_rate(rank, peer); }
    std::string peer_error(std::uint16_t peer) const override {
      const auto found = bus.peer_errors.find({rank, peer});
      return found == bus.peer_errors.end() ? "" : found->second;
    }

    FakeBus& bus;
    std::uint16_t rank;
    std::deque<Posted<core::SendRequest>> sends;
    std::deque<Posted<core::ReceiveRequest>> receives;
    std::map<Key, std::uint64_t> sent, received;  // how many of each tag
    std::deque<core::Completion> completions;
    std::vector<CollectiveDone> done;
    Collectives machine;
  };
  struct Message {
    std::uint16_t from, to;
    std::vector<std::byte> bytes;
  };

  Host& host(std::uint16_t rank) { return *hosts_[rank]; }

  void connect(std::uint16_t rank, std::uint16_t peer) {
    if (are_connected(rank, peer) || dead_.contains(rank)) return;
    links_.insert({std::min(rank, peer), std::max(rank, peer)});
    if (dead_.contains(peer)) return host(rank).machine.on_peer_down(now, peer);
    host(rank).machine.on_peer_up(peer);
    host(peer).machine.on_peer_up(rank);
  }

  template <typename Request>
  core::PostStatus post(Host& at, std::deque<Posted<Request>>& queue, std::map<Key, std::uint64_t>& counts,
                        const Request& request) {
    REQUIRE(request.peer < options_.ranks);
    REQUIRE(request.peer != at.rank);
    REQUIRE(are_connected(at.rank, request.peer));
    if (dead_.contains(request.peer)) return core::PostStatus::kPeerNotConnected;
    if (options_.max_posted > 0 && queue.size() >= options_.max_posted) return core::PostStatus::kTooManyOperations;
    queue.push_back({request, counts[{request.peer, request.tag}]++});
    max_posted_ = std::max(max_posted_, queue.size());
    return core::PostStatus::kPosted;
  }

  template <typename Request>
  void end(Host& at, const Request& request, core::CompletionKind kind, core::CompletionStatus status) {
    core::Completion completion;
    completion.operation = request.operation;
    completion.kind = kind;
    completion.status = status;
    completion.peer = request.peer;
    completion.tag = request.tag;
    completion.total_bytes = request.data.size();
    at.completions.push_back(completion);
  }

  // The other end is aborted too, once it matches this one's number.
  template <typename Request>
  void cancel(Host& at, std::deque<Posted<Request>>& queue, OperationId operation, core::CompletionKind kind,
              core::CompletionStatus status = core::CompletionStatus::kCancelled) {
    const auto found = std::ranges::find_if(queue, [&](const auto& one) { return one.request.operation == operation; });
    if (found == queue.end()) return;
    end(at, found->request, kind, status);
    const bool is_send = kind == core::CompletionKind::kSend;
    aborted_.insert({is_send ? at.rank : found->request.peer, is_send ? found->request.peer : at.rank,
                     found->request.tag, found->number, is_send});
    queue.erase(found);
  }

  void end_all(Host& at, std::uint16_t peer, core::CompletionStatus status) {
    const auto end_in = [&](auto& queue, core::CompletionKind kind) {
      for (const auto& one : queue) {
        if (one.request.peer == peer) end(at, one.request, kind, status);
      }
      std::erase_if(queue, [&](const auto& one) { return one.request.peer == peer; });
    };
    end_in(at.sends, core::CompletionKind::kSend);
    end_in(at.receives, core::CompletionKind::kReceive);
  }

  bool transfer_one() {
    std::vector<std::uint16_t> order(options_.ranks);
    for (std::uint16_t i = 0; i < options_.ranks; ++i) order[i] = i;
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[prng_.below(i)]);
    for (const std::uint16_t rank : order) {
      Host& to = host(rank);
      if (dead_.contains(rank) || to.receives.empty()) continue;
      const std::size_t first = prng_.below(to.receives.size());
      for (std::size_t i = 0; i < to.receives.size(); ++i) {
        if (meet(to, (first + i) % to.receives.size())) return true;
      }
      if (abort_unmatched_sends(to)) return true;
    }
    return false;
  }

  // A receive that the sender cancelled ends; one whose send is posted is carried out.
  bool meet(Host& to, std::size_t index) {
    const Posted<core::ReceiveRequest> receive = to.receives[index];
    const auto erase = [&] { to.receives.erase(to.receives.begin() + static_cast<std::ptrdiff_t>(index)); };
    if (aborted_.contains({receive.request.peer, to.rank, receive.request.tag, receive.number, true})) {
      erase();
      end(to, receive.request, core::CompletionKind::kReceive, core::CompletionStatus::kCancelled);
      return true;
    }
    if (dead_.contains(receive.request.peer)) return false;
    Host& from = host(receive.request.peer);
    const auto send = std::ranges::find_if(from.sends, [&](const auto& one) {
      return one.request.peer == to.rank && one.request.tag == receive.request.tag && one.number == receive.number;
    });
    if (send == from.sends.end()) return false;
    // What is not ready yet does not leave; a transfer is carried whole here.
    const core::SendFeed* feed = send->request.feed;
    if (feed != nullptr && feed->fresh_count < feed->fresh.size()) return false;
    const core::SendRequest request = send->request;
    from.sends.erase(send);
    erase();
    carry(from, request, to, receive.request);
    return true;
  }

  bool abort_unmatched_sends(Host& at) {
    for (auto one = at.sends.begin(); one != at.sends.end(); ++one) {
      if (!aborted_.contains({at.rank, one->request.peer, one->request.tag, one->number, false})) continue;
      end(at, one->request, core::CompletionKind::kSend, core::CompletionStatus::kCancelled);
      at.sends.erase(one);
      return true;
    }
    return false;
  }

  void carry(Host& from, const core::SendRequest& send, Host& to, const core::ReceiveRequest& receive) {
    auto status = core::CompletionStatus::kComplete;
    if (const auto failure = failures_.find(to.rank); failure != failures_.end()) {
      status = failure->second;
      failures_.erase(failure);
    } else if (send.data.size() != receive.data.size()) {
      status = core::CompletionStatus::kSizeMismatch;
    }
    if (core::is_failure(status)) {
      end(to, receive, core::CompletionKind::kReceive, status);
      const bool is_mutual = status == core::CompletionStatus::kSizeMismatch;
      end(from, send, core::CompletionKind::kSend, is_mutual ? status : core::CompletionStatus::kCancelled);
      return;
    }
    const std::uint32_t segment_bytes = options_.segment_bytes(from.rank, to.rank);
    const core::SegmentGrid grid(static_cast<std::uint32_t>(send.data.size()), segment_bytes);
    if (!send.priorities.empty()) REQUIRE(send.priorities.size() == grid.count());
    const std::uint64_t elements = send.data.size() / wire::element_bytes(receive.element);
    core::LossBudget budget(elements, wire::element_bytes(receive.element), receive.loss_bound);
    if (receive.shared_budget != nullptr) budget.share(*receive.shared_budget, grid.length(0));
    std::uint64_t may_lose = budget.bytes();
    core::Completion completion;
    bitmaps_.emplace_back((grid.count() + 63) / 64);
    std::vector<std::uint64_t>& bitmap = bitmaps_.back();
    for (std::uint32_t i = 0; i < grid.count(); ++i) {
      const std::uint32_t length = grid.length(i);
      const bool is_missing = options_.lossy && length > 0 && length <= may_lose && prng_.chance(0.5);
      const Segment segment{from.rank, to.rank, send, receive, grid.offset(i), length, is_missing};
      on_segment(segment);
      if (is_missing) {
        may_lose -= length;
        completion.missing_bytes += length;
        if (receive.place == nullptr) std::memset(receive.data.data() + grid.offset(i), 0, length);
        continue;
      }
      bitmap[i / 64] |= std::uint64_t{1} << (i % 64);
      std::vector<std::byte> damaged;
      std::span<const std::byte> payload = send.data.subspan(grid.offset(i), length);
      if (length > 0 && is_damaged(segment)) {
        damaged.assign(payload.begin(), payload.end());
        damaged[length / 2] ^= std::byte{0x10};
        payload = damaged;
      }
      if (receive.place != nullptr) {
        receive.place(receive.place_context, grid.offset(i), payload);
      } else if (length > 0) {
        std::memcpy(receive.data.data() + grid.offset(i), payload.data(), length);
      }
    }
    budget.settle(completion.missing_bytes);
    lost_elements_ += completion.missing_bytes / wire::element_bytes(receive.element);
    end(from, send, core::CompletionKind::kSend, status);
    end(to, receive, core::CompletionKind::kReceive, status);
    core::Completion& received = to.completions.back();
    received.missing_bytes = completion.missing_bytes;
    received.segment_count = grid.count();
    received.segment_bytes = segment_bytes;
    if (received.missing_bytes > 0) {
      received.status = core::CompletionStatus::kWithinBound;
      received.received_bitmap = bitmap;
    }
  }

  bool deliver_message() {
    if (messages_.empty()) return false;
    const Message message = std::move(messages_.front());
    messages_.pop_front();
    if (dead_.contains(message.to)) return true;
    const auto decoded = decode(message.bytes);
    REQUIRE(decoded.has_value());
    if (const auto* failed = std::get_if<Failed>(&*decoded)) {
      host(message.to).machine.on_message(now, message.from, *failed);
    } else {
      host(message.to).machine.on_message(now, message.from, std::get<Called>(*decoded));
    }
    return true;
  }

  void deliver_completions() {
    for (bool any = true; any;) {
      any = false;
      for (const auto& one : hosts_) {
        while (!one->completions.empty() && !dead_.contains(one->rank)) {
          const core::Completion completion = one->completions.front();
          one->completions.pop_front();
          one->machine.on_completion(now, completion);
          one->machine.retry(now);
          any = true;
        }
        CollectiveDone done;
        while (one->machine.poll_done(done)) one->done.push_back(done);
      }
    }
  }

  Options options_;
  base::Prng prng_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::deque<Message> messages_;
  std::set<std::uint16_t> dead_, muted_;
  std::set<std::pair<std::uint16_t, std::uint16_t>> links_;
  std::deque<std::pair<std::uint16_t, std::uint16_t>> asked_;
  std::map<std::uint16_t, core::CompletionStatus> failures_;
  std::set<std::tuple<std::uint16_t, std::uint16_t, std::uint64_t, std::uint64_t, bool>> aborted_;  // by the sender?
  std::deque<std::vector<std::uint64_t>> bitmaps_;
  std::size_t max_posted_ = 0;
  std::uint64_t lost_elements_ = 0;
};

inline CollectiveRequest all_reduce_request(OperationId operation, std::vector<float>& data, bool average = true,
                                            double loss_bound = 0) {
  CollectiveRequest request;
  request.operation = operation;
  request.kind = CollectiveKind::kAllReduce;
  request.output = std::as_writable_bytes(std::span(data));
  request.reduction = average ? Reduction::kMean : Reduction::kSum;
  request.loss_bound = loss_bound;
  return request;
}

// Runs one all-reduce over `tensors` in place.
inline void all_reduce(FakeBus& bus, std::vector<std::vector<float>>& tensors, bool average, double loss_bound = 0,
                       CollectiveAlgorithm algorithm = CollectiveAlgorithm::kAutomatic) {
  for (std::uint16_t rank = 0; rank < tensors.size(); ++rank) {
    CollectiveRequest request = all_reduce_request(rank + 1U, tensors[rank], average, loss_bound);
    request.algorithm = algorithm;
    bus.start(rank, request);
  }
  bus.run();
}

inline bool have_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;  // null of an empty one
}

// What all_reduce() left: every rank's call is complete, with the same bits, and nothing is posted any more.
inline void check_complete(FakeBus& bus, const std::vector<std::vector<float>>& tensors,
                           const std::vector<float>& expected) {
  for (std::uint16_t rank = 0; rank < tensors.size(); ++rank) {
    CAPTURE(rank);
    REQUIRE(bus.done(rank).size() == 1);
    CHECK(bus.done(rank)[0].error == "");
    CHECK(bus.done(rank)[0].status == core::CompletionStatus::kComplete);
    CHECK(bus.done(rank)[0].operation == rank + 1U);
    CHECK(bus.done(rank)[0].total_bytes == expected.size() * sizeof(float));
    CHECK(have_same_bits(tensors[rank], expected));
    CHECK(bus.posted(rank) == 0);
  }
}

// One all-reduce of so many elements by every rank: direct_sum's bits.
inline void check_direct_sum(std::size_t ranks, std::size_t elements, bool average) {
  CAPTURE(ranks);
  CAPTURE(elements);
  FakeBus bus({.ranks = static_cast<std::uint16_t>(ranks), .seed = elements + ranks});
  auto tensors = random_tensors(ranks, elements, elements + 7);
  const auto expected = direct_sum(tensors, average);
  all_reduce(bus, tensors, average);
  check_complete(bus, tensors, expected);
}

// The ranks of `group` have called: each call is complete, with these bits.
inline void check_group_complete(FakeBus& bus, const std::vector<std::uint16_t>& group,
                                 const std::vector<std::vector<float>>& tensors, const std::vector<float>& expected) {
  for (const std::uint16_t rank : group) {
    CAPTURE(rank);
    REQUIRE(bus.done(rank).size() == 1);
    CHECK(bus.done(rank)[0].error == "");
    CHECK(have_same_bits(tensors[rank], expected));
  }
}

// Several all-reduces at once, of small tensors, where each rank may have few transfers.
inline void check_waits_for_space(std::uint16_t ranks, std::size_t calls, std::size_t elements, std::uint64_t seeds) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    FakeBus bus({.ranks = ranks, .seed = seed, .max_posted = 3, .shared_transfers = 2});
    std::vector<std::vector<std::vector<float>>> tensors;
    for (std::size_t i = 0; i < calls; ++i) {
      tensors.push_back(random_tensors(ranks, elements + i, i));
      for (std::uint16_t rank = 0; rank < ranks; ++rank) bus.start(rank, all_reduce_request(i + 1, tensors[i][rank]));
    }
    bus.run();
    CHECK(bus.max_posted() == 3);
    for (std::size_t i = 0; i < calls; ++i) {
      const auto expected = direct_sum(random_tensors(ranks, elements + i, i), true);
      for (const auto& tensor : tensors[i]) CHECK(tensor == expected);
    }
  }
}

// Until every rank has ended a call: a member whose call differs may end only by a timeout.
inline void run_to_the_end(FakeBus& bus, std::uint16_t ranks) {
  const auto is_over = [&] {
    return std::ranges::all_of(std::views::iota(0, int{ranks}),
                               [&](int rank) { return !bus.done(static_cast<std::uint16_t>(rank)).empty(); });
  };
  bus.run();
  while (!is_over()) {
    REQUIRE(bus.run_to_next_timeout());
    bus.run();
  }
}

// A rank that died: every other has the result, or an error that names it. How many have the error.
inline std::size_t check_death_is_named(FakeBus& bus, std::uint16_t dead,
                                        const std::vector<std::vector<float>>& tensors,
                                        const std::vector<float>& expected) {
  std::size_t failures = 0;
  for (std::uint16_t rank = 0; rank < tensors.size(); ++rank) {
    if (rank == dead) continue;
    REQUIRE(bus.done(rank).size() == 1);
    const CollectiveDone& done = bus.done(rank)[0];
    if (done.error.empty()) {
      CHECK(tensors[rank] == expected);
      continue;
    }
    ++failures;
    CHECK(done.status == core::CompletionStatus::kPeerFailed);
    CHECK(done.failed_peer == dead);
  }
  return failures;
}

// A rank dies or cancels its call after seed * half_steps / 2 steps: each rank has the result, or its tensor as it was.
// The fault comes before the end for the first `early_faults` seeds.
inline void check_a_failure_leaves_the_tensors(std::uint16_t ranks, std::size_t elements, std::uint64_t half_steps,
                                               std::uint64_t early_faults) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    FakeBus bus({.ranks = ranks, .seed = seed});
    auto tensors = random_tensors(ranks, elements, seed);
    const auto before = tensors;
    const auto expected = direct_sum(tensors, true);
    for (std::uint16_t rank = 0; rank < ranks; ++rank) bus.start(rank, all_reduce_request(1, tensors[rank]));
    for (std::uint64_t i = 0; i < seed * half_steps / 2; ++i) {
      bus.run_steps(1);
      for (std::uint16_t rank = 0; rank < ranks; ++rank) {
        CHECK(tensors[rank] == (bus.done(rank).empty() ? before[rank] : expected));
      }
    }
    const auto at_fault = static_cast<std::uint16_t>(seed % ranks);
    const bool is_killed = seed % 2 == 0;
    if (is_killed) {
      bus.kill(at_fault);
    } else {
      bus.machine(at_fault).cancel(bus.now, 1);
    }
    bus.run();
    std::size_t failed = 0;
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      if (is_killed && rank == at_fault) continue;
      REQUIRE(bus.done(rank).size() == 1);
      const CollectiveDone& done = bus.done(rank)[0];
      CHECK(tensors[rank] == (done.error.empty() ? expected : before[rank]));
      if (done.error.empty()) continue;
      ++failed;
      CHECK(done.failed_peer == at_fault);
      CHECK(done.status == (is_killed ? core::CompletionStatus::kPeerFailed : core::CompletionStatus::kCancelled));
    }
    if (seed <= early_faults) CHECK(failed > 0);
  }
}

}  // namespace mlt::test
