// Checksums of what collectives carry: right where nothing is damaged, whatever is lost, and any damage is found and
// named.
#include "collective/checksums.h"

#include "fake_bus.h"

using namespace mlt::test;

namespace {

// A call of each kind and algorithm, with its memory; every rank's output starts as 9.
class ChecksumCall {
 public:
  ChecksumCall(CollectiveKind kind, CollectiveAlgorithm algorithm, std::uint16_t ranks, std::size_t part,
               double loss_bound)
      : kind_(kind), algorithm_(algorithm), ranks_(ranks), part_(part), loss_bound_(loss_bound) {
    inputs_.assign(ranks, std::vector<float>(part * ranks, 1.0F));
    outputs_.assign(ranks, std::vector<float>(part * ranks, 9.0F));
  }

  CollectiveRequest request(std::uint16_t rank) {
    CollectiveRequest made;
    made.operation = 1;
    made.kind = kind_;
    made.algorithm = algorithm_;
    made.ranks_per_host = 2;
    made.reduction = Reduction::kSum;
    const bool may_lose = kind_ != CollectiveKind::kBroadcast && kind_ != CollectiveKind::kBarrier;
    made.loss_bound = may_lose ? loss_bound_ : 0;
    made.lossy_results = loss_bound_ > 0 && kind_ == CollectiveKind::kAllReduce;
    const auto in = std::as_bytes(std::span(inputs_[rank])), one = in.first(part_ * sizeof(float));
    const auto out = std::as_writable_bytes(std::span(outputs_[rank])), small = out.first(part_ * sizeof(float));
    const bool is_root = rank == 0;
    switch (kind_) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kBroadcast:
        made.output = out;
        break;
      case CollectiveKind::kAllToAll:
        made.input = in;
        made.output = out;
        made.send_bytes.assign(ranks_, one.size());
        made.receive_bytes = made.send_bytes;
        break;
      case CollectiveKind::kGather:
      case CollectiveKind::kAllGather:
        made.input = one;
        if (is_root || kind_ == CollectiveKind::kAllGather) made.output = out;
        break;
      case CollectiveKind::kReduceScatter:
      case CollectiveKind::kScatter:
        made.output = small;
        if (is_root || kind_ == CollectiveKind::kReduceScatter) made.input = in;
        break;
      case CollectiveKind::kReduce:
        made.input = in;
        if (is_root) made.output = out;
        break;
      case CollectiveKind::kBarrier:
        break;
    }
    return made;
  }

 private:
  CollectiveKind kind_;
  CollectiveAlgorithm algorithm_;
  std::uint16_t ranks_;
  std::size_t part_;
  double loss_bound_;
  std::vector<std::vector<float>> inputs_, outputs_;
};

struct SummedKind {
  CollectiveKind kind;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kAutomatic;
};
const std::vector<SummedKind> kSummedKinds = {
    {CollectiveKind::kAllReduce, CollectiveAlgorithm::kDirect},
    {CollectiveKind::kAllReduce, CollectiveAlgorithm::kCentral},
    {CollectiveKind::kAllReduce, CollectiveAlgorithm::kRing},
    {CollectiveKind::kAllReduce, CollectiveAlgorithm::kHalving},
    {CollectiveKind::kAllReduce, CollectiveAlgorithm::kTwoLevel},
    {CollectiveKind::kBroadcast, CollectiveAlgorithm::kDirect},
    {CollectiveKind::kBroadcast, CollectiveAlgorithm::kChain},
    {CollectiveKind::kReduce, CollectiveAlgorithm::kDirect},
    {CollectiveKind::kReduce, CollectiveAlgorithm::kChain},
    {CollectiveKind::kAllToAll},
    {CollectiveKind::kGather},
    {CollectiveKind::kAllGather},
    {CollectiveKind::kReduceScatter},
    {CollectiveKind::kScatter},
    {CollectiveKind::kBarrier},
};

ChecksumCounts counts_of(FakeBus& bus, std::uint16_t ranks) {
  ChecksumCounts all;
  for (std::uint16_t rank = 0; rank < ranks; ++rank) {
    const ChecksumCounts& counts = bus.machine(rank).checksum_counts();
    all.compared += counts.compared;
    all.incomplete += counts.incomplete;
    all.different += counts.different;
  }
  return all;
}

}  // namespace

TEST_CASE("transfer_checksum__depends_on_every_byte_and_on_where_it_is") {
  std::vector<std::byte> data(1'000);
  mlt::base::Prng prng(1);
  for (std::byte& byte : data) byte = static_cast<std::byte>(prng.below(256));
  const std::uint64_t whole = transfer_checksum(data, 64);
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] ^= std::byte{1};
    REQUIRE(transfer_checksum(data, 64) != whole);
    data[i] ^= std::byte{1};
  }
  std::swap_ranges(data.begin(), data.begin() + 64, data.begin() + 64);
  CHECK(transfer_checksum(data, 64) != whole);
  std::swap_ranges(data.begin(), data.begin() + 64, data.begin() + 64);
  CHECK(transfer_checksum(data, 64) == whole);
  CHECK(transfer_checksum({}, 64) == 0);
}

TEST_CASE("checksums__of_every_collective_are_compared_and_right_whatever_is_lost") {
  for (const SummedKind& one : kSummedKinds) {
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      CAPTURE(std::string(collective_name(one.kind)));
      CAPTURE(std::string(algorithm_name(one.algorithm)));
      CAPTURE(seed);
      constexpr std::uint16_t kRanks = 4;
      const double bound = seed % 2 == 0 ? 0.3 : 0;
      FakeBus bus({.ranks = kRanks,
                   .seed = seed,
                   .lossy = bound > 0,
                   .max_posted = seed % 3 == 0 ? 4U : 0U,
                   .checksums = true});
      ChecksumCall call(one.kind, one.algorithm, kRanks, seed % 4 == 0 ? 20'000 : 1'000, bound);
      for (std::uint16_t rank = 0; rank < kRanks; ++rank) bus.start(rank, call.request(rank));
      bus.run();
      for (std::uint16_t rank = 0; rank < kRanks; ++rank) {
        REQUIRE(bus.done(rank).size() == 1);
        CHECK(bus.done(rank)[0].error == "");
      }
      const ChecksumCounts counts = counts_of(bus, kRanks);
      CHECK(counts.different == 0);
      CHECK((counts.compared > 0) == (one.kind != CollectiveKind::kBarrier));
      CHECK((counts.incomplete > 0) == (bus.lost_elements() > 0));
    }
  }
}

TEST_CASE("checksums__a_changed_bit_fails_the_call_and_names_both_ranks") {
  for (const SummedKind& one : kSummedKinds) {
    if (one.kind == CollectiveKind::kBarrier) continue;
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      CAPTURE(std::string(collective_name(one.kind)));
      CAPTURE(std::string(algorithm_name(one.algorithm)));
      CAPTURE(seed);
      constexpr std::uint16_t kRanks = 4;
      FakeBus bus({.ranks = kRanks, .seed = seed, .checksums = true});
      mlt::base::Prng prng(seed);
      int damaged_from = -1, damaged_to = -1;
      bus.is_damaged = [&](const FakeBus::Segment& segment) {
        // Not in the shape, which is compared before, nor in the checksums.
        const bool is_data = segment.send.data.size() > 100 && segment.offset > 0;
        if (damaged_from >= 0 || !is_data || !prng.chance(0.01)) return false;
        damaged_from = segment.from;
        damaged_to = segment.to;
        return true;
      };
      ChecksumCall call(one.kind, one.algorithm, kRanks, 5'000, 0);
      for (std::uint16_t rank = 0; rank < kRanks; ++rank) bus.start(rank, call.request(rank));
      bus.run();
      REQUIRE(damaged_from >= 0);
      CHECK(counts_of(bus, kRanks).different >= 1);
      const CollectiveDone& found = bus.done(static_cast<std::uint16_t>(damaged_to))[0];
      CAPTURE(found.error);
      CHECK(found.status == mlt::core::CompletionStatus::kCancelled);
      CHECK(found.failed_peer == damaged_from);
      CHECK(found.error.find("data of rank " + std::to_string(damaged_from) + " arrived changed at rank " +
                             std::to_string(damaged_to)) != std::string::npos);
      // Those that had completed it have a call that fails of the same cause next; then the group works.
      bus.is_damaged = [](const FakeBus::Segment&) { return false; };
      for (int turn = 0; turn < 2; ++turn) {
        for (std::uint16_t rank = 0; rank < kRanks; ++rank) bus.start(rank, call.request(rank));
        bus.run();
        for (std::uint16_t rank = 0; rank < kRanks; ++rank)
          REQUIRE(bus.done(rank).size() == 2U + static_cast<unsigned>(turn));
      }
      for (std::uint16_t rank = 0; rank < kRanks; ++rank) {
        REQUIRE(bus.done(rank).size() == 3);
        CHECK((bus.done(rank)[0].error != "" || bus.done(rank)[1].error.find("arrived changed") != std::string::npos));
        CHECK(bus.done(rank)[2].error == "");
      }
    }
  }
}

TEST_CASE("checksums__of_some_members_only_are_named_as_calls_that_differ") {
  FakeBus bus({.ranks = 3, .seed = 2, .checksums = true});
  bus.machine(1).set_checksums(false);
  auto tensors = random_tensors(3, 30'000, 1);
  all_reduce(bus, tensors, true);
  for (std::uint16_t rank = 0; rank < 3; ++rank) {
    REQUIRE(bus.done(rank).size() == 1);
    CAPTURE(bus.done(rank)[0].error);
    CHECK(bus.done(rank)[0].status == mlt::core::CompletionStatus::kSizeMismatch);
    CHECK(bus.done(rank)[0].error.find(", with checksums") != std::string::npos);
    CHECK(bus.done(rank)[0].error.find("rank 1 called all-reduce number 1 of 120000 bytes") != std::string::npos);
  }
}
