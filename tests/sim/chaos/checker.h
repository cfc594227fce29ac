// Checks a run on real sockets by its trace. The rules are the oracle's (sim/oracle.h, sim/completion_rules.h), as far
// as a trace shows them:
//   1  bound and critical segments
//   2  contents, by digest: what arrived, what is missing, and the results of collectives
//   3  every operation ends once, in time, for a reason; a send ends as its receive did
//   4  guards around each buffer, and its memory after the end
//   7  what nothing disturbed for kProgressNs does not time out
//   8  while the network drops nothing, `patient` loses nothing
//  14  time-outs, cancellations and dead peers end an operation at once
// "In time" is kSlackNs, with what the machine kept processes from running (measured during the run) and the time that
// the rank itself was stopped. Absent on purpose: what needs every datagram (rules 5, 6, 9 to 13, 15).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/chaos/trace.h"

namespace mlt::chaos {

inline constexpr base::DurationNs kSlackNs = base::kSecond;
inline constexpr base::DurationNs kProgressNs = 5 * base::kSecond;

struct Broken {
  int rule = 0;
  std::string text;
};

struct Totals {
  std::uint64_t operations = 0;
  std::uint64_t lost = 0;  // their process was killed
  std::map<std::string, std::uint64_t> by_status;
  std::uint64_t bytes = 0;                            // of receives that ended well
  std::uint64_t missing_bytes = 0;                    // of these, within their bounds
  std::uint64_t receives_without_drops = 0;           // patient ones that rule 8 was held against
  std::map<std::string, base::DurationNs> worst_end;  // by kind of fault: from its begin, or the post, to the end
};

class Checker {
 public:
  explicit Checker(const Job& job);

  void run();
  const std::vector<Broken>& broken() const { return broken_; }
  const Totals& totals() const { return totals_; }

 private:
  struct Pair {
    const Operation* send = nullptr;
    const Operation* receive = nullptr;
  };

  void match();
  void check_refusal(std::uint16_t rank, const Refusal& refusal);
  void check_transfer(const Operation& operation);
  void check_receive(const Operation& receive, const Operation* send);
  void check_contents(const Operation& receive, const Operation* send);
  void check_memory(const Operation& operation);
  void check_ends(const Operation& operation);
  void check_settled(const Operation& operation);
  void check_peer_failed(const Operation& operation, base::TimeNs at);
  void check_progress(const Operation& operation, const Operation* other);
  void check_collectives();
  void check_collective(const std::vector<const Operation*>& members, bool earlier_failed);
  void check_results(const std::vector<const Operation*>& members);
  std::uint64_t expected_result(const Operation& operation) const;
  void count(const Operation& operation);

  bool is_lost(const Operation& operation) const;
  sim::Side side_of(const Operation& operation) const;
  base::DurationNs slack(const Operation& operation) const;
  bool is_disturbed(const Operation& operation) const;
  bool dropped_between(base::TimeNs begin, base::TimeNs end) const;
  // Whether something could have made the ranks lose each other before `at`.
  bool is_cut(std::uint16_t a, std::uint16_t b, base::TimeNs at) const;
  void violate(int rule, const Operation& operation, const std::string& text);
  void hold(const Operation& operation, const sim::Finding& finding);

  const Job& job_;
  std::map<std::vector<std::uint64_t>, Pair> pairs_;  // by from, to, tag, generation
  std::vector<Broken> broken_;
  Totals totals_;
};

}  // namespace mlt::chaos
