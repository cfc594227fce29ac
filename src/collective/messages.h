// Messages between ranks over the control connection: of workers and services for push-pull, and of the members of a
// group when a collective fails.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace mlt::collective {

// Worker -> service: registers to push and pull this partition.
struct Register {
  std::uint64_t key = 0;
  std::uint32_t partition = 0;
  std::uint32_t elements = 0;       // float32
  std::uint32_t segment_bytes = 0;  // of the grid on which contributions are counted
  double loss_bound = 0;            // of each push
  bool average = true;
  std::uint32_t order = 0;  // send order and class of the result
  std::uint8_t traffic_class = 0;
  std::uint64_t tensor_elements = 0;  // of all partitions together
  std::uint32_t services = 1;         // over which the tensor is cut
  std::uint16_t max_dead_services = 0;
  bool checksums = false;  // of each push and result (push_checksums.h)
};

// Service -> worker: pushes may begin.
struct Registered {
  std::uint64_t key = 0;
  std::uint32_t partition = 0;
  bool on_demand = false;  // no receive is posted between rounds: send Ready with each push
  bool checksums = false;  // of each push and result
};

// Worker -> service: a push of this partition, registered on demand, is in flight.
struct Ready {
  std::uint64_t key = 0;
  std::uint32_t partition = 0;
};

// Service -> worker: this partition cannot be summed; `text` gives the cause.
struct Refused {
  std::uint64_t key = 0;
  std::uint32_t partition = 0;
  std::string text;
};

// Service -> worker: a worker of this partition failed; no result follows.
struct Aborted {
  std::uint64_t key = 0;
  std::uint32_t partition = 0;
  std::uint16_t failed_rank = 0;
};

// Member -> every other: this collective of the group failed here, and so do all later ones that were called before the
// group resumes.
inline constexpr std::uint32_t kNeverResumes = ~std::uint32_t{0};
// Status of a collective that was cancelled because data arrived changed (checksums.h).
inline constexpr std::uint8_t kDamage = 8;
struct Failed {
  std::uint64_t group = 0;
  std::uint32_t sequence = 0;
  int failed_rank = -1;     // the rank at fault; -1: none
  std::uint8_t status = 0;  // a core::CompletionStatus that is a failure, or kDamage
  std::string text;
  std::uint32_t epoch = 0;  // failures that the group had resumed after
  std::uint32_t next = 0;   // sequence of the sender's next call when it noticed, or kNeverResumes
};

// Member -> member: a transfer between both had two sizes; this is the shape that this member called.
struct Called {
  std::uint64_t group = 0;
  std::uint32_t sequence = 0;
  std::array<std::byte, 32> shape{};
};

// Service -> every worker: a worker is gone, and the service sums without it.
struct Gone {
  std::uint64_t rank = 0;
  std::uint32_t max_dead_workers = 0;  // of the service: how many may be gone
};

// Service -> worker: the pushes of some workers did not come in time; no result follows.
struct Overdue {
  std::uint64_t key = 0;
  std::uint32_t partition = 0;
  std::uint16_t rank = 0;  // the first of them
  std::string text;        // names all
};

// Worker -> service: takes over the partition from a service that is gone, at what this worker had of it.
struct Move {
  Register shape;
  std::uint64_t rounds = 0;      // whose results this worker has whole
  std::vector<std::byte> cells;  // a bit per segment of the result that follows, whether it is here; empty: none is
};

// Service -> worker: it sums the partition now, from the result that follows so many.
struct Moved {
  std::uint64_t key = 0;
  std::uint32_t partition = 0;
  std::uint64_t rounds = 0;
  bool on_demand = false;  // as in Registered
  bool checksums = false;
};

// Rank -> its decider (survivors.h): connections that it lost, and the view that it knows.
struct Lost {
  std::uint64_t agreed = 0;             // of `excluded`, the first that a quorum acknowledged
  std::vector<std::uint32_t> excluded;  // ranks
  std::vector<std::uint32_t> lost;      // ranks
  std::uint16_t max_dead_services = 0;  // as far as the sender knows
};

// Decider -> all: the ranks that take no further part.
struct Excluded {
  std::uint64_t agreed = 0;
  std::vector<std::uint32_t> ranks;
};

// Worker -> service: by which it cuts its tensors (service_loads.h).
struct Loads {
  std::vector<std::uint32_t> units;  // per service; none if they are equal
};

// Worker -> service: of the push that it just posted. Service -> worker: of the result, whose sum is complete.
struct Checksum {
  std::uint64_t key = 0;
  std::uint32_t partition = 0;
  std::uint64_t checksum = 0;
};

// Worker -> service: the result arrived changed. Service -> worker: a push or a result did.
struct Damaged {
  std::uint64_t key = 0;
  std::uint32_t partition = 0;
  std::uint16_t rank = 0;  // that sent the data
  std::string text;
};

using Message = std::variant<Register, Registered, Refused, Aborted, Ready, Failed, Called, Gone, Overdue, Move, Moved,
                             Lost, Excluded, Loads, Checksum, Damaged>;

void encode(const Message& message, std::vector<std::byte>& out);
// Empty if the bytes are not exactly one message.
std::optional<Message> decode(std::span<const std::byte> bytes);

}  // namespace mlt::collective
