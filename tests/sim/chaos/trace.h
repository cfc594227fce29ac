// The trace of a run on real sockets: what each rank posted, how it ended, and what was done to ranks and network
// meanwhile. tools/chaos writes it: one file per rank of a job, and one of the job's network. A line is a word and
// key=value pairs; times are nanoseconds on the machine's CLOCK_MONOTONIC. A last line without its end is left out: its
// writer was killed. Absent on purpose: any check.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/completion_rules.h"

namespace mlt::chaos {

// What a rank did with one operation; `kind` of a collective is unused.
struct Operation {
  std::uint64_t id = 0;
  std::string verb;  // "send", "receive", "all_reduce", "all_to_all", "gather"
  core::CompletionKind kind = core::CompletionKind::kSend;
  sim::Plan plan;
  std::uint64_t generation = 0;
  base::TimeNs posting_ns = 0;  // before the call
  base::TimeNs posted_ns = 0;   // after it
  base::TimeNs cancelled_ns = 0;
  int ends = 0;
  base::TimeNs ended_ns = 0;  // when the application saw it
  core::CompletionStatus status = core::CompletionStatus::kComplete;
  core::Completion completion;
  std::vector<std::uint64_t> bitmap;
  bool off_grid = false;          // what is missing are no whole segments
  std::uint64_t digest = 0;       // of what arrived; of a send or collective: of the whole buffer
  std::uint64_t gaps_digest = 0;  // of what is missing
  std::uint64_t guards = 0;
  bool is_used_again = false;  // the memory, after the end
  std::uint64_t later_digest = 0;
  std::uint64_t later_guards = 0;
  // Collectives.
  std::vector<std::uint16_t> group;
  std::uint64_t sequence = 0;
  bool average = false;
  std::uint16_t root = 0;
};

// A post that was refused.
struct Refusal {
  std::string code;
  std::int32_t peer = -1;  // -1: a collective's
  base::TimeNs at_ns = 0;
};

struct Rank {
  std::uint16_t rank = 0;
  bool said_goodbye = false;
  base::TimeNs goodbye_ns = 0;
  std::map<std::uint16_t, std::uint32_t> segment_bytes;  // by peer
  std::map<std::uint64_t, Operation> operations;
  std::vector<Refusal> refusals;
  std::vector<std::string> faults;  // lines that make no sense: of a completion that was not posted, ...
};

// Something that was done to the job on purpose.
struct Fault {
  std::string kind;
  base::TimeNs begin_ns = 0;
  base::TimeNs end_ns = 0;
  std::vector<std::uint16_t> ranks;  // none: all of them
  bool cuts = false;                 // so long that peers may take each other for dead
};

struct Job {
  std::uint64_t number = 0;
  std::string name;
  base::DurationNs peer_timeout_ns = 0;
  base::DurationNs stall_ns = 0;  // the longest time that the machine kept a process from running
  std::map<std::uint16_t, Rank> ranks;
  std::vector<Fault> faults;
  std::vector<Fault> drops;  // intervals in which the network dropped something
};

// Reads every *.trace file of a folder, by job. Throws std::runtime_error that names the file and line.
std::map<std::uint64_t, Job> read_traces(const std::string& folder);

}  // namespace mlt::chaos
