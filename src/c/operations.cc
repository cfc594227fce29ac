// Operations of the C API: posts and completions.
#include <cstdint>
#include <utility>
#include <vector>

#include "c/context.h"

namespace mlt::c {

namespace {

template <auto kPublic, auto kC>
constexpr bool kSame = static_cast<int>(kPublic) == static_cast<int>(kC);
static_assert(static_cast<int>(ErrorCode::kConfig) + 1 == MLT_ERROR_CONFIG);
static_assert(static_cast<int>(ErrorCode::kPortInUse) + 1 == MLT_ERROR_PORT_IN_USE);
static_assert(static_cast<int>(ErrorCode::kRendezvous) + 1 == MLT_ERROR_RENDEZVOUS);
static_assert(static_cast<int>(ErrorCode::kPeerMismatch) + 1 == MLT_ERROR_PEER_MISMATCH);
static_assert(static_cast<int>(ErrorCode::kUnknownPeer) + 1 == MLT_ERROR_UNKNOWN_PEER);
static_assert(static_cast<int>(ErrorCode::kPeerFailed) + 1 == MLT_ERROR_PEER_FAILED);
static_assert(static_cast<int>(ErrorCode::kBuffer) + 1 == MLT_ERROR_BUFFER);
static_assert(static_cast<int>(ErrorCode::kSizeMismatch) + 1 == MLT_ERROR_SIZE_MISMATCH);
static_assert(static_cast<int>(ErrorCode::kTypeMismatch) + 1 == MLT_ERROR_TYPE_MISMATCH);
static_assert(static_cast<int>(ErrorCode::kTimeout) + 1 == MLT_ERROR_TIMEOUT);
static_assert(static_cast<int>(ErrorCode::kCancelled) + 1 == MLT_ERROR_CANCELLED);
static_assert(static_cast<int>(ErrorCode::kLimit) + 1 == MLT_ERROR_LIMIT);
static_assert(static_cast<int>(ErrorCode::kUnknownOperation) + 1 == MLT_ERROR_UNKNOWN_OPERATION);
static_assert(static_cast<int>(ErrorCode::kClosed) + 1 == MLT_ERROR_CLOSED);
static_assert(static_cast<int>(ErrorCode::kSystem) + 1 == MLT_ERROR_SYSTEM);
static_assert(kSame<Element::kUint8, MLT_UINT8> && kSame<Element::kInt8, MLT_INT8> &&
              kSame<Element::kInt16, MLT_INT16> && kSame<Element::kInt32, MLT_INT32> &&
              kSame<Element::kInt64, MLT_INT64> && kSame<Element::kFloat16, MLT_FLOAT16> &&
              kSame<Element::kBfloat16, MLT_BFLOAT16> && kSame<Element::kFloat32, MLT_FLOAT32> &&
              kSame<Element::kFloat64, MLT_FLOAT64> && kSame<Element::kUint16, MLT_UINT16> &&
              kSame<Element::kUint32, MLT_UINT32> && kSame<Element::kUint64, MLT_UINT64> &&
              kSame<Element::kBool, MLT_BOOL>);
static_assert(kSame<Reduction::kSum, MLT_SUM> && kSame<Reduction::kMean, MLT_MEAN> && kSame<Reduction::kMin, MLT_MIN> &&
              kSame<Reduction::kMax, MLT_MAX> && kSame<Reduction::kProduct, MLT_PRODUCT> &&
              kSame<Reduction::kAnd, MLT_AND> && kSame<Reduction::kOr, MLT_OR> && kSame<Reduction::kXor, MLT_XOR>);
static_assert(kSame<Algorithm::kAutomatic, MLT_ALGORITHM_AUTOMATIC> &&
              kSame<Algorithm::kDirect, MLT_ALGORITHM_DIRECT> && kSame<Algorithm::kCentral, MLT_ALGORITHM_CENTRAL> &&
              kSame<Algorithm::kRing, MLT_ALGORITHM_RING> && kSame<Algorithm::kHalving, MLT_ALGORITHM_HALVING> &&
              kSame<Algorithm::kChain, MLT_ALGORITHM_CHAIN> && kSame<Algorithm::kTwoLevel, MLT_ALGORITHM_TWO_LEVEL> &&
              kAlgorithmCount == 7);
static_assert(kSame<Status::kComplete, MLT_STATUS_COMPLETE> && kSame<Status::kWithinBound, MLT_STATUS_WITHIN_BOUND> &&
              kSame<Status::kDeadline, MLT_STATUS_DEADLINE> && kSame<Status::kSizeMismatch, MLT_STATUS_SIZE_MISMATCH> &&
              kSame<Status::kTypeMismatch, MLT_STATUS_TYPE_MISMATCH> &&
              kSame<Status::kPeerFailed, MLT_STATUS_PEER_FAILED> && kSame<Status::kTimedOut, MLT_STATUS_TIMED_OUT> &&
              kSame<Status::kCancelled, MLT_STATUS_CANCELLED>);
static_assert(kSame<Verb::kSend, MLT_SEND> && kSame<Verb::kReceive, MLT_RECEIVE> &&
              kSame<Verb::kAllReduce, MLT_ALL_REDUCE> && kSame<Verb::kAllToAll, MLT_ALL_TO_ALL> &&
              kSame<Verb::kGather, MLT_GATHER> && kSame<Verb::kAllGather, MLT_ALL_GATHER> &&
              kSame<Verb::kReduceScatter, MLT_REDUCE_SCATTER> && kSame<Verb::kBroadcast, MLT_BROADCAST> &&
              kSame<Verb::kReduce, MLT_REDUCE> && kSame<Verb::kScatter, MLT_SCATTER> &&
              kSame<Verb::kBarrier, MLT_BARRIER>);
// No structure ends in padding, where a later member would read what the caller never set.
template <typename Struct, typename Last>
constexpr bool ends_at(std::size_t offset) {
  return offset + sizeof(Last) == sizeof(Struct);
}
static_assert(ends_at<mlt_options, std::uint16_t>(offsetof(mlt_options, control_port)));
static_assert(ends_at<mlt_peer, std::uint32_t>(offsetof(mlt_peer, reserved)));
static_assert(ends_at<mlt_send_options, std::uint16_t[3]>(offsetof(mlt_send_options, reserved)));
static_assert(ends_at<mlt_receive_options, std::uint16_t>(offsetof(mlt_receive_options, up_to)));
static_assert(ends_at<mlt_collective_options, std::uint32_t>(offsetof(mlt_collective_options, check_finite)));
static_assert(ends_at<mlt_completion, std::uint32_t>(offsetof(mlt_completion, reserved)));
static_assert(sizeof(Range) == sizeof(mlt_range) && offsetof(Range, length_bytes) == offsetof(mlt_range, length_bytes));

int error_of(const Completion& done) {
  if (!done.failed()) return MLT_OK;
  switch (done.status) {
    case Status::kSizeMismatch:
      return MLT_ERROR_SIZE_MISMATCH;
    case Status::kTypeMismatch:
      return MLT_ERROR_TYPE_MISMATCH;
    case Status::kPeerFailed:
      return MLT_ERROR_PEER_FAILED;
    case Status::kDeadline:
    case Status::kTimedOut:
      return MLT_ERROR_TIMEOUT;
    case Status::kCancelled:
      return MLT_ERROR_CANCELLED;
    case Status::kComplete:
    case Status::kWithinBound:
      break;
  }
  return MLT_ERROR_INTERNAL;
}

// Never fails: the completion was taken. Without memory for its text and ranges it goes without them.
void write(Completion&& done, mlt_completion* to, std::size_t bytes) noexcept {
  const bool is_transfer = done.verb == Verb::kSend || done.verb == Verb::kReceive;
  mlt_completion known{};
  known.operation = done.operation;
  known.tag = done.tag;
  known.total_bytes = done.total_bytes;
  known.missing_bytes = done.missing_bytes;
  known.allowed_missing_bytes = done.allowed_missing_bytes;
  known.repaired_segments = done.repaired_segments;
  known.elapsed_ns = done.elapsed_ns;
  known.error = error_of(done);
  known.failed_peer = is_transfer && done.status == Status::kPeerFailed ? done.peer : done.failed_peer;
  known.status = static_cast<std::uint32_t>(done.status);
  known.verb = static_cast<std::uint32_t>(done.verb);
  known.peer = done.peer;
  known.text = "";
  if (done.failed() || !done.missing.empty()) {
    if (done.failed()) known.text = "no memory for the text of this error";
    if (auto* const owned = new (std::nothrow) Completion(std::move(done)); owned != nullptr) {
      known.owned = owned;
      known.text = owned->error.c_str();
      known.missing_count = owned->missing.size();
      known.missing = known.missing_count == 0 ? nullptr : reinterpret_cast<const mlt_range*>(owned->missing.data());
    }
  }
  std::memset(to, 0, bytes);
  std::memcpy(to, &known, std::min(bytes, sizeof known));
}

void check_space(const mlt_completion* completion, std::size_t bytes, const char* function) {
  check(completion != nullptr, function, "completion is NULL");
  check(bytes >= kFirstBytes<mlt_completion> && bytes % alignof(mlt_completion) == 0, function,
        "completion_bytes must be sizeof(mlt_completion)");
}

// Runs test() or wait() of one operation.
template <typename Take>
int take_one(mlt_completion* completion, std::size_t bytes, const char* function, Take&& take) {
  int result = MLT_OK;
  const int code = call([&] {
    check_space(completion, bytes, function);
    if (std::optional<Completion> done = take()) {
      write(std::move(*done), completion, bytes);
    } else {
      result = MLT_IN_PROGRESS;
    }
  });
  return code != MLT_OK ? code : result;
}

Element element_of(std::uint32_t element, const char* function) {
  if (element <= MLT_BOOL) return static_cast<Element>(element);
  reject(std::string(function) + ": element is " + std::to_string(element) + "; it must be 0 to " +
         std::to_string(int{MLT_BOOL}));
}

bool flag(std::uint32_t value, const char* function, const char* name) {
  check(value <= 1, function, (std::string(name) + " must be 0 or 1").c_str());
  return value != 0;
}

template <typename Byte>
std::span<Byte> bytes_of(std::conditional_t<std::is_const_v<Byte>, const void, void>* data, std::size_t bytes,
                         const char* function, const char* name) {
  check(data != nullptr || bytes == 0, function, (std::string(name) + " is NULL, and its bytes are not 0").c_str());
  return {static_cast<Byte*>(data), bytes};
}

std::uint32_t layers_of(std::uint32_t layers) { return layers == 0 ? 1 : layers; }

// Runs a post.
template <typename Post>
int post(mlt_context* context, std::uint64_t* operation, const char* function, Post&& start) {
  return call([&] {
    mlt_context& own = checked(context, function);
    check(operation != nullptr, function, "operation is NULL");
    *operation = start(own.engine);
  });
}

SendOptions send_of(const mlt_send_options* options, const char* name) {
  const mlt_send_options given = read(options, name, "options");
  check((given.reserved[0] | given.reserved[1] | given.reserved[2]) == 0, name, "reserved must be 0");
  check((given.segment_priorities == nullptr) == (given.segment_priority_count == 0), name,
        "segment_priorities and segment_priority_count must both be set, or both be 0");
  SendOptions send;
  send.to = given.to;
  send.tag = given.tag;
  send.data = bytes_of<const std::byte>(given.data, given.bytes, name, "data");
  send.element = element_of(given.element, name);
  send.layer = given.layer;
  send.layers = layers_of(given.layers);
  if (given.segment_priority_count > 0) {
    send.priorities.assign(given.segment_priorities, given.segment_priorities + given.segment_priority_count);
  }
  send.by_magnitude = flag(given.by_magnitude, name, "by_magnitude");
  check(!send.by_magnitude || send.priorities.empty(), name, "segment_priorities and by_magnitude exclude each other");
  check(given.timeout_ns >= 0, name, "timeout_ns must not be negative");
  send.timeout_ns = given.timeout_ns;
  return send;
}

ReceiveOptions receive_of(const mlt_receive_options* options, const char* name) {
  const mlt_receive_options given = read(options, name, "options");
  ReceiveOptions receive;
  receive.from = given.from;
  receive.tag = given.tag;
  receive.data = bytes_of<std::byte>(given.data, given.bytes, name, "data");
  receive.element = element_of(given.element, name);
  receive.up_to = flag(given.up_to, name, "up_to");
  receive.loss_bound = given.loss_bound;
  receive.keep_missing = flag(given.keep_missing, name, "keep_missing");
  receive.eager = flag(given.eager, name, "eager");
  receive.deadline_ns = given.deadline_ns;
  receive.timeout_ns = given.timeout_ns;
  return receive;
}

// Runs a post of several. The structures lie as far apart as the first says that it is long.
template <typename Given, typename Options>
int post_list(mlt_context* context, const Given* given, std::size_t count, std::uint64_t* operations,
              const char* function, Options (*read_one)(const Given*, const char*),
              std::vector<OperationId> (Engine::*start)(std::span<const Options>)) {
  return call([&] {
    mlt_context& own = checked(context, function);
    check(count > 0, function, "count is 0");
    check(given != nullptr, function, "options is NULL");
    check(operations != nullptr, function, "operations is NULL");
    check(given->size % alignof(Given) == 0, function, "the size of options must be sizeof of the structure");
    std::vector<Options> list;
    list.reserve(count);
    const auto* next = reinterpret_cast<const unsigned char*>(given);
    for (std::size_t i = 0; i < count; ++i, next += given->size) {
      const auto* const one = reinterpret_cast<const Given*>(next);
      try {
        if (i > 0) check(one->size == given->size, function, "its size is another than that of the first");
        list.push_back(read_one(one, function));
      } catch (const Error& error) {
        reject(std::string(error.what()) + " (number " + std::to_string(i + 1) + " of " + std::to_string(count) +
               " transfers, of which none was posted)");
      }
    }
    const std::vector<OperationId> ids = (own.engine.*start)(list);
    std::ranges::copy(ids, operations);
  });
}

// Which members of mlt_collective_options a collective uses beside those that all have.
struct Uses {
  bool input = false;
  bool output = false;
  bool root = false;
  bool reduction = false;
  bool parts = false;
  bool algorithm = false;
  bool tensors = false;
  bool lossy_results = false;
};

// Reads what is common, and rejects members that the collective would ignore.
mlt_collective_options read_collective(const mlt_collective_options* given, const char* function, Uses uses) {
  const mlt_collective_options known = read(given, function, "options");
  const auto unused = [&](bool is_set, const char* name) {
    check(!is_set, function, (std::string(name) + " is set, and this collective does not use it: set it to 0").c_str());
  };
  if (!uses.input) unused(known.input != nullptr || known.input_bytes != 0, "input");
  if (!uses.output) unused(known.output != nullptr || known.output_bytes != 0, "output");
  if (!uses.root) unused(known.root != 0, "root");
  if (!uses.reduction) unused(known.reduction != 0, "reduction");
  if (!uses.parts) unused(known.send_bytes != nullptr || known.receive_bytes != nullptr, "send_bytes or receive_bytes");
  if (!uses.algorithm) unused(known.algorithm != 0, "algorithm");
  if (!uses.lossy_results) unused(known.lossy_results != 0, "lossy_results");
  if (!uses.tensors) unused(known.tensors != nullptr || known.tensor_count != 0, "tensors");
  check((known.tensors == nullptr) == (known.tensor_count == 0), function,
        "tensors and tensor_count must both be set, or both be 0");
  check((known.ranks == nullptr) == (known.rank_count == 0), function,
        "ranks and rank_count must both be set, or both be 0 for all ranks");
  return known;
}

void set_common(CollectiveOptions& options, const mlt_collective_options& given, const char* function) {
  if (given.rank_count > 0) options.ranks.assign(given.ranks, given.ranks + given.rank_count);
  options.stream = given.stream;
  options.loss_bound = given.loss_bound;
  options.layer = given.layer;
  options.layers = layers_of(given.layers);
  options.timeout_ns = given.timeout_ns;
  options.check_finite = flag(given.check_finite, function, "check_finite");
}

template <typename Given>
void set_input(Given& options, const mlt_collective_options& given, const char* function) {
  options.input = bytes_of<const std::byte>(given.input, given.input_bytes, function, "input");
}

template <typename Given>
void set_output(Given& options, const mlt_collective_options& given, const char* function) {
  options.output = bytes_of<std::byte>(given.output, given.output_bytes, function, "output");
}

// The tensor or the tensors of a collective that works in place.
template <typename Given>
void set_in_place(Given& options, const mlt_collective_options& given, const char* function) {
  options.data = bytes_of<std::byte>(given.output, given.output_bytes, function, "output");
  for (const mlt_tensor& tensor : std::span(given.tensors, given.tensor_count)) {
    options.tensors.push_back(bytes_of<std::byte>(tensor.data, tensor.bytes, function, "the data of a tensor"));
  }
}

Algorithm algorithm_of(const mlt_collective_options& given, const char* function) {
  if (given.algorithm < kAlgorithmCount) return static_cast<Algorithm>(given.algorithm);
  reject(std::string(function) + ": algorithm is " + std::to_string(given.algorithm) + "; it must be 0 to " +
         std::to_string(kAlgorithmCount - 1));
}

Reduction reduction_of(const mlt_collective_options& given, const char* function) {
  if (given.reduction < kReductionCount) return static_cast<Reduction>(given.reduction);
  reject(std::string(function) + ": reduction is " + std::to_string(given.reduction) + "; it must be 0 to " +
         std::to_string(kReductionCount - 1));
}

}  // namespace

}  // namespace mlt::c

using namespace mlt;

int mlt_post_send(mlt_context* context, const mlt_send_options* options, uint64_t* operation) {
  return c::post(context, operation, __func__,
                 [&, name = __func__](Engine& engine) { return engine.post_send(c::send_of(options, name)); });
}

int mlt_post_receive(mlt_context* context, const mlt_receive_options* options, uint64_t* operation) {
  return c::post(context, operation, __func__,
                 [&, name = __func__](Engine& engine) { return engine.post_recv(c::receive_of(options, name)); });
}

int mlt_post_sends(mlt_context* context, const mlt_send_options* options, size_t count, uint64_t* operations) {
  return c::post_list(context, options, count, operations, __func__, c::send_of, &Engine::post_sends);
}

int mlt_post_receives(mlt_context* context, const mlt_receive_options* options, size_t count, uint64_t* operations) {
  return c::post_list(context, options, count, operations, __func__, c::receive_of, &Engine::post_recvs);
}

namespace mlt::c {

namespace {

// A collective: `fill` sets what its options have beside the common ones.
template <typename Options, typename Fill>
int collective(mlt_context* context, const mlt_collective_options* options, std::uint64_t* operation,
               const char* function, Uses uses, OperationId (Engine::*start)(const Options&), Fill&& fill) {
  return post(context, operation, function, [&](Engine& engine) {
    const mlt_collective_options given = read_collective(options, function, uses);
    check(given.timeout_ns >= 0, function, "timeout_ns must not be negative");
    Options wanted;
    set_common(wanted, given, function);
    fill(wanted, given);
    return (engine.*start)(wanted);
  });
}

}  // namespace

}  // namespace mlt::c

int mlt_post_all_reduce(mlt_context* context, const mlt_collective_options* options, uint64_t* operation) {
  return c::collective(context, options, operation, __func__,
                       {.output = true, .reduction = true, .algorithm = true, .tensors = true, .lossy_results = true},
                       &Engine::post_all_reduce,
                       [name = __func__](AllReduceOptions& wanted, const mlt_collective_options& given) {
                         c::set_in_place(wanted, given, name);
                         wanted.element = c::element_of(given.element, name);
                         wanted.reduction = c::reduction_of(given, name);
                         wanted.algorithm = c::algorithm_of(given, name);
                         wanted.lossy_results = c::flag(given.lossy_results, name, "lossy_results");
                       });
}

int mlt_post_all_to_all(mlt_context* context, const mlt_collective_options* options, uint64_t* operation) {
  return c::collective(context, options, operation, __func__, {.input = true, .output = true, .parts = true},
                       &Engine::post_all_to_all,
                       [context, name = __func__](AllToAllOptions& wanted, const mlt_collective_options& given) {
                         c::set_input(wanted, given, name);
                         c::set_output(wanted, given, name);
                         wanted.element = c::element_of(given.element, name);
                         const std::size_t parts = given.rank_count > 0 ? given.rank_count : context->ranks;
                         if (given.send_bytes != nullptr) {
                           wanted.send_bytes.assign(given.send_bytes, given.send_bytes + parts);
                         }
                         if (given.receive_bytes != nullptr) {
                           wanted.receive_bytes.assign(given.receive_bytes, given.receive_bytes + parts);
                         }
                       });
}

int mlt_post_gather(mlt_context* context, const mlt_collective_options* options, uint64_t* operation) {
  return c::collective(context, options, operation, __func__, {.input = true, .output = true, .root = true},
                       &Engine::post_gather,
                       [name = __func__](GatherOptions& wanted, const mlt_collective_options& given) {
                         c::set_input(wanted, given, name);
                         c::set_output(wanted, given, name);
                         wanted.element = c::element_of(given.element, name);
                         wanted.root = given.root;
                       });
}

int mlt_post_all_gather(mlt_context* context, const mlt_collective_options* options, uint64_t* operation) {
  return c::collective(context, options, operation, __func__, {.input = true, .output = true, .algorithm = true},
                       &Engine::post_all_gather,
                       [name = __func__](AllGatherOptions& wanted, const mlt_collective_options& given) {
                         c::set_input(wanted, given, name);
                         c::set_output(wanted, given, name);
                         wanted.algorithm = c::algorithm_of(given, name);
                         wanted.element = c::element_of(given.element, name);
                       });
}

int mlt_post_reduce_scatter(mlt_context* context, const mlt_collective_options* options, uint64_t* operation) {
  return c::collective(context, options, operation, __func__,
                       {.input = true, .output = true, .reduction = true, .algorithm = true},
                       &Engine::post_reduce_scatter,
                       [name = __func__](ReduceScatterOptions& wanted, const mlt_collective_options& given) {
                         c::set_input(wanted, given, name);
                         c::set_output(wanted, given, name);
                         wanted.element = c::element_of(given.element, name);
                         wanted.reduction = c::reduction_of(given, name);
                         wanted.algorithm = c::algorithm_of(given, name);
                       });
}

int mlt_post_broadcast(mlt_context* context, const mlt_collective_options* options, uint64_t* operation) {
  return c::collective(context, options, operation, __func__,
                       {.output = true, .root = true, .algorithm = true, .tensors = true}, &Engine::post_broadcast,
                       [name = __func__](BroadcastOptions& wanted, const mlt_collective_options& given) {
                         c::set_in_place(wanted, given, name);
                         wanted.element = c::element_of(given.element, name);
                         wanted.root = given.root;
                         wanted.algorithm = c::algorithm_of(given, name);
                       });
}

int mlt_post_reduce(mlt_context* context, const mlt_collective_options* options, uint64_t* operation) {
  return c::collective(context, options, operation, __func__,
                       {.input = true, .output = true, .root = true, .reduction = true, .algorithm = true},
                       &Engine::post_reduce,
                       [name = __func__](ReduceOptions& wanted, const mlt_collective_options& given) {
                         c::set_input(wanted, given, name);
                         c::set_output(wanted, given, name);
                         wanted.element = c::element_of(given.element, name);
                         wanted.root = given.root;
                         wanted.reduction = c::reduction_of(given, name);
                         wanted.algorithm = c::algorithm_of(given, name);
                       });
}

int mlt_post_scatter(mlt_context* context, const mlt_collective_options* options, uint64_t* operation) {
  return c::collective(context, options, operation, __func__, {.input = true, .output = true, .root = true},
                       &Engine::post_scatter,
                       [name = __func__](ScatterOptions& wanted, const mlt_collective_options& given) {
                         c::set_input(wanted, given, name);
                         c::set_output(wanted, given, name);
                         wanted.element = c::element_of(given.element, name);
                         wanted.root = given.root;
                       });
}

int mlt_post_barrier(mlt_context* context, const mlt_collective_options* options, uint64_t* operation) {
  return c::collective(context, options, operation, __func__, {}, &Engine::post_barrier,
                       [](BarrierOptions&, const mlt_collective_options&) {});
}

int mlt_cancel(mlt_context* context, uint64_t operation) {
  return c::call([&] { c::checked(context, "mlt_cancel").engine.cancel(operation); });
}

int mlt_poll(mlt_context* context, mlt_completion* completions, size_t completion_bytes, size_t capacity,
             int64_t timeout_ns, size_t* taken) {
  return c::call([&, name = __func__] {
    c::check(taken != nullptr, name, "taken is NULL");
    *taken = 0;
    mlt_context& own = c::checked(context, name);
    c::check_space(completions, completion_bytes, name);
    c::check(capacity > 0, name, "capacity is 0");
    auto* next = reinterpret_cast<unsigned char*>(completions);
    Completion some[16];
    while (*taken < capacity) {
      const std::size_t wanted = std::min(capacity - *taken, std::size(some));
      const std::size_t count = own.engine.poll({some, wanted}, *taken == 0 ? timeout_ns : 0);
      for (std::size_t i = 0; i < count; ++i, next += completion_bytes) {
        c::write(std::move(some[i]), reinterpret_cast<mlt_completion*>(next), completion_bytes);
        some[i] = Completion();
      }
      *taken += count;
      if (count < wanted) break;
    }
  });
}

int mlt_test(mlt_context* context, uint64_t operation, mlt_completion* completion, size_t completion_bytes) {
  return c::take_one(completion, completion_bytes, __func__,
                     [&, name = __func__] { return c::checked(context, name).engine.test(operation); });
}

int mlt_wait(mlt_context* context, uint64_t operation, int64_t timeout_ns, mlt_completion* completion,
             size_t completion_bytes) {
  return c::take_one(completion, completion_bytes, __func__,
                     [&, name = __func__] { return c::checked(context, name).engine.wait(operation, timeout_ns); });
}

int mlt_wait_all(mlt_context* context, const uint64_t* operations, size_t count, int64_t timeout_ns,
                 mlt_completion* completions, size_t completion_bytes) {
  int result = MLT_OK;
  const int code = c::call([&, name = __func__] {
    mlt_context& own = c::checked(context, name);
    c::check(count > 0, name, "count is 0");
    c::check(operations != nullptr, name, "operations is NULL");
    c::check_space(completions, completion_bytes, name);
    std::optional<std::vector<Completion>> done = own.engine.wait_all({operations, count}, timeout_ns);
    if (!done) {
      result = MLT_IN_PROGRESS;
      return;
    }
    auto* next = reinterpret_cast<unsigned char*>(completions);
    for (Completion& one : *done) {
      c::write(std::move(one), reinterpret_cast<mlt_completion*>(next), completion_bytes);
      next += completion_bytes;
    }
  });
  return code != MLT_OK ? code : result;
}

void mlt_completion_release(mlt_completion* completion) {
  if (completion == nullptr) return;
  delete static_cast<Completion*>(completion->owned);
  completion->owned = nullptr;
  completion->text = "";
  completion->missing = nullptr;
  completion->missing_count = 0;
}
