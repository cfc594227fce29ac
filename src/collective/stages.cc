#include "collective/stages.h"

#include <algorithm>
#include <bit>

#include "collective/cut.h"

namespace mlt::collective {

namespace {

// A slice is long enough that its transfers between hosts are, and short enough that some are on the way at once.
constexpr std::size_t kMinSliceBytes = 512U << 10;
constexpr std::size_t kMaxSliceBytes = 4U << 20;
constexpr std::size_t kSlices = 8;  // that a tensor is cut into, within these limits

// The stages of one slice. Members' indices in a plan among some of the group are positions in `members`.
class SliceStages {
 public:
  SliceStages(std::uint32_t slice, std::uint32_t element_bytes) : slice_(slice), element_bytes_(element_bytes) {}

  // Stages from here on send only what the stages so far have completed.
  void begin_round() { needs_ = static_cast<std::uint32_t>(stages_.size()); }

  void add(std::uint32_t to, std::uint32_t from, Stage::Bytes sent, Stage::Bytes received, bool combines) {
    stages_.push_back({to, from, sent, received, combines, slice_, needs_});
    rounds_of_.push_back(round_);
  }
  void add_round(std::uint32_t member, Stage::Bytes sent, Stage::Bytes received, bool combines) {
    begin_round();
    add(member, member, sent, received, combines);
    ++round_;
  }
  void end_round() { ++round_; }

  // Part `i` of `parts` of `part`.
  std::span<std::byte> cut_of(std::span<std::byte> part, std::uint32_t i, std::uint32_t parts) const {
    const std::size_t elements = part.size() / element_bytes_;
    const std::size_t first = cut(elements, i, parts), end = cut(elements, i + std::size_t{1}, parts);
    return part.subspan(first * element_bytes_, (end - first) * element_bytes_);
  }

  const std::vector<Stage>& stages() const { return stages_; }
  std::uint32_t round_of(std::size_t stage) const { return rounds_of_[stage]; }
  std::uint32_t rounds() const { return round_; }

 private:
  std::uint32_t slice_;
  std::uint32_t element_bytes_;
  std::uint32_t needs_ = 0;
  std::uint32_t round_ = 0;
  std::vector<Stage> stages_;
  std::vector<std::uint32_t> rounds_of_;
};

// PROTOCOL 22.5.3: In stage j, from 0 while 2^j is below c, each member of the core MUST exchange parts with the one
//     whose number differs in bit j: of the part that both hold, at first the tensor, the one whose bit is 0 keeps
//     the first half, the longer one by an element if they differ, the other the second; each sends the half that it
//     does not keep, and adds what it receives to the half that it keeps, which is its part from then on.
// PROTOCOL 22.5.4: Then the stages MUST follow in the opposite order: each member sends the half that it kept, now of
//     the result, and replaces the other by what it receives.
template <typename IndexOf>
void add_halving(SliceStages& out, std::uint32_t core, std::uint32_t number, std::span<std::byte> part,
                 std::uint32_t element_bytes, const IndexOf& index_of) {
  const std::size_t first = out.stages().size();
  for (std::uint32_t bit = 1; bit < core; bit *= 2) {
    const std::size_t half = (part.size() / element_bytes + 1) / 2 * element_bytes;
    const bool keeps_first = (number & bit) == 0;
    const std::span<std::byte> kept = keeps_first ? part.first(half) : part.subspan(half);
    const std::span<std::byte> given = keeps_first ? part.subspan(half) : part.first(half);
    out.add_round(index_of(number ^ bit), given, kept, true);
    part = kept;
  }
  for (std::size_t stage = out.stages().size(); stage > first; --stage) {
    const Stage halving = out.stages()[stage - 1];
    out.add_round(halving.to, halving.received, halving.sent, false);
  }
}

// The same between hosts whose number is no power of two, chunk by chunk around a ring.
template <typename IndexOf>
void add_ring(SliceStages& out, std::uint32_t members, std::uint32_t own, std::span<std::byte> part,
              const IndexOf& index_of) {
  const std::uint32_t next = index_of((own + 1) % members), before = index_of((own + members - 1) % members);
  const auto chunk = [&](std::uint32_t behind) {
    return out.cut_of(part, (own + 2 * members - behind) % members, members);
  };
  for (std::uint32_t turn = 0; turn < 2 * (members - 1); ++turn) {
    out.begin_round();
    out.add(next, before, chunk(turn), chunk(turn + 1), turn + 1 < members);
    out.end_round();
  }
}

// PROTOCOL 22.7.2: A tensor of b bytes MUST be cut into slices as in 22.2.2, as many as a slice of b / 8 bytes, but at
//     least 524,288 and at most 4,194,304, goes into it, rounded up, and at least one.
std::uint32_t slices_of(std::size_t bytes) {
  const std::size_t slice_bytes = std::clamp((bytes + kSlices - 1) / kSlices, kMinSliceBytes, kMaxSliceBytes);
  return static_cast<std::uint32_t>(std::max<std::size_t>(1, (bytes + slice_bytes - 1) / slice_bytes));
}

// PROTOCOL 22.7.6: ... Between two members the rounds MUST follow in this order: round r of slice s in turn r + s, and
//     in a turn the lower slice first. ...
StagePlan in_turns(const std::vector<SliceStages>& plans) {
  const auto slices = static_cast<std::uint32_t>(plans.size());
  const std::uint32_t rounds = plans[0].rounds();
  StagePlan plan{{}, slices, rounds};
  for (std::uint32_t turn = 0; turn < slices + rounds - 1; ++turn) {
    for (std::uint32_t slice = turn < rounds ? 0 : turn - rounds + 1; slice < slices && slice <= turn; ++slice) {
      const SliceStages& of = plans[slice];
      for (std::size_t i = 0; i < of.stages().size(); ++i) {
        if (of.round_of(i) + slice == turn) plan.stages.push_back(of.stages()[i]);
      }
    }
  }
  return plan;
}

// Members of the group, seen from one: by hosts behind its own and members behind it on a host.
struct Places {
  Places(std::uint32_t ranks, std::uint32_t own, std::uint32_t ranks_per_host)
      : each(ranks_per_host), hosts(ranks / ranks_per_host), host(own / ranks_per_host), local(own % ranks_per_host) {}

  std::uint32_t same_host(std::uint32_t hosts_behind, std::uint32_t members_behind) const {
    return (host + hosts_behind) % hosts * each + (local + members_behind) % each;
  }
  std::uint32_t same_place(std::uint32_t hosts_behind) const { return same_host(hosts_behind, 0); }

  std::uint32_t each, hosts, host, local;
};

}  // namespace

// PROTOCOL 22.5.1: The core of a group of n members MUST be c of them, where c is the highest power of two that is not
//     above n. Of the first 2 (n - c) members those of odd index are outside; each is paired with the member before it.
//     The core's members have the numbers 0 to c - 1 in the order of their indices.
StagePlan halving_stages(std::uint32_t ranks, std::uint32_t own, std::span<std::byte> data,
                         std::uint32_t element_bytes) {
  const std::uint32_t core = std::bit_floor(ranks), outside = ranks - core;
  const bool is_paired = own < 2 * outside;
  SliceStages out(0, element_bytes);
  // PROTOCOL 22.5.2: A member outside MUST send the whole tensor to the member that it is paired with, which MUST add
  //     it to its own before anything else, and send back the whole result at the end.
  if (is_paired && own % 2 == 1) {
    out.add_round(own - 1, data, data, false);
    return {out.stages()};
  }
  if (is_paired) out.add_round(own + 1, std::nullopt, data, true);
  const auto index_of = [outside](std::uint32_t other) { return other < outside ? 2 * other : other + outside; };
  add_halving(out, core, is_paired ? own / 2 : own - outside, data, element_bytes, index_of);
  if (is_paired) out.add_round(own + 1, data, std::nullopt, false);
  return {out.stages()};
}

StagePlan two_level_stages(std::uint32_t ranks, std::uint32_t own, std::uint32_t ranks_per_host,
                           std::span<std::byte> data, std::uint32_t element_bytes) {
  const std::uint32_t hosts = ranks / ranks_per_host;
  const std::uint32_t host = own / ranks_per_host, local = own % ranks_per_host, first = host * ranks_per_host;
  const std::uint32_t slices = slices_of(data.size());
  std::vector<SliceStages> plans;
  for (std::uint32_t slice = 0; slice < slices; ++slice) {
    SliceStages& out = plans.emplace_back(slice, element_bytes);
    const std::span<std::byte> part = out.cut_of(data, slice, slices);
    // PROTOCOL 22.7.3: Each slice MUST be cut, as in 22.2.2, into as many parts as a host has members, one for each. A
    //     member sends each other member of its host that member's part, the next one first, and adds what it receives
    //     to its own, that of the member before it first.
    const auto share = [&](std::uint32_t other) { return out.cut_of(part, other, ranks_per_host); };
    const auto other = [&](std::uint32_t distance) { return (local + distance) % ranks_per_host; };
    out.begin_round();
    for (std::uint32_t i = 1; i < ranks_per_host; ++i) {
      const std::uint32_t to = other(i);
      out.add(first + to, first + other(ranks_per_host - i), share(to), share(local), true);
    }
    out.end_round();
    // PROTOCOL 22.7.4: Then the members of all hosts that have the same place in their hosts MUST all-reduce their
    //     parts, in the order of the hosts: by recursive halving (22.5.3, 22.5.4) if the number of hosts is a power of
    //     two; else around a ring, in whole chunks (22.2.3).
    const auto index_of = [&](std::uint32_t at) { return at * ranks_per_host + local; };
    if (std::has_single_bit(hosts)) {
      add_halving(out, hosts, host, share(local), element_bytes, index_of);
    } else {
      add_ring(out, hosts, host, share(local), index_of);
    }
    // PROTOCOL 22.7.5: Then each member MUST send its part, now of the result, to each other member of its host, the
    //     next one first, and replace the others by what it receives.
    out.begin_round();
    for (std::uint32_t i = 1; i < ranks_per_host; ++i) {
      const std::uint32_t from = other(ranks_per_host - i);
      out.add(first + other(i), first + from, share(local), share(from), false);
    }
    out.end_round();
  }
  return in_turns(plans);
}

// PROTOCOL 22.7.8: In an all-gather by two levels each member MUST send its part to the members of the other hosts that
//     have the same place there, the next host first, and to the other members of its host, the next one first; then
//     the parts that it received from other hosts, that of the next host first, to the other members of its host, the
//     next one first. Each part is cut into slices as a tensor of its size (22.7.2), and these are two rounds of each.
StagePlan two_level_gather_stages(std::uint32_t ranks, std::uint32_t own, std::uint32_t ranks_per_host,
                                  const std::vector<std::span<std::byte>>& parts, std::uint32_t element_bytes) {
  const Places at(ranks, own, ranks_per_host);
  const std::uint32_t slices = slices_of(parts[own].size());
  std::vector<SliceStages> plans;
  for (std::uint32_t slice = 0; slice < slices; ++slice) {
    SliceStages& out = plans.emplace_back(slice, element_bytes);
    const auto part = [&](std::uint32_t member) { return out.cut_of(parts[member], slice, slices); };
    out.begin_round();
    for (std::uint32_t i = 1; i < at.hosts; ++i) {
      const std::uint32_t from = at.same_place(at.hosts - i);
      out.add(at.same_place(i), from, part(own), part(from), false);
    }
    for (std::uint32_t j = 1; j < ranks_per_host; ++j) {
      const std::uint32_t from = at.same_host(0, ranks_per_host - j);
      out.add(at.same_host(0, j), from, part(own), part(from), false);
    }
    out.end_round();
    out.begin_round();
    for (std::uint32_t i = 1; i < at.hosts; ++i) {
      for (std::uint32_t j = 1; j < ranks_per_host; ++j) {
        const std::uint32_t from = ranks_per_host - j;
        out.add(at.same_host(0, j), at.same_host(0, from), part(at.same_place(i)), part(at.same_host(i, from)), false);
      }
    }
    out.end_round();
  }
  return in_turns(plans);
}

// PROTOCOL 22.7.9: In a reduce-scatter by two levels each member MUST send, to each other member of its host, the next
//     one first, its terms for the members of all hosts that have that member's place there, those of the next host
//     first and of the own host last, and add what it receives to its own; then the sums to the members of the other
//     hosts that have its place, the next host first, and add what it receives to its own sum. Each part is cut into
//     slices as a tensor of its size (22.7.2), and these are two rounds of each.
StagePlan two_level_scatter_stages(std::uint32_t ranks, std::uint32_t own, std::uint32_t ranks_per_host,
                                   const std::vector<std::span<std::byte>>& parts,
                                   const std::vector<std::span<std::byte>>& sums, std::uint32_t element_bytes) {
  const Places at(ranks, own, ranks_per_host);
  const std::uint32_t slices = slices_of(parts[own].size());
  std::vector<SliceStages> plans;
  for (std::uint32_t slice = 0; slice < slices; ++slice) {
    SliceStages& out = plans.emplace_back(slice, element_bytes);
    const auto sum = [&](std::uint32_t i) { return out.cut_of(sums[(at.host + i) % at.hosts], slice, slices); };
    out.begin_round();
    for (std::uint32_t j = 1; j < ranks_per_host; ++j) {
      for (std::uint32_t i = 1; i <= at.hosts; ++i) {
        const auto given = out.cut_of(parts[at.same_host(i, j)], slice, slices);
        out.add(at.same_host(0, j), at.same_host(0, ranks_per_host - j), given, sum(i), true);
      }
    }
    out.end_round();
    out.begin_round();
    for (std::uint32_t i = 1; i < at.hosts; ++i) {
      out.add(at.same_place(i), at.same_place(at.hosts - i), sum(i), sum(0), true);
    }
    out.end_round();
  }
  return in_turns(plans);
}

}  // namespace mlt::collective
