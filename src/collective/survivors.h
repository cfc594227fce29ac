// Which workers and services still take part in push-pull: a view that all that continue share (section 14.2 of
// PROTOCOL.md).
//
// A process decides nothing by its own connections. It reports a lost one to the decider, the lowest service that it
// reaches; the decider excludes one end of each lost connection, as long as those that are left and report to it are a
// quorum: most of the last view that a quorum acknowledged, or half of it with its lowest service. Views only grow, and
// whoever receives two joins them. So of two groups that don't reach each other at most one continues.
//
// Absent on purpose: how many may be dead (its users enforce that), what a death means for sums, and which end of a
// connection is the better one (edge_cover.h). A connection that is lost stays lost. Connections between workers don't
// matter, nor those between services where none may be excluded. Owned by the driver's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "collective/messages.h"
#include "collective/verbs.h"

namespace mlt::collective {

class Survivors {
 public:
  // From the report of a lost connection to the decision, unless all that are connected with one of the two lost it:
  // other reports may follow.
  static constexpr base::DurationNs kDecisionWaitNs = 750 * base::kMillisecond;

  struct Config {
    std::uint16_t rank = 0;
    std::uint16_t workers = 0;   // ranks 0 .. workers-1
    std::uint16_t services = 1;  // the ranks that follow
    // Without a decision for so long a rank takes no further part.
    base::DurationNs max_undecided_ns = 33 * base::kSecond;
  };

  Survivors(const Config& config, Verbs& verbs);

  // Which of the two ends of a connection may be excluded.
  void set_limits(std::uint16_t max_dead_workers, std::uint16_t max_dead_services) {
    max_dead_workers_ = max_dead_workers;
    max_dead_services_ = max_dead_services;
  }
  // A worker has named the limit, which the services do not know before.
  void raise_max_dead_services(TimeNs now, std::uint16_t limit);
  std::uint16_t max_dead_services() const { return max_dead_services_; }

  // The connection with it ended, or it takes no further part.
  void on_lost(TimeNs now, std::uint16_t peer);
  // The same, where nothing is to be decided about it.
  void on_gone(TimeNs now, std::uint16_t peer);
  // Where ranks connect on first use: a connection that was being set up.
  void on_peer_up(TimeNs now, std::uint16_t peer);
  void on_message(TimeNs now, std::uint16_t from, const Lost& lost);
  void on_message(TimeNs now, std::uint16_t from, const Excluded& excluded);
  void on_timeout(TimeNs now);
  TimeNs next_timeout() const { return timeout_ns_; }
  // A rank that takes part in push-pulls now gets the view.
  void inform(TimeNs now, std::uint16_t rank);

  // The next rank that takes no further part; this one too.
  std::optional<std::uint16_t> poll_excluded();
  bool is_lost(std::uint16_t rank) const { return members_[rank].is_lost; }
  bool is_excluded(std::uint16_t rank) const { return members_[rank].is_excluded; }
  bool has_decider() const { return decider() >= 0; }
  // By others, and not because it reaches too few ranks.
  bool is_out_by_view() const { return members_[config_.rank].is_excluded; }
  // Lost connections without a decision.
  std::size_t undecided() const { return edges_.size(); }
  // Why this rank takes no further part; empty if it does.
  const std::string& out_text() const { return out_text_; }

 private:
  struct Member {
    bool is_lost = false;  // by this rank
    bool is_excluded = false;
    bool has_left = false;      // by itself: no decision is needed
    bool is_listed = false;     // in excluded_
    bool has_reported = false;  // to this rank, which is its decider
    bool has_begun = false;     // its process takes part in push-pulls
    bool is_owed = false;       // messages to it could not be sent
    std::vector<bool> knows;    // as excluded, as reported; empty: none
    std::vector<bool> lost;     // as reported; empty: none
  };
  // A lost connection.
  struct Edge {
    std::uint16_t reporter = 0, peer = 0;
    TimeNs noted_ns = 0;
  };
  using Ranks = std::vector<std::uint16_t>;

  bool is_service(std::uint16_t rank) const { return rank >= config_.workers; }
  bool is_out() const { return !out_text_.empty(); }
  int decider() const;
  void on_left(TimeNs now, std::uint16_t peer);
  void report(TimeNs now);
  void note_edge(TimeNs now, std::uint16_t reporter, std::uint16_t peer);
  bool is_valid(const std::vector<std::uint32_t>& ranks) const;
  // True if it has ranks that this rank did not know of. `is_decided`: so do others, who wait for this rank to know.
  bool join(const std::vector<std::uint32_t>& ranks, std::uint64_t agreed, bool is_decided);
  void exclude(std::uint16_t rank);
  void list(std::uint16_t rank);
  // excluded_ and the ranks that have left.
  std::vector<std::uint32_t> view() const;
  void broadcast();
  void send_view(std::uint16_t to);
  // What scratch_ holds.
  void send(std::uint16_t to);
  // Whether the limits permit so many dead of each kind.
  struct Spare {
    std::size_t workers = 0, services = 0;  // so many more may be excluded
  };
  std::optional<Spare> spare() const;
  // Those of which one end has to be excluded.
  std::vector<Edge> open_edges() const;
  void decide(TimeNs now);
  bool decide_once(TimeNs now);
  void agree();
  Ranks choose(TimeNs now, const std::vector<Edge>& open, const Ranks& dead, const Spare& left) const;
  Ranks lost_by_all(const std::vector<Edge>& edges) const;
  bool is_lost_by_all(std::uint16_t rank) const;
  bool supports(std::uint16_t rank) const;
  bool knows_view(std::uint16_t rank) const;
  bool has_acknowledged(std::uint16_t rank) const;
  bool is_stuck() const;
  template <typename IsIn>
  bool is_quorum(IsIn is_in) const;
  void set_timer(TimeNs now);
  void leave(const std::string& text);

  Config config_;
  Verbs& verbs_;
  std::uint16_t size_;
  std::uint16_t max_dead_workers_ = 0;
  std::uint16_t max_dead_services_ = 0;
  std::vector<Member> members_;          // by rank
  std::vector<std::uint32_t> excluded_;  // in the order in which they were
  std::uint64_t agreed_ = 0;             // of them, the first that a quorum acknowledged
  std::vector<Edge> edges_;              // undecided, in the order of the reports; each once
  std::deque<std::uint16_t> unpolled_;
  TimeNs stuck_since_ns_ = base::kNever;
  TimeNs timeout_ns_ = base::kNever;
  std::string out_text_;
  std::vector<std::byte> scratch_;
};

}  // namespace mlt::collective
