// Small operations, many in flight, 100,000 over time through one pair of engines: what they hold does not grow.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "mlt.h"
#include "support/allocation_counter.h"
#include "unit/engine/engine_job.h"

namespace {

using namespace mlt;
using engine_test::Job;

constexpr std::size_t kTransfers = 16, kSums = 8, kElements = 8;
// The least growth of several windows counts: a table that doubles once falls into one of them.
constexpr std::size_t kWindows = 3, kWindowOperations = 34'000;
// Less than a byte for each operation.
constexpr std::int64_t kMaxGrowthBytes = 32'768;

// Rounds of operations of two ranks, all of a round in flight together.
class SmallOperations {
 public:
  // `tags`: different ones that transfers use, again and again.
  SmallOperations(Job& job, std::uint64_t tags) : job_(job), tags_(tags) {
    for (auto& bytes : received_) bytes.resize(sent_.size());
    for (auto& of_rank : sums_) of_rank.assign(kSums, std::vector<float>(kElements));
  }

  void run(std::size_t operations) {
    for (const std::size_t until = done_ + operations; done_ < until;) round();
  }
  bool is_right() const { return is_right_; }

 private:
  void round() {
    std::vector<std::pair<std::size_t, OperationId>> posted;
    for (auto& received : received_) {
      const std::uint64_t tag = next_tag_++ % tags_;
      const std::size_t sender = tag % 2;
      ReceiveOptions receive;
      receive.from = static_cast<std::uint16_t>(sender);
      receive.tag = tag;
      receive.data = received;
      posted.emplace_back(1 - sender, job_[1 - sender].post_recv(receive));
      SendOptions send;
      send.to = static_cast<std::uint16_t>(1 - sender);
      send.tag = tag;
      send.data = sent_;
      posted.emplace_back(sender, job_[sender].post_send(send));
    }
    for (std::size_t rank = 0; rank < 2; ++rank) {
      for (std::vector<float>& tensor : sums_[rank]) {
        std::ranges::fill(tensor, static_cast<float>(rank + 1));
        AllReduceOptions sum;
        sum.data = std::as_writable_bytes(std::span(tensor));
        sum.reduction = Reduction::kSum;
        posted.emplace_back(rank, job_[rank].post_all_reduce(sum));
      }
      AllGatherOptions gather;
      gather.input = sent_;
      gather.output = wholes_[rank];
      posted.emplace_back(rank, job_[rank].post_all_gather(gather));
      posted.emplace_back(rank, job_[rank].post_barrier({}));
    }
    for (const auto& [rank, operation] : posted) is_right_ = is_right_ && job_.finish(rank, operation).error.empty();
    for (const auto& of_rank : sums_) {
      for (const std::vector<float>& tensor : of_rank) is_right_ = is_right_ && tensor.back() == 3.0F;
    }
    for (const auto& received : received_) is_right_ = is_right_ && std::ranges::equal(received, sent_);
    done_ += posted.size();
  }

  Job& job_;
  std::uint64_t tags_;
  std::uint64_t next_tag_ = 0;
  std::size_t done_ = 0;
  bool is_right_ = true;
  std::vector<std::byte> sent_ = std::vector<std::byte>(kElements * sizeof(float), std::byte{7});
  std::array<std::vector<std::byte>, kTransfers> received_;
  std::array<std::vector<std::vector<float>>, 2> sums_;
  std::array<std::array<std::byte, 2 * kElements * sizeof(float)>, 2> wholes_{};
};

}  // namespace

TEST_CASE("engine__a_hundred_thousand_small_operations_leave_nothing_behind" * doctest::test_suite("long")) {
  for (const bool checksums : {false, true}) {
    for (const std::uint64_t tags : {std::uint64_t{64}, ~std::uint64_t{0} >> 1}) {
      CAPTURE(checksums);
      CAPTURE(tags);
      Options options;
      options.checksums = checksums;
      options.operation_timeout_ns = 60 * engine_test::kSecond;
      Job job(2, options);
      SmallOperations operations(job, tags);
      // Tables that have a limit, as that of tags that were used, are full by then.
      operations.run(tags == 64 ? 20'000 : 150'000);
      std::int64_t least_growth = std::numeric_limits<std::int64_t>::max();
      for (std::size_t window = 0; window < kWindows; ++window) {
        const auto before = static_cast<std::int64_t>(test::allocated_bytes());
        operations.run(kWindowOperations);
        least_growth = std::min(least_growth, static_cast<std::int64_t>(test::allocated_bytes()) - before);
      }
      CHECK(operations.is_right());
      CHECK(least_growth < kMaxGrowthBytes);
      for (const std::size_t rank : {0U, 1U}) CHECK(job.count(rank, "operations_failed") == 0);
    }
  }
}
