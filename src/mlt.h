// The public C++ API of mlt: one Engine per process and job, safe to call from any thread.
//
// A rank posts sends and receives of tensors and collectives, polls or waits for their completions, and may push-pull
// tensors through summation services or be one. Buffers stay the caller's; they must stay valid, and the
// caller must not change them, until the operation's completion was taken. All functions throw mlt::Error and nothing
// else.
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
  kPortInUse,         // the address or port cannot be bound
  kRendezvous,        // not every rank connected in time
  kPeerMismatch,      // a peer has another protocol version, job or world size
  kUnknownPeer,       // no such rank, or this rank itself
  kPeerFailed,        // the peer died, left, or never connected
  kBuffer,            // size, element type or loss bound does not match the operation
  kSizeMismatch,      // the two ranks gave different sizes
  kTypeMismatch,      // the two ranks gave different element types
  kTimeout,           // the time limit of an operation or wait passed
  kCancelled,         // by cancel()
  kLimit,             // a queue or table is full; the text names it and the remedy
  kUnknownOperation,  // its completion was taken already, or it was never posted
  kClosed,            // the engine was closed
  kSystem,            // a system call failed
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

// Faults injected between the protocol and the network, for tests. Probabilities are per datagram, in [0, 1].
struct FaultOptions {
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;
  double corrupt = 0;
  std::int64_t delay_ns = 0;
  std::int64_t jitter_ns = 0;
  std::uint64_t seed = 1;
  bool control = true;  // inject faults into probes and replies too
  bool any() const { return drop > 0 || duplicate > 0 || reorder > 0 || corrupt > 0 || delay_ns > 0 || jitter_ns > 0; }
};

// One path to all peers. All ranks have the same number of paths; path i of one rank connects to path i of another.
struct PathOptions {
  std::string host;                   // address to bind; empty: that of `interface`, or Options::host
  std::string interface;              // send by this interface; empty: as the routing table says
  std::uint16_t udp_port = 0;         // 0: any
  std::uint32_t flow_label = 0;       // IPv6, 20 bits; 0: chosen by the system
  std::vector<std::string> segments;  // SRv6 list in order of travel, IPv6 addresses; empty: none
  std::vector<std::pair<std::uint16_t, std::vector<std::string>>> segments_to;  // per rank: another list
};

inline constexpr std::size_t kMinSecretBytes = 16;  // of a job's secret

struct Options {
  std::uint16_t rank = 0;
  std::uint16_t ranks = 1;  // workers and services together
  std::uint64_t job = 0;    // hash of the job's name; ranks of another job are rejected
  // Known only to the ranks of the job, 16 bytes or more (docs/security.md); both ends of every connection prove it.
  // Empty: only loopback addresses, unless `insecure`: then any process that reaches the port may join the job.
  std::string secret;
  bool insecure = false;
  std::string host = "127.0.0.1";          // address to bind, IPv4 or IPv6
  std::uint16_t udp_port = 0;              // 0: any; without `paths`
  std::vector<PathOptions> paths;          // 1 to 16; empty: one, by `host` and `udp_port`
  std::uint16_t control_port = 0;          // TCP; 0: any
  std::uint32_t segment_bytes = 0;         // payload of a packet, a multiple of 8; 0: from the interface's MTU
  double line_rate_bits_per_second = 0;    // 0: the interface's speed
  std::uint32_t receive_buffer_bytes = 0;  // requested SO_RCVBUF; 0: the default
  std::int64_t operation_timeout_ns = 300'000'000'000;
  std::int64_t peer_timeout_ns = 3'000'000'000;  // a peer that is silent for so long has failed
  // The same limit while the peer's host still acknowledges (the process is stopped); raised to peer_timeout_ns.
  std::int64_t suspended_timeout_ns = 30'000'000'000;
  // Max time for which a waiting thread polls before it sleeps; it adapts the time below that, and does not poll while
  // runnable threads outnumber the CPUs. 0: it sleeps at once.
  std::uint32_t spin_us = 200;
  // Ring all-reduces give slow links less to carry, in groups of which all members do (docs/collectives.md). The order
  // of a sum then depends on the rates that were measured.
  bool shares_by_rate = false;
  // Collectives, push-pulls, sends and receives carry a checksum of each transfer, from memory to memory: one that
  // arrives changed fails, and names the sender (docs/collectives.md). The same on every rank.
  bool checksums = false;
  // Exact tensors get parity packets, from which receivers restore lost segments, where packets were lost lately and a
  // repair would take longer (docs/bound.md).
  bool erasure_correction = false;
  // A connection with a peer is set up when either side first posts to it; the post waits for that. Otherwise connect()
  // connects all ranks with each other. All ranks must agree, and connect() of each must have begun before any of them
  // posts (docs/scale.md).
  bool connects_on_use = false;
  // Limits; memory is used only as needed. max_operations: in progress, or ended and not taken; up to 131,072.
  std::uint32_t max_operations = 65'536;
  std::uint32_t max_tags = 262'144;       // remembered (rank, tag) pairs, of sends and of receives each
  std::uint32_t early_segments = 16'384;  // max buffered segments without a posted receive; shared by all peers
  std::uint32_t early_transfers = 2'048;  // max transfers with such segments
  // Max data in flight to a peer if the path's bandwidth-delay product exceeds its receive buffer. 1 to 65,536.
  std::uint32_t max_window_mib = 512;
  std::uint32_t busy_poll_us = 0;  // time for which the kernel polls the interface (SO_BUSY_POLL); 0: none
  // DSCP of each traffic class, class 0 (the most urgent) first; the size is the number of classes, 1 to 8. Code points
  // are distinct and below 64. Empty: 3, 7, 11, 15, 19, 23, 27. The switches need the same map.
  std::vector<std::uint8_t> data_dscp;
  std::uint8_t control_dscp = 31;  // of replies, probes and the control connection
  // Carries datagrams: "udp" (kernel sockets), "vma" (the same sockets under libvma), "xdp" (AF_XDP on the interface of
  // `host`, receive queue 0; "xdp:2": queue 2), or "auto": vma if the process runs under libvma, else udp, with shared
  // memory to ranks of the same host and user (docs/datapaths.md lists the options that turn it off).
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
using SegmentPriority = std::uint8_t;
inline constexpr SegmentPriority kImportant = 0x08;
inline constexpr SegmentPriority kCritical = 0x10;

// `lent` of an operation's options: an object that keeps its buffers alive. The operation holds it until its completion
// is taken, and the completion returns it.
struct SendOptions {
  std::uint16_t to = 0;
  std::uint64_t tag = 0;
  std::span<const std::byte> data;
  Element element = Element::kUint8;
  std::uint32_t layer = 0;  // position in the model, below `layers`; 0: the front. Sets class and order
  std::uint32_t layers = 1;
  std::vector<SegmentPriority> priorities;  // one per segment (Engine::segment_count), or empty: then all important
  bool by_magnitude = false;                // compute the priorities from the values (needs an empty `priorities`)
  std::int64_t timeout_ns = 0;              // 0: Options::operation_timeout_ns
  std::shared_ptr<void> lent = nullptr;
};

struct ReceiveOptions {
  std::uint16_t from = 0;
  std::uint64_t tag = 0;
  std::span<std::byte> data;
  Element element = Element::kUint8;
  // false: the send must have the size of `data`. true: it may be shorter; it then fills the front, and total_bytes,
  // ranges and bound of the completion refer to the size sent.
  bool up_to = false;
  double loss_bound = 0;         // [0, 1)
  bool keep_missing = false;     // false: missing ranges become zero
  bool eager = false;            // complete as soon as a fraction of 1 - loss_bound has arrived
  std::int64_t deadline_ns = 0;  // complete then with the data received; `up_to`: fail if the size is unknown
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

// Kind of an operation. kAllReduce to kBarrier are collectives of a group of ranks.
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
  std::uint64_t missing_bytes = 0;  // push-pull: of this worker's push
  std::uint64_t allowed_missing_bytes = 0;
  std::uint64_t repaired_segments = 0;  // push-pull, collective: sent and received
  std::int64_t elapsed_ns = 0;
  std::vector<Range> missing;  // receive only; ascending, merged
  std::string error;           // empty unless the operation failed: rank, peer, tag and cause
  int failed_peer = -1;        // of a failed collective or push-pull: the rank at fault; -1: none
  std::shared_ptr<void> lent;  // from the options
  bool failed() const { return !error.empty(); }
};

struct PushPullOptions {
  std::uint64_t key = 0;  // identifies the tensor; below 2^40
  std::span<const float> input;
  std::span<float> output;  // as long as input; may be the same memory
  double loss_bound = 0;    // of this worker's push; the same on every worker
  // The result may lose as much: where it does, this worker keeps its own term, and workers end with different bits.
  bool lossy_results = false;
  bool average = true;  // divide by the number of workers whose segment arrived; false: the sum
  std::uint32_t layer = 0;
  std::uint32_t layers = 1;
  std::int64_t timeout_ns = 0;
  std::shared_ptr<void> lent = nullptr;
};

// Of a summation service. Each service of a job has its own; give all the same.
struct ServiceOptions {
  // Workers that may die or leave while the sums continue without them; one worker must be left. 0: none, then every
  // push-pull fails and names the worker.
  std::uint16_t max_dead_workers = 0;
  // Time from the first complete push of a round, for which every worker has registered, until the service ends the
  // round without those that are missing: as loss where the loss bound allows it, else as an error that names them.
  // 0: no limit.
  std::int64_t max_wait_ns = 0;
};

// Options of all collectives. Every member of a group posts the same collectives with the same ranks in the same order;
// several may be in progress. A collective that fails at one member fails at all, together with those that any member
// had posted by then. Later ones work, unless a member died.
struct CollectiveOptions {
  std::vector<std::uint16_t> ranks;  // the group, in its order; empty: every rank of the job
  std::uint32_t stream = 0;          // two streams of the same ranks are two groups with separate orders
  double loss_bound = 0;             // [0, 1), of each transfer that may lose; missing elements count as zero
  std::uint32_t layer = 0;           // as in SendOptions
  std::uint32_t layers = 1;
  std::int64_t timeout_ns = 0;  // 0: Options::operation_timeout_ns
  // If this rank's floating-point input has a NaN or an infinity: send nothing of it, and end the collective at every
  // member as cancelled by this rank. May differ between members.
  bool check_finite = false;
  std::shared_ptr<void> lent = nullptr;
};

// Reduction operators (collective/reduction.h). A mean divides by the number of ranks, or with a loss bound by the
// number of terms that arrived; in an all-reduce of more than two ranks, a rank's own term takes the weight of missing
// terms instead. Integers and bool have no mean. kAnd to kXor are bitwise, for integers and bool only.
enum class Reduction : std::uint8_t { kSum, kMean, kMin, kMax, kProduct, kAnd, kOr, kXor };
inline constexpr std::uint8_t kReductionCount = 8;

// Algorithms of all-reduce, broadcast, reduce, all-gather and reduce-scatter (docs/collectives.md). kAutomatic chooses
// by the sizes of group and tensor and by the ranks' hosts, not by the loss bound. All have kTwoLevel, where
// set_hosts() permits. All-reduce has the others but kChain; only its kRing may lose data. Broadcast and reduce have
// kDirect and kChain, all-gather and reduce-scatter kDirect; kChain and kTwoLevel lose nothing.
enum class Algorithm : std::uint8_t { kAutomatic, kDirect, kCentral, kRing, kHalving, kChain, kTwoLevel };
inline constexpr std::uint8_t kAlgorithmCount = 7;

// Reduces all members' tensors in place. Only a sum or mean of floating point may have a loss bound, and only transfers
// of partial sums may lose data, up to the bound of all data that a rank receives: all members end with the same bits.
// Completion::missing_bytes counts the data that this rank's receives missed.
struct AllReduceOptions : CollectiveOptions {
  std::span<std::byte> data;  // the same size on every rank
  // Instead of `data`: tensors reduced together in this order, so that many small ones cost one collective. Two or more
  // are copied, and change only if the collective succeeds. The ranks compare the sum of the sizes, not each size.
  std::vector<std::span<std::byte>> tensors;
  Element element = Element::kFloat32;
  Reduction reduction = Reduction::kMean;
  Algorithm algorithm = Algorithm::kAutomatic;  // the same on every rank
  // Results may be lost too, up to the loss bound of all that a rank receives of them: a rank keeps the sum that it has
  // of what it misses, of a mean divided by its terms. Members end with different bits. The same on every rank.
  bool lossy_results = false;
};

// `inputs` and `outputs` below replace `input` and `output` by one part per member, each in separate memory, without a
// copy. The rank's own part of the output may be its own part of the input; otherwise outputs must not overlap
// anything.

// Sends part i of the input to member i and receives part i of the output from it; the rank's own part is copied.
struct AllToAllOptions : CollectiveOptions {
  std::span<const std::byte> input;
  std::span<std::byte> output;
  std::vector<std::span<const std::byte>> inputs;
  std::vector<std::span<std::byte>> outputs;
  Element element = Element::kUint8;
  std::vector<std::uint64_t> send_bytes;     // size of each part of the input; empty: equal parts
  std::vector<std::uint64_t> receive_bytes;  // size of each part of the output; empty: equal parts
};

// Collects every member's input at the root, in the order of the group.
struct GatherOptions : CollectiveOptions {
  std::uint16_t root = 0;
  std::span<const std::byte> input;  // the same size on every rank
  std::span<std::byte> output;       // at the root only: all inputs; the root's part may be its input
  std::vector<std::span<std::byte>> outputs;
  Element element = Element::kUint8;
};

// Collects every member's input at every member, in the order of the group.
struct AllGatherOptions : CollectiveOptions {
  std::span<const std::byte> input;  // the same size on every rank
  std::span<std::byte> output;       // all inputs; the rank's own part may be its input
  std::vector<std::span<std::byte>> outputs;
  Element element = Element::kUint8;
  Algorithm algorithm = Algorithm::kAutomatic;  // the same on every rank
};

// Reduces all inputs; member i receives part i of the result.
struct ReduceScatterOptions : CollectiveOptions {
  std::span<const std::byte> input;  // equal parts, one for each member
  std::vector<std::span<const std::byte>> inputs;
  std::span<std::byte> output;  // may be the rank's own part of the input
  Element element = Element::kFloat32;
  Reduction reduction = Reduction::kMean;
  Algorithm algorithm = Algorithm::kAutomatic;  // the same on every rank
};

// Copies the root's tensor to every member, without loss.
struct BroadcastOptions : CollectiveOptions {
  std::uint16_t root = 0;
  std::span<std::byte> data;
  std::vector<std::span<std::byte>> tensors;  // instead of `data`, as in AllReduceOptions; only read at the root
  Element element = Element::kUint8;
  Algorithm algorithm = Algorithm::kAutomatic;  // the same on every rank
};

// Reduces all inputs to the root.
struct ReduceOptions : CollectiveOptions {
  std::uint16_t root = 0;
  std::span<const std::byte> input;
  std::span<std::byte> output;  // at the root only; may be the input
  Element element = Element::kFloat32;
  Reduction reduction = Reduction::kMean;
  Algorithm algorithm = Algorithm::kAutomatic;  // the same on every rank
};

// Sends part i of the root's input to member i.
struct ScatterOptions : CollectiveOptions {
  std::uint16_t root = 0;
  std::span<const std::byte> input;  // at the root only: equal parts, one for each member
  std::vector<std::span<const std::byte>> inputs;
  std::span<std::byte> output;  // may be the root's own part of the input
  Element element = Element::kUint8;
};

// Completes at no member before every member has called it.
struct BarrierOptions : CollectiveOptions {
  // Not empty: ends the group. The barrier and all later calls with its ranks and stream fail at every member, with
  // this reason after the rank of this one.
  std::string end_of_group;
};

struct CounterValue {
  std::string name;
  std::uint64_t value = 0;
};

// State of one path to one peer.
struct PathStatus {
  std::uint8_t path = 0;
  std::string local;                   // local address and port
  std::uint64_t packets_sent = 0;      // to this peer
  std::uint64_t packets_reported = 0;  // reported by the peer as received
  double loss = 0;                     // estimate, [0, 1]
  std::int64_t rtt_ns = 0;             // smoothed; 0: not measured yet
  double share = 0;                    // of the data sent to this peer now, [0, 1]
  bool silent = false;                 // suspended: carries retries only
  bool resting = false;                // far later than others: the same
  std::uint64_t runs_sent = 0;         // to all peers
  std::uint64_t runs_failed = 0;       // rejected by the system, to all peers
};

// Version of PROTOCOL.md that this library implements; ranks of another version are rejected.
std::uint16_t protocol_version();

// Of floating point, in float64: what ranks compare before a reduction. 0 of integers and bool.
double sum_of_squares(std::span<const std::byte> values, Element element);

class Engine {
 public:
  // Binds the ports. Ranks are connected by connect().
  explicit Engine(const Options& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  std::uint16_t control_port() const;
  std::uint16_t udp_port() const;
  // Granted and requested size of the socket's receive buffer; fewer bytes are granted if this user may not have more.
  std::uint32_t receive_buffer_bytes() const;
  std::uint32_t wanted_receive_buffer_bytes() const;

  // Starts the I/O thread and connects to every peer. Returns when all are connected; else closes the engine and throws
  // an Error that names the peer and the cause. Call once. timeout_ns < 0: no limit. With Options::connects_on_use it
  // returns at once, and the time is that of each connection.
  void connect(std::span<const PeerAddress> peers, std::int64_t timeout_ns);
  // The same without waiting: starts the I/O thread, if it does not run, and connects to these peers, which no earlier
  // call may have named. Later calls may name the others, which may also connect to this rank before. A peer that is
  // not connected within timeout_ns has failed. Blocks only to look up host names, not for numeric addresses.
  void start_connect(std::span<const PeerAddress> peers, std::int64_t timeout_ns);
  // Called now and then, without locks, on the threads whose posts wait for a connection (Options::connects_on_use); it
  // may throw. Before connect().
  void set_on_wait(std::function<void()> on_wait);
  // Whether all peers named so far are connected. Throws as connect() does if one of them failed, but the engine stays
  // open: operations with the others work. Never blocks.
  bool test_connected();

  // Number of segments of a tensor of `total_bytes` to `peer`, and the payload of a full segment.
  std::uint32_t segment_count(std::uint16_t peer, std::uint64_t total_bytes) const;
  std::uint32_t segment_bytes(std::uint16_t peer) const;
  // DSCP of each traffic class, class 0 first, and of control packets: from the options, or the defaults.
  std::vector<std::uint8_t> data_dscp() const;
  std::uint8_t control_dscp() const;
  // Traffic class of layer `layer` (0: the front) of `layers`; for priority functions that set classes themselves.
  std::uint8_t traffic_class(std::uint32_t layer, std::uint32_t layers) const;

  OperationId post_send(const SendOptions& options);
  OperationId post_recv(const ReceiveOptions& options);
  // Many at once, for small tensors: one lock, and packets that leave together. Returns their ids in the same order.
  // What post_send() throws rejects the list as a whole, and the error says which one it is: arguments, an absent peer,
  // max_operations. What ends an operation after its post is its completion, as of a single post: too many tags
  // (max_tags), or a peer that fails meanwhile.
  std::vector<OperationId> post_sends(std::span<const SendOptions> options);
  std::vector<OperationId> post_recvs(std::span<const ReceiveOptions> options);
  // Collectives complete like sends and receives.
  OperationId post_all_reduce(const AllReduceOptions& options);
  OperationId post_all_to_all(const AllToAllOptions& options);
  OperationId post_gather(const GatherOptions& options);
  OperationId post_all_gather(const AllGatherOptions& options);
  OperationId post_reduce_scatter(const ReduceScatterOptions& options);
  OperationId post_broadcast(const BroadcastOptions& options);
  OperationId post_reduce(const ReduceOptions& options);
  OperationId post_scatter(const ScatterOptions& options);
  OperationId post_barrier(const BarrierOptions& options);
  // `reason`: in the error of every member of a collective.
  void cancel(OperationId operation, const std::string& reason = {});

  // Takes the completions of operations without a waiting thread that are not watched, oldest first; never blocks.
  std::vector<Completion> poll(std::size_t max_completions);
  // The same into the caller's memory, without allocation; returns the number. If there is none, blocks until there is
  // one, timeout_ns passed (< 0: no limit) or the engine was closed.
  std::size_t poll(std::span<Completion> taken, std::int64_t timeout_ns = 0);
  // Takes the completion of an operation that ended; nothing while it is in progress. Never blocks. Fast enough for a
  // loop over many operations: one test in kTestsPerTurn runs a turn of the event loop.
  std::optional<Completion> test(OperationId operation);
  static constexpr std::uint32_t kTestsPerTurn = 32;
  // Blocks until the operation ends; nothing if timeout_ns (< 0: no limit) passed first. The optional `now_and_then` is
  // called every 100 ms meanwhile, and may throw to end the wait.
  std::optional<Completion> wait(OperationId operation, std::int64_t timeout_ns,
                                 const std::function<void()>& now_and_then = nullptr);
  // wait() for several, which wakes the thread once, when the last has ended. The completions in the same order, of
  // failed operations too; nothing if the time passed first: then none was taken. Throws Error(kUnknownOperation), and
  // takes none, if an operation is unknown, another thread waits for it, or it is named twice.
  std::optional<std::vector<Completion>> wait_all(std::span<const OperationId> operations, std::int64_t timeout_ns,
                                                  const std::function<void()>& now_and_then = nullptr);
  // Makes next_watched() return the operation's completion. False if it was taken already.
  bool watch(OperationId operation);
  // Blocks until a watched operation ends; nothing if the time passed, or the engine was closed and all were taken.
  std::optional<Completion> next_watched(std::int64_t timeout_ns);
  // Whether the operation ended; nothing if its completion was taken, or the operation never existed.
  std::optional<bool> is_done(OperationId operation) const;
  // Number of operations that hold a `lent` object and whose completion was not taken.
  std::size_t lending() const;
  // After close(): the `lent` objects of operations whose completion was not taken.
  std::vector<std::shared_ptr<void>> take_lent();

  // The host of each rank, by any number: ranks of one number share a host. The same at every rank, once, before the
  // first collective. Large collectives then may send less between hosts (Algorithm::kTwoLevel).
  void set_hosts(std::span<const std::uint16_t> hosts);

  // Push-pull of float32 tensors: split into partitions of up to 4 MB, which the services sum and may average. The
  // services are all ranks from `workers` on, in the same order at every worker.
  // `max_dead_services`: services that may die while the others take over their partitions, one of which must be left;
  // each rank then keeps a copy of every result. `loads`: the part of all tensors that each service sums, in any unit,
  // one number for each, 0 for none; empty: equal parts. Both the same at every worker.
  void use_services(std::span<const std::uint16_t> service_ranks, std::uint16_t workers,
                    std::uint16_t max_dead_services = 0, std::span<const double> loads = {});
  OperationId push_pull(const PushPullOptions& options);

  // Makes this rank a summation service for the workers 0 .. workers-1.
  void serve(std::uint16_t workers, const ServiceOptions& options = {});
  // Blocks until every worker left or failed; false if timeout_ns passed first.
  bool wait_workers_gone(std::int64_t timeout_ns);

  // Lines for the log: what happened to push-pulls although no operation failed, such as the death of a worker that a
  // service sums without. Each is returned once; the oldest are dropped beyond 64.
  std::vector<std::string> take_notices();
  // Why the other ranks continue without this one in push-pulls, which then fail here; empty if they do not. Once.
  std::string take_exclusion();

  std::vector<CounterValue> counters() const;
  // The rate controller's current sending rate towards `peer`.
  double rate_bits_per_second(std::uint16_t peer) const;
  // Paths to `peer`, path 0 first; all figures are zero before connect().
  std::vector<PathStatus> paths(std::uint16_t peer) const;
  // Ranks that a collective in progress waits for, as known to this rank; empty for other operations.
  std::vector<std::uint16_t> awaited_ranks(OperationId operation) const;
  bool is_peer_up(std::uint16_t peer) const;
  bool has_peer_left(std::uint16_t peer) const;  // it was connected and left
  // Why a peer failed (it died, was silent, ...); empty while it is connected or connecting, and after it left.
  std::string peer_failure(std::uint16_t peer) const;

  // Leaves the job: fails operations in progress as closed and joins the I/O thread. Idempotent. `failure`: why this
  // rank ends before its work is complete; its peers report that it failed, with this reason. Empty: it did not fail.
  void close(const std::string& failure = {});

  // close() in two steps, for a process that ends but does not know its exit status yet. The first ends all operations;
  // the I/O thread keeps the connections, until the second or for `max_ns`. In between, close() returns at once.
  void close_before_exit(std::int64_t max_ns);
  // The second: the peers report a status other than 0 as the failure of this rank. close() follows.
  void set_exit_status(int status);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mlt
