#include "connection.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "log.h"

namespace mlt::nccl {

namespace {

constexpr std::uint64_t kDataTag = 0;
constexpr std::uint64_t kIntroductionTag = 1;
constexpr std::uint16_t kReceiverRank = 0;

// Number of forks between this process and the one that loaded the library: a load, where getpid() is a system call.
std::atomic<std::uint32_t> forks{0};
const int watches_forks = ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });

void fill_random(void* data, std::size_t bytes) {
  if (::getrandom(data, bytes, 0) == static_cast<ssize_t>(bytes)) return;
  throw Error(ErrorCode::kSystem, std::string("no random bytes from the system: ") + std::strerror(errno));
}

// The options of one end. Both ends must know the handle's secret, and MLT_JOB_SECRET if it is set.
Options options_of(const Settings& settings, const Handle& handle, std::uint16_t rank) {
  Options options = settings.options;
  options.rank = rank;
  options.job = handle.job;
  options.secret.assign(handle.secret.data(), handle.secret.size());
  options.secret += settings.job_secret;
  return options;
}

std::string process_name(const std::string& address, std::uint32_t process) {
  return address + " (process " + std::to_string(process) + ")";
}

}  // namespace

LibraryPin::LibraryPin() {
  Dl_info own{};
  if (::dladdr(&forks, &own) == 0) return;
  library_ = ::dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
}

LibraryPin::~LibraryPin() {
  if (library_ != nullptr) ::dlclose(library_);
}

Connection::Connection(End end, const Options& options, int traffic_class)
    : forks_(forks.load()),
      end_(end),
      layer_(traffic_class == kTrafficClassUnset ? 0 : static_cast<std::uint32_t>(traffic_class)),
      layers_(traffic_class == kTrafficClassUnset ? 1 : kTrafficClasses),
      engine_(std::make_unique<Engine>(options)) {
  if (watches_forks != 0) throw Error(ErrorCode::kSystem, "pthread_atfork() failed: out of memory");
  for (Request& request : requests_) {
    request.connection = this;
    free_[free_count_] = static_cast<std::uint16_t>(free_count_);
    ++free_count_;
  }
}

Connection::~Connection() {
  if (is_fork()) {
    static_cast<void>(engine_.release());  // joining its threads would hang, and only the parent may say goodbye
    return;
  }
  try {
    report_end();
  } catch (const std::exception&) {  // the report is not worth a failure
  }
  const std::size_t in_progress = kRequests - free_count_;
  try {
    engine_->close(in_progress == 0 ? ""
                                    : "NCCL closed the connection with " + std::to_string(in_progress) +
                                          " requests in progress: the communicator was aborted, or the program ended");
  } catch (...) {
    report_exception("close: ");
  }
}

bool Connection::is_fork() const { return forks.load(std::memory_order_relaxed) != forks_; }

void Connection::check_process() const {
  if (is_fork()) {
    throw Error(ErrorCode::kClosed,
                "the connection belongs to the parent of this process: initialize NCCL after the fork, or start the "
                "process with the spawn method");
  }
}

std::unique_ptr<Connection> Connection::listen(const Settings& settings, Handle& handle) {
  handle = Handle();
  fill_random(&handle.job, sizeof handle.job);
  fill_random(handle.secret.data(), handle.secret.size());
  handle.protocol = protocol_version();
  handle.job_name = settings.job_name;
  handle.process = static_cast<std::uint32_t>(::getpid());
  const std::string& host = settings.options.host;
  std::copy_n(host.begin(), std::min(host.size(), handle.host.size() - 1), handle.host.begin());
  std::unique_ptr<Connection> made(
      new Connection(End::kReceiver, options_of(settings, handle, kReceiverRank), kTrafficClassUnset));
  handle.control_port = made->engine_->control_port();
  made->engine_->start_connect({}, -1);
  return made;
}

std::unique_ptr<Connection> Connection::connect(const Settings& settings, const Handle& handle, int traffic_class) {
  const std::string host(handle.host.data(), ::strnlen(handle.host.data(), handle.host.size()));
  if (handle.mark != Handle::kMark) {
    throw Error(ErrorCode::kPeerMismatch,
                "the receiver's handle is not mlt's: that rank uses another network; set NCCL_NET_PLUGIN=mlt for all "
                "ranks, and look in its log (NCCL_DEBUG=INFO) for the reason if it is set");
  }
  const std::string peer = process_name(host, handle.process);
  if (handle.protocol != protocol_version()) {
    throw Error(ErrorCode::kPeerMismatch, peer + " speaks version " + std::to_string(handle.protocol) +
                                              " of mlt's protocol, and this process version " +
                                              std::to_string(protocol_version()) + ": install the same mlt everywhere");
  }
  if (handle.job_name != settings.job_name) {
    throw Error(ErrorCode::kPeerMismatch, peer + " has another MLT_JOB than this process: give all ranks the same");
  }
  std::unique_ptr<Connection> made(
      new Connection(End::kSender, options_of(settings, handle, kReceiverRank + 1), traffic_class));
  made->peer_ = peer;
  made->introduction_ = process_name(settings.options.host, static_cast<std::uint32_t>(::getpid()));
  const PeerAddress address{kReceiverRank, host, handle.control_port};
  made->engine_->start_connect(std::span(&address, 1), settings.connect_timeout_ns);
  return made;
}

bool Connection::is_up() {
  check_process();
  if (end_ == End::kSender) {
    try {
      if (!engine_->test_connected()) return false;
    } catch (const Error& error) {
      fail(error.code(), "connect", error.what());
    }
    send_introduction();
    return true;
  }
  return has_introduction();
}

// The receiver of a connection has no handle of its sender: the sender's first message identifies it.
void Connection::send_introduction() {
  SendOptions options;
  options.to = peer_rank();
  options.tag = kIntroductionTag;
  options.data = std::as_bytes(std::span(introduction_));
  engine_->post_send(options);
}

void Connection::receive_introduction() {
  ReceiveOptions options;
  options.from = peer_rank();
  options.tag = kIntroductionTag;
  options.data = std::as_writable_bytes(std::span(introduced_)).first(introduced_.size() - 1);
  options.up_to = true;
  options.timeout_ns = kNoLimitNs;
  introduction_receive_ = engine_->post_recv(options);
}

bool Connection::has_introduction() {
  if (!introduction_receive_) {
    if (engine_->is_peer_up(peer_rank())) {
      receive_introduction();
    } else if (engine_->has_peer_left(peer_rank()) || !engine_->peer_failure(peer_rank()).empty()) {
      // It came and went between two calls of NCCL.
      fail(ErrorCode::kPeerFailed, "accept", engine_->peer_failure(peer_rank()));
    } else {
      return false;
    }
  }
  const std::optional<Completion> done = engine_->test(*introduction_receive_);
  if (!done) return false;
  introduction_receive_.reset();  // its completion is taken
  if (done->failed()) fail(ErrorCode::kPeerFailed, "accept", done->error);
  peer_ = introduced_.data();
  return true;
}

Request* Connection::take_request() {
  check_process();
  if (free_count_ == 0) return nullptr;
  Request* request = &requests_[free_[--free_count_]];
  request->number = ++posted_;
  return request;
}

void Connection::free_request(Request* request) {
  request->number = 0;
  free_[free_count_++] = static_cast<std::uint16_t>(request - requests_.data());
}

Request* Connection::send(const void* data, std::size_t bytes) {
  Request* request = take_request();
  if (request == nullptr) return nullptr;
  SendOptions options;
  options.to = peer_rank();
  options.tag = kDataTag;
  options.data = {static_cast<const std::byte*>(data), bytes};
  options.layer = layer_;
  options.layers = layers_;
  try {
    request->operation = engine_->post_send(options);
  } catch (const Error& error) {
    free_request(request);
    fail(error.code(), "send", error.what());
  }
  return request;
}

Request* Connection::receive(void* data, std::size_t max_bytes) {
  Request* request = take_request();
  if (request == nullptr) return nullptr;
  ReceiveOptions options;
  options.from = peer_rank();
  options.tag = kDataTag;
  options.data = {static_cast<std::byte*>(data), max_bytes};
  options.up_to = true;
  try {
    request->operation = engine_->post_recv(options);
  } catch (const Error& error) {
    free_request(request);
    fail(error.code(), "receive", error.what());
  }
  return request;
}

bool Connection::test(Request* request, std::size_t* bytes) {
  Connection& own = *request->connection;
  own.check_process();
  if (request->number == 0) throw Error(ErrorCode::kConfig, "test() was called for a request that is complete");
  const std::optional<Completion> done = own.engine_->test(request->operation);
  if (!done) return false;
  const std::uint64_t number = request->number;
  own.free_request(request);
  if (done->failed()) {
    const ErrorCode code = done->status == Status::kPeerFailed     ? ErrorCode::kPeerFailed
                           : done->status == Status::kSizeMismatch ? ErrorCode::kSizeMismatch
                           : done->status == Status::kTimedOut     ? ErrorCode::kTimeout
                                                                   : ErrorCode::kSystem;
    own.fail(code, (own.end_ == End::kSender ? "send " : "receive ") + std::to_string(number), done->error);
  }
  *bytes = done->total_bytes;
  own.bytes_ += done->total_bytes;
  own.repaired_segments_ += done->repaired_segments;
  return true;
}

void Connection::report_end() const {
  if (posted_ == 0) return;
  std::string text = end_ == End::kSender ? "sent to " : "received from ";
  text += peer_ + ": " + std::to_string(posted_) + " transfers, " + std::to_string(bytes_) + " bytes, " +
          std::to_string(repaired_segments_) + " segments sent again";
  if (end_ == End::kSender) {
    std::string packets;
    for (const PathStatus& path : engine_->paths(peer_rank())) {
      packets += (packets.empty() ? "" : " ") + std::to_string(path.packets_sent);
    }
    text += ", packets by path: " + packets;
  }
  log_info(text);
}

void Connection::fail(ErrorCode code, const std::string& what, const std::string& cause) const {
  throw Error(code, what + (end_ == End::kSender ? " to " : " from ") + peer_ + ", rank " +
                        std::to_string(peer_rank()) +
                        " of this connection: " + (cause.empty() ? "it closed the connection" : cause));
}

}  // namespace mlt::nccl
