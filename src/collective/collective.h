// One collective of a group of ranks, as streams of transfers: what travels between this rank and each peer, in which
// order, and what must have arrived before. ring_allreduce, direct_allreduce, all_to_all and gather are the four;
// collective/collectives.h runs them.
//
// Absent on purpose: posting, time and failure, which are the runner's; agreement on a group, which is the caller's.
// Memory is the caller's from the completion on, and not before. Sizes in bytes unless they say elements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collective/verbs.h"

namespace mlt::collective {

enum class CollectiveKind : std::uint8_t { kAllReduce = 1, kAllToAll = 2, kGather = 3 };

const char* collective_name(CollectiveKind kind);

struct CollectiveRequest {
  OperationId operation = 0;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<std::uint16_t> ranks;  // the group, in its order; every member names the same
  std::span<const std::byte> input;  // unused by the all-reduce
  std::span<std::byte> output;       // of the all-reduce: also its input. Of a gather: the root's alone
  wire::ElementType element = wire::ElementType::kFloat32;
  std::vector<std::uint64_t> send_bytes;     // all-to-all: of `input`, for each member in order
  std::vector<std::uint64_t> receive_bytes;  // all-to-all: of `output`, from each member in order
  std::uint16_t root = 0;                    // gather: the rank that receives
  double loss_bound = 0;                     // of each transfer that may lose
  bool average = true;                       // all-reduce
  std::uint32_t order = 0;
  std::uint8_t traffic_class = 0;
  base::DurationNs timeout_ns = 0;  // from the start; 0: the machine's default
};

struct CollectiveDone {
  OperationId operation = 0;
  core::CompletionStatus status = core::CompletionStatus::kComplete;
  std::uint64_t total_bytes = 0;
  std::uint64_t missing_bytes = 0;      // of what this rank received
  std::uint64_t repaired_segments = 0;  // both ways
  base::DurationNs elapsed_ns = 0;
  int failed_peer = -1;
  std::string error;  // empty unless it failed
};

// A request's place in its group.
struct Membership {
  std::vector<std::uint16_t> ranks;
  std::uint32_t own = 0;  // this rank's index in `ranks`
  std::uint32_t size() const { return static_cast<std::uint32_t>(ranks.size()); }
};

// What both ends of a stream must agree on; its first transfer carries it.
struct Shape {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  bool average = false;
  std::uint16_t root = 0;
  std::uint32_t sequence = 0;
  std::uint64_t bytes = 0;  // of the all-reduce: the tensor's; else: what the stream carries
  double loss_bound = 0;
  wire::ElementType element = wire::ElementType::kFloat32;
};
inline constexpr std::size_t kShapeBytes = 32;
std::array<std::byte, kShapeBytes> encode(const Shape& shape);
// The fields of a shape, for people; of bytes that may have come from anywhere.
std::string describe_shape(std::span<const std::byte, kShapeBytes> bytes);

// Steps that may be posted beyond the first that is not done; Stream::done has a bit for each. So many pieces of a ring
// are 32 MiB, more than a socket's buffer lets be under way.
inline constexpr std::uint32_t kMaxWindow = 32;

// What goes one way between this rank and one peer: steps, posted in order, that end in any order. Step 0 is the shape.
struct Stream {
  std::uint16_t peer = 0;
  bool is_send = false;
  std::uint64_t bytes = 0;          // what Shape::bytes says of it
  std::uint32_t steps = 0;          // the shape's included
  std::uint32_t window = 1;         // at most kMaxWindow
  std::uint32_t segment_bytes = 0;  // payload of a full packet to or from the peer; 0: it is gone
  std::uint32_t posted = 0;         // steps
  std::uint32_t settled = 0;        // all steps below are done
  std::uint64_t done = 0;           // bit i: step settled + i is done
  std::array<std::byte, kShapeBytes> shape{};
  std::vector<std::vector<core::SegmentTag>> tags;  // of lossy sends under way, by step modulo kMaxWindow

  bool is_done(std::uint32_t step) const {
    if (step < settled) return true;
    return step - settled < 64 && ((done >> (step - settled)) & 1U) != 0;
  }
  bool is_over() const { return settled == steps; }
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

  // Steps from 1 on, the runner's own being 0. A send may be posted once this holds; receives always may.
  virtual bool is_ready(const Stream& stream, std::uint32_t step) const;
  virtual void fill(const Stream& stream, std::uint32_t step, core::SendRequest& request) = 0;
  virtual void fill(const Stream& stream, std::uint32_t step, core::ReceiveRequest& request) = 0;
  // The receive's memory is whole, but for what `completion` says is missing.
  virtual void on_received(const Stream& stream, std::uint32_t step, const core::Completion& completion);
  // Whether this send's receive may lose: then segments are tagged by what they weigh.
  virtual bool is_lossy(std::uint32_t step) const = 0;
  // The stream whose sends a receive of `stream` may let go; `stream` itself if none.
  virtual std::size_t unlocks(std::size_t stream) const { return stream; }
  // The memory of a stream's first transfer, which begins with the shape; the runner writes that of a send.
  virtual std::span<std::byte> opening(Stream& stream) { return stream.shape; }
  // What needs no network, before anything is posted.
  virtual void begin() {}
  // The same once every stream is over, nothing having failed; the memory is the caller's again right after.
  virtual void finish() {}

  std::vector<Stream> streams;
};

// A stream of `pieces` transfers after its shape.
Stream make_stream(std::uint16_t peer, bool is_send, std::uint64_t bytes, std::uint32_t pieces, std::uint32_t window);

// The request was checked by check_request().
std::unique_ptr<Collective> make_collective(const CollectiveRequest& request, const Membership& group);
// Why the request can't be run by `rank`; empty if it can.
std::string check_request(const CollectiveRequest& request, std::uint16_t rank);

}  // namespace mlt::collective
