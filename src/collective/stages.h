// The stages of a collective in which ranks exchange whole parts (collective/staged.h): which part each sends to whom,
// receives from whom, and combines or copies. Plans: of an all-reduce recursive halving and two levels; of an
// all-gather and a reduce-scatter two levels.
//
// Recursive halving and doubling (Rabenseifner): a reduce-scatter in which the part that two ranks exchange halves in
// each stage, then an all-gather in which it doubles. A rank sends about as much as in a ring
// (collective/ring_allreduce.h), but in 2 log2 n successive transfers instead of 2 (n - 1). Of n ranks, the largest
// power of two that fits are the core. Each of the others, if n is no such power, is paired with one of the core: it
// sends that its whole tensor first, and receives the whole result last. The partners of stage j differ in bit j of
// their core numbers: the first stages, with the longest parts, join ranks near each other in the group.
//
// Two levels: the ranks of each host share the tensor out among themselves, those with the same share all-reduce it
// between the hosts, then the ranks of each host collect the whole. A host's link carries 2 (h - 1) / h tensors for h
// hosts, however many ranks each has; in a ring 2 (n - 1) / n. The tensor is cut into slices, so that one slice is
// between the hosts while another is within them.
//
// All-gather by two levels: each rank exchanges parts with those that have its place on the other hosts, and passes on
// what it receives within its host. A host's link carries the part of each of its ranks once for each other host, where
// a direct one carries it once for each rank there. Reduce-scatter: the opposite way, with sums.
//
// Pure: no memory of transfers, no state. Sizes are in bytes unless they say elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace mlt::collective {

// One exchange with one or two other members. Absent parts are not carried; an empty part is.
struct Stage {
  using Bytes = std::optional<std::span<std::byte>>;
  std::uint32_t to = 0;    // member that `sent` goes to; an index in the group
  std::uint32_t from = 0;  // member that `received` comes from
  Bytes sent;              // parts of the tensor
  Bytes received;
  bool combines = false;    // `received` is a term to add; else a result to copy
  std::uint32_t slice = 0;  // of the tensor; slices do not depend on each other
  std::uint32_t needs = 0;  // stages of the slice, in order, that must be complete before this one sends
};

struct StagePlan {
  std::vector<Stage> stages;  // in order; that of two members' common stages is the same at both
  std::uint32_t slices = 1;
  std::uint32_t slices_at_once = 1;  // slice i begins to receive once slice i - slices_at_once is complete
};

// Of the member `own` of `ranks`; requires two or more.
StagePlan halving_stages(std::uint32_t ranks, std::uint32_t own, std::span<std::byte> data,
                         std::uint32_t element_bytes);

// Requires two or more hosts of `ranks_per_host` members, two or more, adjacent in the group.
StagePlan two_level_stages(std::uint32_t ranks, std::uint32_t own, std::uint32_t ranks_per_host,
                           std::span<std::byte> data, std::uint32_t element_bytes);

// As above; `parts`: of the output, one for each member.
StagePlan two_level_gather_stages(std::uint32_t ranks, std::uint32_t own, std::uint32_t ranks_per_host,
                                  const std::vector<std::span<std::byte>>& parts, std::uint32_t element_bytes);

// `parts`: of the input, one for each member, only read. `sums`: memory of a part for each host, in their order; that
// of host i begins as the input's part of the member there that has this one's place, and that of the own host ends as
// the result.
StagePlan two_level_scatter_stages(std::uint32_t ranks, std::uint32_t own, std::uint32_t ranks_per_host,
                                   const std::vector<std::span<std::byte>>& parts,
                                   const std::vector<std::span<std::byte>>& sums, std::uint32_t element_bytes);

}  // namespace mlt::collective
