// One collective of a group of ranks, as streams of transfers: the transfers between this rank and each peer, their
// order and their dependencies. They are direct_allreduce, central_allreduce, ring_allreduce, staged, chain
// and exchange; collective/collectives.h runs them.
//
// Absent on purpose: posting, time and failure (the runner's), and agreement on a group (the caller's). Memory is the
// caller's again only from the completion on. Sizes are in bytes unless they say elements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collective/algorithm.h"
#include "collective/checksums.h"
#include "collective/reduction.h"
#include "collective/verbs.h"

namespace mlt::collective {

enum class CollectiveKind : std::uint8_t {
  kAllReduce = 1,
  kAllToAll = 2,
  kGather = 3,
  kAllGather = 4,
  kReduceScatter = 5,
  kBroadcast = 6,
  kReduce = 7,
  kScatter = 8,
  kBarrier = 9,
};
constexpr bool has_root(CollectiveKind kind) {
  return kind == CollectiveKind::kGather || kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kScatter;
}
// Whether a call may name the algorithm.
constexpr bool has_algorithm(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter;
}
constexpr bool has_reduction(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kReduce;
}

const char* collective_name(CollectiveKind kind);

struct CollectiveRequest {
  OperationId operation = 0;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<std::uint16_t> ranks;  // the group, in its order; equal at every member
  std::uint32_t stream = 0;          // of the group; equal at every member
  std::span<const std::byte> input;  // at the ranks that have one; unused by all-reduce and broadcast
  std::span<std::byte> output;       // likewise; all-reduce and broadcast: also the input
  // Instead of an input or output that has a part for each member: those parts, each with memory of its own.
  std::vector<std::span<const std::byte>> input_parts;
  std::vector<std::span<std::byte>> output_parts;
  wire::ElementType element = wire::ElementType::kFloat32;
  std::vector<std::uint64_t> send_bytes;     // all-to-all: of `input`, for each member in order
  std::vector<std::uint64_t> receive_bytes;  // all-to-all: of `output`, from each member in order
  std::uint16_t root = 0;                    // of gather, broadcast, reduce, scatter: a rank
  double loss_bound = 0;                     // of what a member receives, or of each transfer of it
  bool lossy_results = false;                // of an all-reduce: results may be lost too, and members end with others
  Reduction reduction = Reduction::kMean;    // of all-reduce, reduce-scatter, reduce
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kAutomatic;  // where has_algorithm()
  std::uint16_t ranks_per_host = 0;  // where depends_on_hosts(), as in GroupSize; equal at every member
  std::uint32_t order = 0;
  std::uint8_t traffic_class = 0;
  base::DurationNs timeout_ns = 0;  // from the start; 0: the default
  std::string fault;                // why this member's call must fail at every member; empty: nothing
  bool ends_group = false;          // with `fault`: every later call of the group must fail too

  std::size_t input_bytes() const;   // of the input, or of its parts
  std::size_t output_bytes() const;  // likewise
};

struct CollectiveDone {
  OperationId operation = 0;
  core::CompletionStatus status = core::CompletionStatus::kComplete;
  std::uint64_t total_bytes = 0;
  std::uint64_t missing_bytes = 0;      // missing from this rank's receives
  std::uint64_t repaired_segments = 0;  // sent and received
  base::DurationNs elapsed_ns = 0;
  int failed_peer = -1;
  std::string error;  // empty unless it failed
};

// Position of a rank in the request's group.
struct Membership {
  std::vector<std::uint16_t> ranks;
  std::uint32_t own = 0;  // this rank's index in `ranks`
  std::uint32_t size() const { return static_cast<std::uint32_t>(ranks.size()); }
};

// Parameters that both ends of a stream must agree on; its first transfer carries them.
struct Shape {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Reduction reduction = Reduction::kSum;  // also where there is none
  std::uint16_t root = 0;
  std::uint32_t sequence = 0;
  std::uint64_t bytes = 0;  // all-reduce: of the tensor; else: of the stream
  double loss_bound = 0;
  wire::ElementType element = wire::ElementType::kFloat32;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kAutomatic;  // where has_algorithm(): the one that carries it
  std::uint16_t ranks_per_host = 0;                                 // of two levels; else 0
  std::uint8_t rate = 0;                                            // announced (rate_exchange.h); not compared
  bool lossy_results = false;                                       // of an all-reduce
  bool checksums = false;                                           // behind each stream (checksums.h)
  std::uint16_t cut = 0;                                            // of a ring that is cut by rate: cut_id(); else 0
};
inline constexpr std::size_t kShapeBytes = 32;
std::array<std::byte, kShapeBytes> encode(const Shape& shape);
// Whether both are the same call. Members announce rates of their own.
bool is_same_call(std::span<const std::byte, kShapeBytes> a, std::span<const std::byte, kShapeBytes> b);
std::uint8_t announced_rate(std::span<const std::byte, kShapeBytes> shape);
// The shortest text that reads back as `value`: "0.1".
std::string in_short(double value);
// Text form of a shape's fields; the bytes may come from an untrusted peer.
std::string describe_shape(std::span<const std::byte, kShapeBytes> bytes);

// Max steps posted beyond the first that is not done; Stream::done has one bit for each. This many pieces of a ring are
// 32 MiB, more than a socket's buffer allows in flight.
inline constexpr std::uint32_t kMaxWindow = 32;

// Transfers in one direction between this rank and one peer: steps, posted in order, that end in any order. Step 0
// carries the shape.
struct Stream {
  std::uint16_t peer = 0;
  bool is_send = false;
  std::uint64_t bytes = 0;          // as in Shape::bytes
  std::uint32_t steps = 0;          // including the shape's
  std::uint32_t window = 1;         // max kMaxWindow
  std::uint32_t segment_bytes = 0;  // payload of a full packet to or from the peer; 0: the peer is down
  std::uint32_t posted = 0;         // steps
  std::uint32_t settled = 0;        // all steps below are done
  std::uint64_t done = 0;           // bit i: step settled + i is done
  std::array<std::byte, kShapeBytes> shape{};
  std::vector<std::vector<core::SegmentPriority>> priorities;  // of lossy sends in progress, by step modulo kMaxWindow
  std::unique_ptr<StreamChecksums> checksums;                  // sent behind the steps; null: none are

  bool is_done(std::uint32_t step) const {
    if (step < settled) return true;
    return step - settled < 64 && ((done >> (step - settled)) & 1U) != 0;
  }
  // With that of the checksums.
  std::uint32_t all_steps() const { return steps + (checksums ? 1U : 0U); }
  bool is_over() const { return settled == all_steps(); }
  void mark_done(std::uint32_t step) {
    done |= std::uint64_t{1} << (step - settled);
    while ((done & 1U) != 0) {
      done >>= 1;
      ++settled;
    }
  }
};

class Collective {
 public:
  Collective() = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;
  virtual ~Collective() = default;

  // Steps from 1 on; step 0 is the runner's. A send may be posted once this returns true.
  virtual bool is_ready(const Stream& stream, std::uint32_t step) const;
  // Of a send with a feed (checksums.h); none before all of it was fed.
  virtual std::optional<std::uint64_t> fed_checksum(std::uint32_t) const { return std::nullopt; }
  // Whether a receive may be posted.
  virtual bool may_receive(const Stream& stream, std::uint32_t step) const;
  virtual void fill(const Stream& stream, std::uint32_t step, core::SendRequest& request) = 0;
  virtual void fill(const Stream& stream, std::uint32_t step, core::ReceiveRequest& request) = 0;
  // The receive is complete, except for the data that `completion` reports missing.
  virtual void on_received(const Stream& stream, std::uint32_t step, const core::Completion& completion);
  // Whether this send's receive may lose data: then segments get priorities by magnitude.
  virtual bool is_lossy(std::uint32_t step) const = 0;
  // The stream whose transfers the end of one of `stream` may unblock; `stream` itself if none.
  virtual std::size_t unlocks(std::size_t stream) const { return stream; }
  // Whether the end of the last transfer of `stream` may have unblocked those of every stream.
  virtual bool unlocks_all(std::size_t) const { return false; }
  // Memory of a stream's first transfer, which starts with the shape. The runner writes the shape of a send.
  virtual std::span<std::byte> opening(Stream& stream) { return stream.shape; }
  // Local work before any transfer is posted.
  virtual void begin() {}
  // Local work after every stream completed without failure; the memory is the caller's again right after.
  virtual void finish() {}

  std::vector<Stream> streams;
};

// Share of a piece that may be missing, or the loss bound if that is more: of receives that share the budget of their
// collective, none is lost nearly whole while the others use nothing.
inline constexpr double kMaxPieceLoss = 0.5;

// A stream of `pieces` transfers after its shape.
Stream make_stream(std::uint16_t peer, bool is_send, std::uint64_t bytes, std::uint32_t pieces, std::uint32_t window);

// Whether what carries it depends on `ranks_per_host`, which takes a look at every rank.
bool depends_on_hosts(const CollectiveRequest& request);
// What carries a collective that has algorithms; kAutomatic for all others.
CollectiveAlgorithm algorithm_of(const CollectiveRequest& request);
// The request must have passed check_request(). `shares`: of the chunks of a ring; empty: all are equal.
std::unique_ptr<Collective> make_collective(const CollectiveRequest& request, const Membership& group,
                                            std::span<const std::uint16_t> shares = {});
// The ranks with which `rank` exchanges something in this collective.
std::vector<std::uint16_t> partners(const CollectiveRequest& request, std::uint16_t rank);
// Why `rank` cannot run the request; empty if it can.
std::string check_request(const CollectiveRequest& request, std::uint16_t rank);

}  // namespace mlt::collective
