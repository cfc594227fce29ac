// A key of push-pull at a worker: its tensor's partitions over the services, and the push-pull of it in progress.
//
// Absent on purpose: posts (push_pull_posts.h), messages and ends (push_pull.h), and moves to other services
// (partition_moves.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "collective/messages.h"
#include "collective/push_pull_request.h"
#include "collective/service_choice.h"
#include "collective/takeover_record.h"
#include "collective/verbs.h"

namespace mlt::collective {

// Why a key is unusable from now on.
struct KeyFailure {
  core::CompletionStatus status = core::CompletionStatus::kPeerFailed;
  int peer = -1;
  std::string text;
  core::CompletionStatus later_status = core::CompletionStatus::kPeerFailed;  // of later push-pulls of the key
};

struct PushPullKey {
  struct Partition {
    TakeoverRecord record;
    std::uint64_t missing_bytes = 0;  // from the push in progress
    bool taken_over = false;          // a service that is gone summed it before
    bool undecided = false;    // the connection with its service is lost: the survivors decide which of both continues
    bool moving = false;       // its service is gone; when nothing is posted to it any more, the next one is asked
    bool must_replay = false;  // the next service needs the newest result
    bool replaying = false;
    std::uint16_t service = 0;
    std::uint16_t own_service = 0;  // that sums it where none is gone
    std::size_t first = 0;          // first element
    std::size_t count = 0;
    std::size_t first_segment = 0;  // in the request's priorities
    std::size_t segments = 0;
    bool registered = false;
    bool on_demand = false;  // the service requires Ready before each push
    bool pushing = false;
    bool pulling = false;
    bool push_posted = false;
    bool pull_posted = false;
    // A result that is here, and its service's checksum is not: still `pulling`, with nothing posted.
    struct Unchecked {
      std::optional<std::uint64_t> checksum;  // nothing: part of it is missing, within the bound
      std::uint64_t missing_bytes = 0;
    };
    std::optional<Unchecked> unchecked;
    std::vector<std::uint64_t> result_checksums;  // from the service, of results that are not here yet

    bool is_posted() const { return (pushing && push_posted) || (pulling && pull_posted); }
  };

  // Cuts the request's tensor over the services.
  PushPullKey(std::uint32_t own_index, const PushPullRequest& first_request, const ServiceChoice& services,
              const Verbs& verbs);

  bool is_broken() const { return !broken.empty(); }
  // Whether the request has the tensor and options of the key.
  bool fits(const PushPullRequest& other) const;
  // The error of a request that does not fit.
  std::string misfit_text(const PushPullRequest& other) const;
  // The registration of a partition at its service.
  Register shape_of(std::uint32_t partition, const ServiceChoice& services, const Verbs& verbs) const;
  // A push-pull begins; its pushes and pulls do, once all partitions are registered.
  void begin(TimeNs now, const PushPullRequest& next_request, TimeNs expires);
  void begin_round();
  // Its pushes and pulls have ended, or it failed before they began.
  bool is_over() const { return active && outstanding == 0 && (is_broken() || posted); }
  // The partition's result of the round in progress is here.
  bool has_result(std::uint32_t partition) const { return active && posted && !partitions[partition].pulling; }
  // The push-pull is over.
  PushPullDone finish(TimeNs now);
  // Ends pushes and pulls that are not posted, because nothing else ends them.
  void end_unposted();
  // Puts this worker's own term in the place of what the result of a partition misses.
  void stand_in(const Partition& partition, const core::Completion& completion) const;

  std::uint32_t index;
  std::uint64_t key;
  std::size_t elements;
  double loss_bound;
  bool average;
  bool checksums = false;  // of each push and result
  std::vector<Partition> partitions;
  // In which they are posted: a part of each service in turn, so that no service's link waits for that of another.
  std::vector<std::uint32_t> post_order;
  bool was_registered = false;
  std::size_t unregistered = 0;
  bool active = false;
  bool posted = false;
  PushPullRequest request;
  TimeNs started_ns = 0;
  TimeNs expires_ns = base::kNever;
  std::size_t outstanding = 0;  // pushes and pulls in progress
  PushPullDone done;
  std::string broken;  // why the key is unusable
  int broken_by = -1;
  core::CompletionStatus broken_status = core::CompletionStatus::kPeerFailed;  // of later push-pulls
  // Shortly before the timeout the worker asks a service which pushes the sum of a partition lacks.
  struct Question {
    std::uint32_t partition = 0;
    std::uint16_t service = 0;
    TimeNs started_ns = 0;  // of its push-pull
  };
  struct Late {
    std::uint16_t service = 0;
    Overdue reply;
  };
  std::optional<Question> question;        // without a reply yet
  std::optional<Late> late;                // workers whose pushes are missing, as a service says in this push-pull
  std::optional<KeyFailure> next_failure;  // breaks the key after the current round
};

}  // namespace mlt::collective
