// Contexts of the C API: options, connecting, peers, and the thread's last error.
#include "c/context.h"

#include <cstdio>
#include <limits>
#include <memory>
#include <vector>

namespace mlt::c {

namespace {

constexpr std::size_t kTextBytes = 2'048;
thread_local char last_text[kTextBytes] = "";
thread_local int last_peer = -1;

Options options_of(const mlt_options& given) {
  check(given.secret_bytes == 0 || given.secret != nullptr, "mlt_create", "secret is NULL, and secret_bytes is not 0");
  check(given.insecure <= 1, "mlt_create", "insecure must be 0 or 1");
  check(given.shares_by_rate <= 1, "mlt_create", "shares_by_rate must be 0 or 1");
  check(given.checksums <= 1, "mlt_create", "checksums must be 0 or 1");
  check(given.erasure_correction <= 1, "mlt_create", "erasure_correction must be 0 or 1");
  check(given.connects_on_use <= 1, "mlt_create", "connects_on_use must be 0 or 1");
  Options options;
  options.rank = given.rank;
  options.ranks = given.ranks;
  options.job = given.job;
  if (given.secret_bytes > 0) options.secret.assign(static_cast<const char*>(given.secret), given.secret_bytes);
  options.insecure = given.insecure != 0;
  if (given.host != nullptr) options.host = given.host;
  if (given.datapath != nullptr) options.datapath = given.datapath;
  options.udp_port = given.udp_port;
  options.control_port = given.control_port;
  options.segment_bytes = given.segment_bytes;
  options.line_rate_bits_per_second = given.line_rate_bits_per_second;
  options.receive_buffer_bytes = given.receive_buffer_bytes;
  options.operation_timeout_ns = given.operation_timeout_ns;
  options.peer_timeout_ns = given.peer_timeout_ns;
  options.suspended_timeout_ns = given.suspended_timeout_ns;
  options.spin_us = given.spin_us;
  options.shares_by_rate = given.shares_by_rate != 0;
  options.checksums = given.checksums != 0;
  options.erasure_correction = given.erasure_correction != 0;
  options.connects_on_use = given.connects_on_use != 0;
  options.max_operations = given.max_operations;
  options.max_tags = given.max_tags;
  options.early_segments = given.early_segments;
  options.early_transfers = given.early_transfers;
  options.max_window_mib = given.max_window_mib;
  options.busy_poll_us = given.busy_poll_us;
  return options;
}

mlt_options defaults() {
  const Options options;
  mlt_options given{};
  given.size = sizeof given;
  given.ranks = options.ranks;
  given.operation_timeout_ns = options.operation_timeout_ns;
  given.peer_timeout_ns = options.peer_timeout_ns;
  given.suspended_timeout_ns = options.suspended_timeout_ns;
  given.spin_us = options.spin_us;
  given.shares_by_rate = options.shares_by_rate ? 1 : 0;
  given.checksums = options.checksums ? 1 : 0;
  given.erasure_correction = options.erasure_correction ? 1 : 0;
  given.connects_on_use = options.connects_on_use ? 1 : 0;
  given.max_operations = options.max_operations;
  given.max_tags = options.max_tags;
  given.early_segments = options.early_segments;
  given.early_transfers = options.early_transfers;
  given.max_window_mib = options.max_window_mib;
  return given;
}

std::string ranks_of(const mlt_context& context) {
  return context.ranks == 1 ? "rank 0 only" : "ranks 0 to " + std::to_string(context.ranks - 1);
}

// Other ranks, each once. An array of structures whose size is the caller's: each one's `size` is the way to the next.
std::vector<PeerAddress> peers_of(const mlt_context& context, const mlt_peer* given, std::size_t count, bool all,
                                  const std::string& function) {
  const auto wrong = [&](const std::string& text) {
    reject(function + ": rank " + std::to_string(context.rank) + ": " + text);
  };
  if (all && count != std::size_t{context.ranks} - 1) {
    wrong(std::to_string(count) + " peers for a job of " + std::to_string(context.ranks) +
          " ranks: give every other rank once");
  }
  std::vector<PeerAddress> peers;
  std::vector<bool> is_given(context.ranks);
  const auto* next = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = 0; i < count; ++i) {
    const auto* one = reinterpret_cast<const mlt_peer*>(next);
    const mlt_peer peer = read(one, function.c_str(), "a peer");
    next += peer.size;
    const std::string name = "peer " + std::to_string(i) + " is rank " + std::to_string(peer.rank);
    if (peer.rank >= context.ranks || peer.rank == context.rank) {
      wrong(name + ": it must be another rank of the job, which has " + ranks_of(context));
    }
    if (peer.reserved != 0) wrong(name + ": reserved must be 0");
    if (is_given[peer.rank]) wrong(name + ", which is given twice");
    if (peer.host == nullptr || peer.host[0] == '\0') wrong(name + " without a host");
    if (peer.control_port == 0) wrong(name + " without a control_port");
    is_given[peer.rank] = true;
    peers.push_back({peer.rank, peer.host, peer.control_port});
  }
  return peers;
}

void check_peer(const mlt_context& context, std::uint16_t rank, const char* function) {
  if (rank < context.ranks && rank != context.rank) return;
  throw Error(ErrorCode::kUnknownPeer,
              std::string(function) + ": rank " + std::to_string(rank) + " is not another rank of the job, which has " +
                  ranks_of(context),
              rank);
}

}  // namespace

int failed(int code, const char* text, int peer) noexcept {
  std::snprintf(last_text, sizeof last_text, "%s", text);
  last_peer = peer;
  return code;
}

}  // namespace mlt::c

using namespace mlt;

const char* mlt_error_text(void) { return c::last_text; }
int mlt_error_peer(void) { return c::last_peer; }
uint16_t mlt_protocol_version(void) { return protocol_version(); }

const char* mlt_error_name(int code) {
  switch (code) {
#define MLT_NAME(name) \
  case name:           \
    return #name
    MLT_NAME(MLT_IN_PROGRESS);
    MLT_NAME(MLT_OK);
    MLT_NAME(MLT_ERROR_CONFIG);
    MLT_NAME(MLT_ERROR_PORT_IN_USE);
    MLT_NAME(MLT_ERROR_RENDEZVOUS);
    MLT_NAME(MLT_ERROR_PEER_MISMATCH);
    MLT_NAME(MLT_ERROR_UNKNOWN_PEER);
    MLT_NAME(MLT_ERROR_PEER_FAILED);
    MLT_NAME(MLT_ERROR_BUFFER);
    MLT_NAME(MLT_ERROR_SIZE_MISMATCH);
    MLT_NAME(MLT_ERROR_TYPE_MISMATCH);
    MLT_NAME(MLT_ERROR_TIMEOUT);
    MLT_NAME(MLT_ERROR_CANCELLED);
    MLT_NAME(MLT_ERROR_LIMIT);
    MLT_NAME(MLT_ERROR_UNKNOWN_OPERATION);
    MLT_NAME(MLT_ERROR_CLOSED);
    MLT_NAME(MLT_ERROR_SYSTEM);
    MLT_NAME(MLT_ERROR_NO_MEMORY);
    MLT_NAME(MLT_ERROR_INTERNAL);
#undef MLT_NAME
    default:
      return "unknown";
  }
}

int mlt_options_init(mlt_options* options, size_t options_bytes) {
  return c::call([&] {
    c::check(options != nullptr, "mlt_options_init", "options is NULL");
    c::check(options_bytes >= c::kFirstBytes<mlt_options>, "mlt_options_init",
             "options_bytes is less than sizeof(mlt_options)");
    mlt_options known = c::defaults();
    known.size = options_bytes;
    std::memset(options, 0, options_bytes);
    std::memcpy(options, &known, std::min(options_bytes, sizeof known));
  });
}

int mlt_create(const mlt_options* options, mlt_context** context) {
  return c::call([&] {
    c::check(context != nullptr, "mlt_create", "context is NULL");
    *context = nullptr;
    *context = std::make_unique<mlt_context>(c::options_of(c::read(options, "mlt_create", "options"))).release();
  });
}

void mlt_destroy(mlt_context* context) { delete context; }

uint16_t mlt_control_port(const mlt_context* context) {
  return context == nullptr ? 0 : context->engine.control_port();
}

int mlt_connect(mlt_context* context, const mlt_peer* peers, size_t peer_count, int64_t timeout_ns) {
  return c::call([&] {
    mlt_context& own = c::checked(context, "mlt_connect");
    own.engine.connect(c::peers_of(own, peers, peer_count, true, "mlt_connect"), timeout_ns);
  });
}

int mlt_connect_start(mlt_context* context, const mlt_peer* peers, size_t peer_count, int64_t timeout_ns) {
  return c::call([&] {
    mlt_context& own = c::checked(context, "mlt_connect_start");
    own.engine.start_connect(c::peers_of(own, peers, peer_count, false, "mlt_connect_start"), timeout_ns);
  });
}

int mlt_connect_test(mlt_context* context) {
  bool up = false;
  const int code = c::call([&] { up = c::checked(context, "mlt_connect_test").engine.test_connected(); });
  return code != MLT_OK || up ? code : MLT_IN_PROGRESS;
}

int mlt_set_hosts(mlt_context* context, const uint16_t* hosts, size_t rank_count) {
  return c::call([&] {
    mlt_context& own = c::checked(context, "mlt_set_hosts");
    c::check(hosts != nullptr, "mlt_set_hosts", "hosts is NULL");
    own.engine.set_hosts({hosts, rank_count});
  });
}

int mlt_close(mlt_context* context, const char* failure) {
  return c::call([&] { c::checked(context, "mlt_close").engine.close(failure == nullptr ? "" : failure); });
}

int mlt_peer_is_up(mlt_context* context, uint16_t rank, int* up) {
  return c::call([&] {
    mlt_context& own = c::checked(context, "mlt_peer_is_up");
    c::check(up != nullptr, "mlt_peer_is_up", "up is NULL");
    c::check_peer(own, rank, "mlt_peer_is_up");
    *up = own.engine.is_peer_up(rank) ? 1 : 0;
  });
}

int mlt_peer_failure(mlt_context* context, uint16_t rank, char* text, size_t capacity) {
  return c::call([&] {
    mlt_context& own = c::checked(context, "mlt_peer_failure");
    c::check(text != nullptr && capacity > 0, "mlt_peer_failure", "text is NULL, or capacity 0");
    c::check_peer(own, rank, "mlt_peer_failure");
    std::snprintf(text, capacity, "%s", own.engine.peer_failure(rank).c_str());
  });
}

int mlt_segment_count(mlt_context* context, uint16_t peer, uint64_t total_bytes, uint32_t* segments) {
  return c::call([&] {
    mlt_context& own = c::checked(context, "mlt_segment_count");
    c::check(segments != nullptr, "mlt_segment_count", "segments is NULL");
    c::check_peer(own, peer, "mlt_segment_count");
    c::check(total_bytes <= std::numeric_limits<std::uint32_t>::max(), "mlt_segment_count",
             "total_bytes must be below 4 GiB");
    *segments = own.engine.segment_count(peer, total_bytes);
  });
}
