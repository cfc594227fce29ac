// The public C++ API of mlt: one Engine per process and job, safe to call from any thread.
//
// A rank posts sends and receives of tensors and collectives, polls or waits for their completions, and may push-pull
// tensors through summation services or be one. Buffers stay the caller's and must stay valid and, for receives,
// untouched until the operation's completion was taken. Everything here throws mlt::Error, and nothing else, when it
// can't be done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace mlt {

enum class ErrorCode : std::uint8_t {
  kConfig,            // an option or argument is out of range
  kPortInUse,         // the address or port can't be bound
  kRendezvous,        // not every rank came up in time
  kPeerMismatch,      // a peer has another protocol version, job or world size
  kUnknownPeer,       // no such rank, or this rank itself
  kPeerFailed,        // the peer died, left, or was never there
  kBuffer,            // size, element type or loss bound don't fit the operation
  kSizeMismatch,      // the two sides named different sizes
  kTypeMismatch,      // the two sides named different element types
  kTimeout,           // an operation or a wait ran out of time
  kCancelled,         //
  kLimit,             // a queue or table is full; the text says which and what to do
  kUnknownOperation,  // waited for twice, or never posted
  kClosed,            // the engine was closed
  kSystem,            // the operating system refused something
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text, int peer = -1) : std::runtime_error(text), code_(code), peer_(peer) {}
  ErrorCode code() const { return code_; }
  int peer() const { return peer_; }  // the rank at fault; -1 if none

 private:
  ErrorCode code_;
  int peer_;
};

// Four-bit codes of the wire; see wire/element.h.
enum class Element : std::uint8_t {
  kUint8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kUint16,
  kUint32,
  kUint64,
  kBool
};

// Faults injected between the protocol and the network, to see what they do. Probabilities are per datagram, in [0, 1].
struct FaultOptions {
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;
  double corrupt = 0;
  std::int64_t delay_ns = 0;
  std::int64_t jitter_ns = 0;
  std::uint64_t seed = 1;
  bool control = true;  // control datagrams suffer too
  bool any() const { return drop > 0 || duplicate > 0 || reorder > 0 || corrupt > 0 || delay_ns > 0 || jitter_ns > 0; }
};

// One way to all peers. Every rank has the same number of them; path i of one rank talks to path i of another.
struct PathOptions {
  std::string host;                   // address to bind; empty: that of `interface`, or Options::host
  std::string interface;              // leave by this one whatever the routes say; empty: by the routes
  std::uint16_t udp_port = 0;         // 0: any
  std::uint32_t flow_label = 0;       // IPv6, 20 bits; 0: the system's choice
  std::vector<std::string> segments;  // SRv6 list in order of travel, IPv6 addresses; empty: none
  std::vector<std::pair<std::uint16_t, std::vector<std::string>>> segments_to;  // other lists, to these ranks
};

inline constexpr std::size_t kMinSecretBytes = 16;  // of a job's secret

struct Options {
  std::uint16_t rank = 0;
  std::uint16_t ranks = 1;  // workers and services together
  std::uint64_t job = 0;    // hash of the job's name; ranks of another job are refused
  // Known to all ranks of the job and to nobody else, 16 bytes or more (docs/security.md); every connection proves it.
  // Empty: loopback addresses only, unless `insecure`: then any process that reaches the port may join the job.
  std::string secret;
  bool insecure = false;
  std::string host = "127.0.0.1";          // address to bind, IPv4 or IPv6
  std::uint16_t udp_port = 0;              // 0: any; without `paths`
  std::vector<PathOptions> paths;          // 1 to 16; empty: one, by `host` and `udp_port`
  std::uint16_t control_port = 0;          // TCP; 0: any
  std::uint32_t segment_bytes = 0;         // payload of a packet, a multiple of 8; 0: from the interface's MTU
  double line_rate_bits_per_second = 0;    // 0: the interface's speed
  std::uint32_t receive_buffer_bytes = 0;  // asked of the kernel; 0: a default
  std::int64_t operation_timeout_ns = 300'000'000'000;
  std::int64_t peer_timeout_ns = 3'000'000'000;  // silence after which a peer counts as dead
  // The same while its host acknowledges what is sent to it, because its process is stopped; below peer_timeout_ns: as
  // that.
  std::int64_t suspended_timeout_ns = 30'000'000'000;
  // How long at most a thread that waits polls before it sleeps; it learns how long that pays, and never polls where
  // runnable threads outnumber the CPUs. 0: it sleeps at once.
  std::uint32_t spin_us = 200;
  // Limits, whose memory is touched as it is used. Operations: in progress, or done and not taken, to 131,072.
  std::uint32_t max_operations = 65'536;
  std::uint32_t max_tags = 262'144;       // (rank, tag) pairs that are remembered, of sends and of receives each
  std::uint32_t early_segments = 16'384;  // kept for receives that are not posted yet, shared by the other ranks
  std::uint32_t early_transfers = 2'048;  // that these may belong to
  // In flight to a peer, where the path needs more than the peer's receive buffer holds. 1 to 65,536.
  std::uint32_t max_window_mib = 512;
  std::uint32_t busy_poll_us = 0;  // how long the kernel polls the interface for it (SO_BUSY_POLL); 0: not
  // DSCP of each traffic class, class 0 (the most urgent) first; its size is the number of classes, 1 to 8. Every code
  // point is below 64 and belongs to one class. Empty: 3, 7, 11, 15, 19, 23, 27. The switches need the same map.
  std::vector<std::uint8_t> data_dscp;
  std::uint8_t control_dscp = 31;  // of answers, probes and the control connection
  // What carries datagrams: "udp" (the kernel's sockets), "vma" (they, under libvma), "xdp" (AF_XDP on the interface of
  // `host`, receive queue 0; "xdp:2": queue 2), or "auto": vma if the process runs under libvma, else udp, and
  // shared memory to ranks of this host and user (docs/datapaths.md says which options turn that off).
  std::string datapath = "auto";
  FaultOptions faults;
};

struct PeerAddress {
  std::uint16_t rank = 0;
  std::string host;
  std::uint16_t control_port = 0;
};

using OperationId = std::uint64_t;

// Class (bits 0-2, 0 = most urgent), important (0x08) and critical (0x10: never lost) of one segment.
using SegmentTag = std::uint8_t;
inline constexpr SegmentTag kImportant = 0x08;
inline constexpr SegmentTag kCritical = 0x10;

// Options of operations have `lent`: whatever keeps their buffers alive. The operation keeps it, and its completion
// gives it back to the caller that takes the completion.
struct SendOptions {
  std::uint16_t to = 0;
  std::uint64_t tag = 0;
  std::span<const std::byte> data;
  Element element = Element::kUint8;
  std::uint32_t layer = 0;  // of `layers`; 0 is the front. Decides class and order
  std::uint32_t layers = 1;
  std::vector<SegmentTag> tags;  // one per segment (Engine::segment_count), or empty: then all important
  bool by_magnitude = false;     // compute the tags from the values (needs an empty `tags`)
  std::int64_t timeout_ns = 0;   // 0: Options::operation_timeout_ns
  std::shared_ptr<void> lent = nullptr;
};

struct ReceiveOptions {
  std::uint16_t from = 0;
  std::uint64_t tag = 0;
  std::span<std::byte> data;
  Element element = Element::kUint8;
  // false: exactly as many bytes as `data` has are sent. true: up to as many; they fill the front, and the completion's
  // total_bytes, ranges and bound are of what was sent.
  bool up_to = false;
  double loss_bound = 0;         // [0, 1)
  bool keep_missing = false;     // false: missing ranges become zero
  bool eager = false;            // stop the moment 1 - loss_bound has arrived
  std::int64_t deadline_ns = 0;  // complete then with what arrived; with `up_to`, fail if nothing named its size yet
  std::int64_t timeout_ns = 0;
  std::shared_ptr<void> lent = nullptr;
};

enum class Status : std::uint8_t {
  kComplete,
  kWithinBound,
  kDeadline,
  kSizeMismatch,
  kTypeMismatch,
  kPeerFailed,
  kTimedOut,
  kCancelled
};

// What an operation is. kAllReduce to kBarrier are collectives of a group of ranks.
enum class Verb : std::uint8_t {
  kSend,
  kReceive,
  kAllReduce,
  kAllToAll,
  kGather,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kReduce,
  kScatter,
  kBarrier,
  kPushPull
};

struct Range {
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;
};

struct Completion {
  OperationId operation = 0;
  bool is_send = false;
  Verb verb = Verb::kReceive;
  Status status = Status::kComplete;
  std::uint16_t peer = 0;
  std::uint64_t tag = 0;  // the key of a push-pull
  std::uint64_t total_bytes = 0;
  std::uint64_t missing_bytes = 0;  // of a push-pull: of this worker's push
  std::uint64_t allowed_missing_bytes = 0;
  std::uint64_t repaired_segments = 0;  // of a push-pull or collective: both ways
  std::int64_t elapsed_ns = 0;
  std::vector<Range> missing;  // receive only; ascending, merged
  std::string error;           // empty unless the operation failed: rank, peer, tag and cause
  int failed_peer = -1;        // of a collective or push-pull that failed: the rank at fault, if one was
  std::shared_ptr<void> lent;  // the options'
  bool failed() const { return !error.empty(); }
};

struct PushPullOptions {
  std::uint64_t key = 0;  // names the tensor; below 2^40
  std::span<const float> input;
  std::span<float> output;  // as long as input; may be the same memory
  double loss_bound = 0;    // of what this worker pushes; the same on every worker
  bool average = true;      // by the number of workers whose segment arrived; false: the plain sum
  std::uint32_t layer = 0;
  std::uint32_t layers = 1;
  std::int64_t timeout_ns = 0;
  std::shared_ptr<void> lent = nullptr;
};

// What all collectives have. Every member of a group calls the same ones with the same ranks, in the same order;
// several may be under way. One that fails at a member fails at all, with those that any member had posted by then; the
// next works, unless a member died.
struct CollectiveOptions {
  std::vector<std::uint16_t> ranks;  // the group, in its order; empty: every rank of the job
  std::uint32_t stream = 0;          // two streams of the same ranks are two groups, each with an order of its own
  double loss_bound = 0;             // [0, 1), of each transfer that may lose; missing parts count as zero
  std::uint32_t layer = 0;           // as of a send
  std::uint32_t layers = 1;
  std::int64_t timeout_ns = 0;  // 0: Options::operation_timeout_ns
  // Ends the collective at every member, as cancelled by this rank, if this rank's floating-point input has a NaN or an
  // infinity; nothing of the input is sent then. May differ between members.
  bool check_finite = false;
  std::shared_ptr<void> lent = nullptr;
};

// How the members' tensors become one (collective/reduction.h). A mean divides by the number of ranks, or with a loss
// bound by the terms that arrived; in an all-reduce of more than two ranks that miss terms, one's own term takes their
// weights instead. Integers and bool have no mean. kAnd to kXor are bitwise, of integers and bool only.
enum class Reduction : std::uint8_t { kSum, kMean, kMin, kMax, kProduct, kAnd, kOr, kXor };
inline constexpr std::uint8_t kReductionCount = 8;

// How an all-reduce, broadcast or reduce carries the tensors (docs/collectives.md). kAutomatic: by the group's size,
// the tensor's and the loss bound. An all-reduce has all but kChain, and all but kRing lose nothing, whatever the
// bound. A broadcast or reduce has kDirect and kChain, which loses nothing either.
enum class Algorithm : std::uint8_t { kAutomatic, kDirect, kCentral, kRing, kHalving, kChain };
inline constexpr std::uint8_t kAlgorithmCount = 6;

// The reduction of all members' tensors, in place. Only a sum or mean of floating point may have a loss bound, and only
// the sums on their way may lose, up to the bound of all that a rank receives: all members end with the same bits.
// Completion::missing_bytes is what this rank's receives missed.
struct AllReduceOptions : CollectiveOptions {
  std::span<std::byte> data;  // as many elements on every rank
  // Instead of data: tensors that are carried as one, in this order. They are copied, unless there is only
  // one, so many small ones cost one collective, and change only if it succeeds. The ranks compare the sum of their
  // sizes, not each.
  std::vector<std::span<std::byte>> tensors;
  Element element = Element::kFloat32;
  Reduction reduction = Reduction::kMean;
  Algorithm algorithm = Algorithm::kAutomatic;  // the same on every rank
};

// `inputs` and `outputs`, below: instead of an input or output that has a part for each member, those parts, each with
// memory of its own. Nothing is copied. The own part of the output may be the own part of the input; else outputs
// overlap nothing.

// Part i of the input goes to member i, part i of the output comes from it; the own part is copied.
struct AllToAllOptions : CollectiveOptions {
  std::span<const std::byte> input;
  std::span<std::byte> output;
  std::vector<std::span<const std::byte>> inputs;
  std::vector<std::span<std::byte>> outputs;
  Element element = Element::kUint8;
  std::vector<std::uint64_t> send_bytes;     // of each part of the input; empty: equal parts
  std::vector<std::uint64_t> receive_bytes;  // of the output
};

// Every member's input, at the root, in the order of the group.
struct GatherOptions : CollectiveOptions {
  std::uint16_t root = 0;
  std::span<const std::byte> input;  // as long on every rank
  std::span<std::byte> output;       // at the root only: the inputs of all; the own place may be the input
  std::vector<std::span<std::byte>> outputs;
  Element element = Element::kUint8;
};

// Every member's input, at every member, in the order of the group.
struct AllGatherOptions : CollectiveOptions {
  std::span<const std::byte> input;  // as long on every rank
  std::span<std::byte> output;       // the inputs of all; the own place may be the input
  std::vector<std::span<std::byte>> outputs;
  Element element = Element::kUint8;
};

// Part i of the reduction of all inputs, at member i.
struct ReduceScatterOptions : CollectiveOptions {
  std::span<const std::byte> input;  // equal parts, one for each member
  std::vector<std::span<const std::byte>> inputs;
  std::span<std::byte> output;  // may be the own part of the input
  Element element = Element::kFloat32;
  Reduction reduction = Reduction::kMean;
};

// The root's tensor replaces that of every member. It loses nothing.
struct BroadcastOptions : CollectiveOptions {
  std::uint16_t root = 0;
  std::span<std::byte> data;
  std::vector<std::span<std::byte>> tensors;  // instead of data, as of an all-reduce; the root's are only read
  Element element = Element::kUint8;
  Algorithm algorithm = Algorithm::kAutomatic;  // the same on every rank
};

// The reduction of all inputs, at the root.
struct ReduceOptions : CollectiveOptions {
  std::uint16_t root = 0;
  std::span<const std::byte> input;
  std::span<std::byte> output;  // at the root only; may be the input
  Element element = Element::kFloat32;
  Reduction reduction = Reduction::kMean;
  Algorithm algorithm = Algorithm::kAutomatic;  // the same on every rank
};

// Part i of the root's input, at member i.
struct ScatterOptions : CollectiveOptions {
  std::uint16_t root = 0;
  std::span<const std::byte> input;  // at the root only: equal parts, one for each member
  std::vector<std::span<const std::byte>> inputs;
  std::span<std::byte> output;  // may be the root's own part of the input
  Element element = Element::kUint8;
};

// Completes at no member before every member has called it.
struct BarrierOptions : CollectiveOptions {};

struct CounterValue {
  std::string name;
  std::uint64_t value = 0;
};

// What is known of one path to one peer.
struct PathStatus {
  std::uint8_t path = 0;
  std::string local;                   // address and port that it leaves from
  std::uint64_t packets_sent = 0;      // to this peer
  std::uint64_t packets_reported = 0;  // arrived there, as it says
  double loss = 0;                     // estimate, [0, 1]
  std::int64_t rtt_ns = 0;             // smoothed; 0: not measured yet
  double share = 0;                    // of what is sent to this peer now, [0, 1]
  bool silent = false;                 // suspended: only probed for now
  std::uint64_t runs_sent = 0;         // to all peers
  std::uint64_t runs_failed = 0;       // rejected by the system, to all peers
};

// The version of PROTOCOL.md that this library speaks; ranks of another one are refused.
std::uint16_t protocol_version();

class Engine {
 public:
  // Binds the ports. Ranks are connected by connect().
  explicit Engine(const Options& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  std::uint16_t control_port() const;
  std::uint16_t udp_port() const;
  // Bytes of unread datagrams that the kernel keeps for us, and what it was asked for: more, if this user may not.
  std::uint32_t receive_buffer_bytes() const;
  std::uint32_t wanted_receive_buffer_bytes() const;

  // Starts the I/O thread and connects to every peer; returns when all are up, or throws what went wrong with which and
  // closes the engine. For once; timeout_ns < 0: waits without end.
  void connect(std::span<const PeerAddress> peers, std::int64_t timeout_ns);
  // The same without waiting: starts the I/O thread, unless it runs, and connects to these peers, which no call has
  // named before. The others may follow in later calls; until then they may come up by connecting to this rank. A peer
  // that is not up when timeout_ns has passed has failed. Host names, unlike numeric addresses, are looked up here.
  void start_connect(std::span<const PeerAddress> peers, std::int64_t timeout_ns);
  // Whether all peers that were named are up. Throws as connect() does if one of them failed, but the engine stays
  // open: operations with the others work. Never blocks.
  bool test_connected();

  // Segments of a tensor of `total_bytes` to `peer`, and the payload of a full one.
  std::uint32_t segment_count(std::uint16_t peer, std::uint64_t total_bytes) const;
  std::uint32_t segment_bytes(std::uint16_t peer) const;
  // What packets of each class carry, class 0 first, and what control carries: the options', or the defaults.
  std::vector<std::uint8_t> data_dscp() const;
  std::uint8_t control_dscp() const;
  // Class that layer `layer` (0: the front) of `layers` travels in; for priority functions that set classes themselves.
  std::uint8_t traffic_class(std::uint32_t layer, std::uint32_t layers) const;

  OperationId post_send(const SendOptions& options);
  OperationId post_recv(const ReceiveOptions& options);
  // Collectives; they complete like sends and receives.
  OperationId post_all_reduce(const AllReduceOptions& options);
  OperationId post_all_to_all(const AllToAllOptions& options);
  OperationId post_gather(const GatherOptions& options);
  OperationId post_all_gather(const AllGatherOptions& options);
  OperationId post_reduce_scatter(const ReduceScatterOptions& options);
  OperationId post_broadcast(const BroadcastOptions& options);
  OperationId post_reduce(const ReduceOptions& options);
  OperationId post_scatter(const ScatterOptions& options);
  OperationId post_barrier(const BarrierOptions& options);
  void cancel(OperationId operation);

  // Takes finished operations that nobody waits for and nobody watches, oldest first; never blocks.
  std::vector<Completion> poll(std::size_t max_completions);
  // The same into the caller's memory; returns how many. Allocates nothing. If there are none, blocks until there is
  // one, timeout_ns passed (< 0: without end) or the engine was closed.
  std::size_t poll(std::span<Completion> taken, std::int64_t timeout_ns = 0);
  // Takes the completion of an operation if it ended, and never blocks; nothing while it is in progress. Cheap enough
  // for a loop over many operations: one test in kTestsPerTurn runs a turn of the event loop.
  std::optional<Completion> test(OperationId operation);
  static constexpr std::uint32_t kTestsPerTurn = 32;
  // Blocks until the operation is done; nothing if timeout_ns (< 0: none) passed first. `now_and_then`, if there is
  // one, is called every 100 ms meanwhile, and may throw to end the wait.
  std::optional<Completion> wait(OperationId operation, std::int64_t timeout_ns,
                                 const std::function<void()>& now_and_then = nullptr);
  // From now on the operation's completion is next_watched()'s. False if it was taken already.
  bool watch(OperationId operation);
  // Blocks until a watched operation is done; nothing if the time passed, or the engine was closed and all were taken.
  std::optional<Completion> next_watched(std::int64_t timeout_ns);
  // Whether it ended; nothing if its completion was taken, or there never was one.
  std::optional<bool> is_done(OperationId operation) const;
  // Operations that were lent something and are not taken.
  std::size_t lending() const;
  // After close(): what operations were lent whose completion nobody took.
  std::vector<std::shared_ptr<void>> take_lent();

  // Push-pull of float32 tensors: cut into partitions of at most 4 MB over the services, summed there, averaged.
  void use_services(std::span<const std::uint16_t> service_ranks, std::uint16_t workers);
  OperationId push_pull(const PushPullOptions& options);

  // Makes this rank a summation service for the workers 0 .. workers-1.
  void serve(std::uint16_t workers);
  // Blocks until every worker said goodbye or failed; false if timeout_ns passed first.
  bool wait_workers_gone(std::int64_t timeout_ns);

  std::vector<CounterValue> counters() const;
  // The rate controller's current sending rate towards `peer`.
  double rate_bits_per_second(std::uint16_t peer) const;
  // Its paths, path 0 first; the figures are zero before connect().
  std::vector<PathStatus> paths(std::uint16_t peer) const;
  // Ranks that a collective in progress waits for, as far as this rank knows; empty for other operations.
  std::vector<std::uint16_t> awaited_ranks(OperationId operation) const;
  bool is_peer_up(std::uint16_t peer) const;
  bool has_peer_left(std::uint16_t peer) const;  // it was up and said goodbye
  // Why a peer failed (it died, fell silent, ...); empty while it is up, connecting, or after it said goodbye.
  std::string peer_failure(std::uint16_t peer) const;

  // Says goodbye, fails what is under way with kClosed semantics, joins the I/O thread. Idempotent. `failure`, unless
  // it is empty: why this rank ends before its work is done; its peers report that it failed, and this reason.
  void close(const std::string& failure = {});

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mlt
