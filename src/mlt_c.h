/* The C API of mlt: contexts, sends, receives and collectives without C++ types and without exceptions. docs/c-api.md
 * explains it with an example.
 *
 * Calls return MLT_OK, MLT_IN_PROGRESS or an error code; mlt_error_text() then has the cause. They may be made from any
 * thread, except that mlt_destroy() must be the last call with its context. Buffers stay the caller's: they must stay
 * valid and, for receives, untouched until the operation's completion was taken. Times are in nanoseconds.
 *
 * Structures grow with later versions. Those that a caller fills begin with their size: set it to sizeof of the
 * structure, and every member that you do not use to 0. Calls that fill an mlt_completion are told its size. A library
 * that is newer or older than the header that a program was compiled with then reads and writes only what both know,
 * and rejects an option that it does not know.
 *
 * Deliberately absent, because the engine does not have it: a number of ranks that changes, and ranks that come back
 * after they failed. Push-pull through summation services, several paths and faults have only a C++ and a Python API.
 */
#ifndef MLT_C_H
#define MLT_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MLT_API __attribute__((visibility("default")))
#else
#define MLT_API
#endif

enum {
  MLT_IN_PROGRESS = -1, /* no error: mlt_test() and mlt_wait() of an operation that did not end yet */
  MLT_OK = 0,
  MLT_ERROR_CONFIG = 1,             /* an option or argument is out of range */
  MLT_ERROR_PORT_IN_USE = 2,        /* the address or port cannot be bound */
  MLT_ERROR_RENDEZVOUS = 3,         /* not every rank connected in time */
  MLT_ERROR_PEER_MISMATCH = 4,      /* a peer has another protocol version, job or number of ranks */
  MLT_ERROR_UNKNOWN_PEER = 5,       /* no such rank, or this rank itself */
  MLT_ERROR_PEER_FAILED = 6,        /* the peer died, left, or was never connected */
  MLT_ERROR_BUFFER = 7,             /* size, element type or loss bound do not fit the operation */
  MLT_ERROR_SIZE_MISMATCH = 8,      /* the ranks named different sizes */
  MLT_ERROR_TYPE_MISMATCH = 9,      /* the ranks named different element types */
  MLT_ERROR_TIMEOUT = 10,           /* the operation or the connect timed out */
  MLT_ERROR_CANCELLED = 11,         /* by mlt_cancel() or mlt_close(), of any member of a collective */
  MLT_ERROR_LIMIT = 12,             /* a queue or table is full; the text has its name and the remedy */
  MLT_ERROR_UNKNOWN_OPERATION = 13, /* never posted, or its completion was taken, or another thread waits for it */
  MLT_ERROR_CLOSED = 14,            /* the context was closed */
  MLT_ERROR_SYSTEM = 15,            /* the operating system refused something */
  MLT_ERROR_NO_MEMORY = 16,
  MLT_ERROR_INTERNAL = 17 /* a fault of mlt: please report it with its text */
};

enum {
  MLT_UINT8 = 0,
  MLT_INT8 = 1,
  MLT_INT16 = 2,
  MLT_INT32 = 3,
  MLT_INT64 = 4,
  MLT_FLOAT16 = 5,
  MLT_BFLOAT16 = 6,
  MLT_FLOAT32 = 7,
  MLT_FLOAT64 = 8,
  MLT_UINT16 = 9,
  MLT_UINT32 = 10,
  MLT_UINT64 = 11,
  MLT_BOOL = 12
};

enum {
  MLT_SUM = 0,
  MLT_MEAN = 1,
  MLT_MIN = 2,
  MLT_MAX = 3,
  MLT_PRODUCT = 4,
  MLT_AND = 5, /* bitwise, of integers and bool only; so are the next two */
  MLT_OR = 6,
  MLT_XOR = 7
};

/* How an all-reduce, broadcast, reduce, all-gather or reduce-scatter carries the tensors. AUTOMATIC: by their size, the
 * group's and the ranks' hosts, not by the loss bound. All have TWO_LEVEL, where mlt_set_hosts() permits. An all-reduce
 * has the others but CHAIN; only its RING may lose data. A broadcast or reduce has DIRECT and CHAIN, an all-gather or
 * reduce-scatter DIRECT; CHAIN and TWO_LEVEL lose nothing. */
enum {
  MLT_ALGORITHM_AUTOMATIC = 0,
  MLT_ALGORITHM_DIRECT = 1,
  MLT_ALGORITHM_CENTRAL = 2,
  MLT_ALGORITHM_RING = 3,
  MLT_ALGORITHM_HALVING = 4,
  MLT_ALGORITHM_CHAIN = 5,
  MLT_ALGORITHM_TWO_LEVEL = 6
};

/* How an operation ended. */
enum {
  MLT_STATUS_COMPLETE = 0,
  MLT_STATUS_WITHIN_BOUND = 1, /* data is missing, no more than the loss bound allows */
  MLT_STATUS_DEADLINE = 2,     /* a receive's deadline passed; missing_bytes may exceed the bound */
  MLT_STATUS_SIZE_MISMATCH = 3,
  MLT_STATUS_TYPE_MISMATCH = 4,
  MLT_STATUS_PEER_FAILED = 5,
  MLT_STATUS_TIMED_OUT = 6,
  MLT_STATUS_CANCELLED = 7
};

/* What an operation is. */
enum {
  MLT_SEND = 0,
  MLT_RECEIVE = 1,
  MLT_ALL_REDUCE = 2,
  MLT_ALL_TO_ALL = 3,
  MLT_GATHER = 4,
  MLT_ALL_GATHER = 5,
  MLT_REDUCE_SCATTER = 6,
  MLT_BROADCAST = 7,
  MLT_REDUCE = 8,
  MLT_SCATTER = 9,
  MLT_BARRIER = 10
};

typedef struct mlt_context mlt_context;

typedef struct mlt_options {
  size_t size;  /* mlt_options_init() sets it, and all others to their defaults */
  uint64_t job; /* a number that all ranks of the job share; ranks of another job are rejected */
  const void*
      secret; /* known to the ranks of this job only, 16 bytes or more (docs/security.md); NULL: loopback only */
  size_t secret_bytes;
  const char* host;                 /* address to bind, IPv4 or IPv6 */
  const char* datapath;             /* "auto", "udp", "vma" or "xdp" (docs/datapaths.md) */
  double line_rate_bits_per_second; /* 0: the interface's speed */
  int64_t operation_timeout_ns;
  int64_t peer_timeout_ns;
  int64_t suspended_timeout_ns;
  uint32_t insecure;             /* 1: without a secret other addresses than loopback are permitted */
  uint32_t segment_bytes;        /* payload of a packet, a multiple of 8; 0: from the interface's MTU */
  uint32_t receive_buffer_bytes; /* 0: a default */
  uint32_t spin_us;              /* how long at most a waiting thread polls before it sleeps */
  uint32_t shares_by_rate;       /* 1: ring all-reduces give slow links less to carry (docs/collectives.md) */
  uint32_t max_operations;
  uint32_t max_tags;
  uint32_t early_segments;
  uint32_t early_transfers;
  uint32_t max_window_mib;
  uint32_t busy_poll_us;
  uint32_t checksums;          /* 1: all transfers carry checksums (docs/collectives.md); the same on every rank */
  uint32_t erasure_correction; /* 1: exact tensors get parity packets where that pays (docs/bound.md) */
  uint32_t connects_on_use; /* 1: connections are set up by the first post to a peer (docs/scale.md); on every rank */
  uint16_t rank;
  uint16_t ranks;
  uint16_t udp_port;     /* 0: any */
  uint16_t control_port; /* TCP; 0: any */
} mlt_options;

typedef struct mlt_peer {
  size_t size;
  const char* host;
  uint16_t rank;
  uint16_t control_port;
  uint32_t reserved; /* 0 */
} mlt_peer;

typedef struct mlt_send_options {
  size_t size;
  const void* data;
  size_t bytes;
  uint64_t tag;                      /* below 2^63; matches the receive's */
  int64_t timeout_ns;                /* 0: the context's operation_timeout_ns */
  const uint8_t* segment_priorities; /* one per segment (mlt_segment_count()); NULL: all alike */
  size_t segment_priority_count;
  uint32_t element;
  uint32_t layer;        /* of `layers`; 0 is the front of the model. Decides class and send order */
  uint32_t layers;       /* 0: 1 */
  uint32_t by_magnitude; /* 1: segments of large values are the important ones; without segment_priorities */
  uint16_t to;
  uint16_t reserved[3]; /* 0 */
} mlt_send_options;

typedef struct mlt_receive_options {
  size_t size;
  void* data;
  size_t bytes; /* exactly as many as are sent; with up_to, as many or more */
  uint64_t tag;
  int64_t timeout_ns;  /* 0: the context's operation_timeout_ns */
  int64_t deadline_ns; /* the receive completes then with what arrived; with up_to it fails if nothing did. 0: none */
  double loss_bound;   /* fraction that may be missing, [0, 1); above 0 for floating point only */
  uint32_t element;
  uint32_t keep_missing; /* 1: missing ranges keep what the buffer held; 0: they become zero */
  uint32_t eager;        /* 1: complete as soon as 1 - loss_bound has arrived */
  uint16_t from;
  uint16_t
      up_to; /* 1: takes up to `bytes` bytes, and the completion's total_bytes, ranges and bound are of what was sent */
} mlt_receive_options;

typedef struct mlt_tensor {
  void* data;
  size_t bytes;
} mlt_tensor;

/* Of every collective. All members of a group call the same ones in the same order. Members that a collective does not
 * use must be 0. All-reduce and broadcast work in place, on `output`. */
typedef struct mlt_collective_options {
  size_t size;
  const uint16_t* ranks; /* the group in its order; NULL: every rank of the job */
  size_t rank_count;
  const void* input;
  size_t input_bytes;
  void* output;
  size_t output_bytes;
  const uint64_t*
      send_bytes; /* all-to-all: of each part of the input; NULL: equal parts. As many as the group has ranks */
  const uint64_t* receive_bytes; /* the same of the output */
  int64_t timeout_ns;            /* 0: the context's operation_timeout_ns */
  double loss_bound;             /* fraction that may be missing, [0, 1) */
  uint32_t stream;               /* two streams of the same ranks are two groups, each with an order of its own */
  uint32_t element;
  uint32_t reduction; /* all-reduce, reduce-scatter and reduce */
  uint32_t layer;
  uint32_t layers;    /* 0: 1 */
  uint16_t root;      /* gather, broadcast, reduce and scatter */
  uint16_t algorithm; /* all-reduce, broadcast, reduce, all-gather, reduce-scatter: the same on every rank */
  /* All-reduce and broadcast, instead of output: tensors that are carried as one, in this order, through memory of the
   * library's, unless there is only one. They change then only if the collective succeeds. The ranks compare the sum of
   * their sizes, not each. */
  const mlt_tensor* tensors;
  size_t tensor_count;
  /* All-reduce: 1: results may be lost too, up to the loss bound, and the ranks end with different bits
   * (docs/collectives.md); the same on every rank */
  uint32_t lossy_results;
  /* 1: a NaN or an infinity in this rank's floating-point input ends the call at every rank, and nothing of it is sent
   */
  uint32_t check_finite;
} mlt_collective_options;

typedef struct mlt_range {
  uint64_t offset_bytes;
  uint64_t length_bytes;
} mlt_range;

/* mlt_completion_release() frees what it points to; call it after every completion that was taken. */
typedef struct mlt_completion {
  uint64_t operation;
  uint64_t tag; /* of a send or receive */
  uint64_t total_bytes;
  uint64_t missing_bytes;
  uint64_t allowed_missing_bytes;
  uint64_t repaired_segments; /* sent again */
  int64_t elapsed_ns;
  const char* text;         /* "" unless the operation failed: rank, operation, peer, tag and cause */
  const mlt_range* missing; /* of a receive; ascending */
  size_t missing_count;
  void* owned;
  int32_t error;       /* MLT_OK, or why it failed */
  int32_t failed_peer; /* the rank at fault; -1: none */
  uint32_t status;
  uint32_t verb;
  uint32_t peer; /* of a send or receive */
  uint32_t reserved;
} mlt_completion;

/* Of the calling thread's last call that failed: its text, valid until the thread's next call that fails, and the rank
 * at fault (-1: none). */
MLT_API const char* mlt_error_text(void);
MLT_API int mlt_error_peer(void);
/* "MLT_ERROR_CONFIG" for 1, and so on; "unknown" for what is no code. */
MLT_API const char* mlt_error_name(int code);
/* The version of PROTOCOL.md that this library speaks; ranks of another one are rejected. */
MLT_API uint16_t mlt_protocol_version(void);

/* mlt_options_init(&options, sizeof options): the defaults. */
MLT_API int mlt_options_init(mlt_options* options, size_t options_bytes);
/* Binds the ports. */
MLT_API int mlt_create(const mlt_options* options, mlt_context** context);
/* Closes and frees it. NULL does nothing. */
MLT_API void mlt_destroy(mlt_context* context);
/* What other ranks connect to; 0 if context is NULL. */
MLT_API uint16_t mlt_control_port(const mlt_context* context);
/* Connects to every other rank of the job, and returns when all are up. For once: after an error the context is closed,
 * unless peers was rejected (MLT_ERROR_CONFIG). timeout_ns < 0: waits without end. */
MLT_API int mlt_connect(mlt_context* context, const mlt_peer* peers, size_t peer_count, int64_t timeout_ns);
/* The same without waiting: starts to connect to these peers, which no call has named before, and returns. Ranks whose
 * addresses are not known yet may follow in later calls; they may also come up before, by connecting to this rank,
 * which mlt_peer_is_up() shows. So with peer_count 0 this rank only accepts. A peer that is not up when timeout_ns has
 * passed has failed (< 0: waits without end). Host names, unlike numeric addresses, are looked up before it returns. */
MLT_API int mlt_connect_start(mlt_context* context, const mlt_peer* peers, size_t peer_count, int64_t timeout_ns);
/* MLT_OK: all peers that were named are up. MLT_IN_PROGRESS: not yet. Any other result is the error of one that failed,
 * as of mlt_connect; the context stays open, and operations with the others work. Never blocks. */
MLT_API int mlt_connect_test(mlt_context* context);
/* The host of each rank of the job, by any number: ranks of one number share a host. The same at every rank, once,
 * before the first collective. Large collectives then may send less between hosts (TWO_LEVEL). */
MLT_API int mlt_set_hosts(mlt_context* context, const uint16_t* hosts, size_t rank_count);
/* Says goodbye to the peers and cancels what is in progress; its completions can still be taken. `failure`: why this
 * rank ends before its work is done, which its peers report; NULL or "": it is done. */
MLT_API int mlt_close(mlt_context* context, const char* failure);

/* Sets *up to 1 if the peer is connected, else to 0. */
MLT_API int mlt_peer_is_up(mlt_context* context, uint16_t rank, int* up);
/* Why the peer failed, cut to `capacity` bytes with the zero at the end; "" while it is up or after its goodbye. */
MLT_API int mlt_peer_failure(mlt_context* context, uint16_t rank, char* text, size_t capacity);
/* Segments of a tensor of total_bytes to a connected peer. */
MLT_API int mlt_segment_count(mlt_context* context, uint16_t peer, uint64_t total_bytes, uint32_t* segments);

/* Each starts an operation and sets *operation to its number. On an error nothing was started. */
MLT_API int mlt_post_send(mlt_context* context, const mlt_send_options* options, uint64_t* operation);
MLT_API int mlt_post_receive(mlt_context* context, const mlt_receive_options* options, uint64_t* operation);
/* Many at once, for small tensors: one lock, and packets that leave together. options: `count` structures of one size.
 * Sets operations[i] to the number of options[i]. On an error, whose text says which of them it is about, none was
 * started: the arguments, an absent peer, MLT_MAX_OPERATIONS. What ends an operation after its post is in its
 * completion, as of a single post: too many tags (MLT_MAX_TAGS), or a peer that fails meanwhile. */
MLT_API int mlt_post_sends(mlt_context* context, const mlt_send_options* options, size_t count, uint64_t* operations);
MLT_API int mlt_post_receives(mlt_context* context, const mlt_receive_options* options, size_t count,
                              uint64_t* operations);
MLT_API int mlt_post_all_reduce(mlt_context* context, const mlt_collective_options* options, uint64_t* operation);
MLT_API int mlt_post_all_to_all(mlt_context* context, const mlt_collective_options* options, uint64_t* operation);
MLT_API int mlt_post_gather(mlt_context* context, const mlt_collective_options* options, uint64_t* operation);
MLT_API int mlt_post_all_gather(mlt_context* context, const mlt_collective_options* options, uint64_t* operation);
MLT_API int mlt_post_reduce_scatter(mlt_context* context, const mlt_collective_options* options, uint64_t* operation);
MLT_API int mlt_post_broadcast(mlt_context* context, const mlt_collective_options* options, uint64_t* operation);
MLT_API int mlt_post_reduce(mlt_context* context, const mlt_collective_options* options, uint64_t* operation);
MLT_API int mlt_post_scatter(mlt_context* context, const mlt_collective_options* options, uint64_t* operation);
MLT_API int mlt_post_barrier(mlt_context* context, const mlt_collective_options* options, uint64_t* operation);
/* The operation ends as cancelled, unless it ended already; its completion must be taken. */
MLT_API int mlt_cancel(mlt_context* context, uint64_t operation);

/* Take completions. completion_bytes is sizeof(mlt_completion). The result is of the call: whether the operation failed
 * is in the completion's `error`. */

/* Up to `capacity` completions that no thread waits for, oldest first; *taken is how many. If there are none: waits for
 * one until timeout_ns passed (0: returns at once; < 0: without end) or the context is closed, and *taken may be 0. */
MLT_API int mlt_poll(mlt_context* context, mlt_completion* completions, size_t completion_bytes, size_t capacity,
                     int64_t timeout_ns, size_t* taken);
/* MLT_OK: the operation ended, and *completion is set. MLT_IN_PROGRESS: not yet. Never blocks. */
MLT_API int mlt_test(mlt_context* context, uint64_t operation, mlt_completion* completion, size_t completion_bytes);
/* The same, but waits for up to timeout_ns (< 0: without end). */
MLT_API int mlt_wait(mlt_context* context, uint64_t operation, int64_t timeout_ns, mlt_completion* completion,
                     size_t completion_bytes);
/* mlt_wait() for `count` operations, whose completions are written in the same order once the last has ended. Any other
 * result: none was taken. */
MLT_API int mlt_wait_all(mlt_context* context, const uint64_t* operations, size_t count, int64_t timeout_ns,
                         mlt_completion* completions, size_t completion_bytes);
MLT_API void mlt_completion_release(mlt_completion* completion);

#ifdef __cplusplus
}
#endif

#endif
