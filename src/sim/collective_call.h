// A drawn collective of a group of simulated hosts: what each member passes, and what it must receive.
//
// Contents are made so that every order of a reduction gives the same bits: small whole numbers in floating point, any
// bits in integers. Members go by their index in the group. Absent on purpose: when members call (sim/scenario.h), and
// failures (sim/collective_swarm.h). One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collective/collective.h"

namespace mlt::sim {

struct CallPlan {
  // What a member does other than the others.
  enum class Fault : std::uint8_t {
    kNone,
    kCancels,     // `fault_at_ns` after its call
    kDiffers,     // calls a barrier, or if all call one, an all-gather
    kNotCorrect,  // its call carries a fault of its own, as of a NaN in its input
  };
  std::uint32_t group = 0;  // of CollectivesPlan::groups
  collective::CollectiveKind kind = collective::CollectiveKind::kAllReduce;
  wire::ElementType element = wire::ElementType::kFloat32;
  collective::Reduction reduction = collective::Reduction::kSum;
  collective::CollectiveAlgorithm algorithm = collective::CollectiveAlgorithm::kAutomatic;
  std::uint16_t ranks_per_host = 0;
  std::uint32_t root = 0;    // a member
  std::size_t elements = 0;  // of the tensor, or of each part
  double loss_bound = 0;     // of sums, gathers, all-gathers and all-to-alls of float32 only
  bool lossy_results = false;
  std::vector<base::DurationNs> at_ns;  // by member; after the run's start
  Fault fault = Fault::kNone;
  std::uint32_t culprit = 0;  // a member
  base::DurationNs fault_at_ns = 0;
  std::uint64_t seed = 0;  // of the contents
};

struct GroupPlan {
  std::vector<std::uint16_t> ranks;
  std::uint32_t stream = 0;
};

class CollectiveCall {
 public:
  CollectiveCall(const CallPlan& plan, const GroupPlan& group);

  // As the plan says, without its fault.
  collective::CollectiveRequest request(std::size_t member, core::OperationId operation);
  // What the plan's culprit passes where it differs.
  collective::CollectiveRequest other_request(core::OperationId operation) const;
  // A member has completed its call, with so much missing: why its result is wrong; empty if it is right. Then its
  // memory is filled with other data, as by an application that uses it again.
  std::string take_result(std::size_t member, std::uint64_t missing_bytes);
  // It has failed, and its memory is used again.
  void give_up(std::size_t member);
  // Whether something has been written to a member's output since.
  bool was_touched(std::size_t member) const;
  std::string text() const;

 private:
  using Bytes = std::vector<std::byte>;

  bool has_output(std::size_t member) const;
  bool is_in_place() const;
  Bytes expected(std::size_t member) const;
  Bytes reduced() const;
  Bytes reduced_by_kernel() const;
  std::string check_exact(std::size_t member) const;
  std::string check_lossy(std::size_t member, std::uint64_t missing_bytes);
  std::string check_lossy_sum(std::size_t member, std::uint64_t missing_bytes);
  // Once every member has its sum: terms are missing only where some member reports it.
  std::string check_reported_terms() const;

  const CallPlan& plan_;
  const GroupPlan& group_;
  std::size_t part_bytes_;
  std::vector<Bytes> terms_;             // what each member passes, kept for the comparison
  std::vector<Bytes> inputs_, outputs_;  // the members' memory
  std::vector<bool> is_given_back_;
  Bytes first_sum_;  // of a lossy all-reduce whose members end with the same bits
  bool has_first_sum_ = false;
  std::vector<double> missing_terms_;  // of a lossy all-reduce, of each member's sum that was taken
  std::uint64_t reported_bytes_ = 0;   // missing, as these members say
};

}  // namespace mlt::sim
