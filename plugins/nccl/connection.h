// A connection of NCCL: one direction between two processes. Behind it is a context of two ranks, of which the receiver
// is rank 0 and the sender rank 1, because NCCL names neither its ranks nor their number when it connects.
//
// All transfers of a connection have one tag, so that the k-th send matches the k-th receive. Each connection has a
// random job number and secret, which its handle carries to the sender over NCCL's own bootstrap.
// NCCL calls the functions of a connection from one thread at a time; several connections may have several threads.
//
// A process that was forked has none of the threads, and its sockets are its parent's: there, a connection only fails,
// and its end does nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "mlt.h"
#include "net_table.h"
#include "settings.h"

namespace mlt::nccl {

// What listen() returns and NCCL carries to the sender.
struct Handle {
  static constexpr std::uint32_t kMark = 0x314e'746c;  // other plugins' handles have none
  std::uint32_t mark = kMark;
  std::uint16_t protocol = 0;
  std::uint16_t control_port = 0;
  std::uint64_t job = 0;       // random
  std::uint64_t job_name = 0;  // hash of MLT_JOB
  std::uint32_t process = 0;
  std::array<char, 32> secret{};
  std::array<char, 48> host{};
};
static_assert(sizeof(Handle) <= kHandleBytes);

class Connection;

// An operation in progress; of its connection's pool.
struct Request {
  Connection* connection = nullptr;
  OperationId operation = 0;
  std::uint64_t number = 0;  // of the connection's sends or receives, from 1; 0: free
};

// Keeps this library loaded: NCCL unloads it after its last communicator, also if that was aborted and left connections
// open, whose threads run code of the library.
class LibraryPin {
 public:
  LibraryPin();
  ~LibraryPin();
  LibraryPin(const LibraryPin&) = delete;
  LibraryPin& operator=(const LibraryPin&) = delete;

 private:
  void* library_ = nullptr;
};

class Connection {
 public:
  // Twice what NCCL has in progress on a connection.
  static constexpr std::size_t kRequests = 2 * kMaxRequests;

  // The receiver's end: listens, and fills `handle`. `traffic_class` is kTrafficClassUnset or a class.
  static std::unique_ptr<Connection> listen(const Settings& settings, Handle& handle);
  // The sender's end: starts to connect to the listener that filled `handle`.
  static std::unique_ptr<Connection> connect(const Settings& settings, const Handle& handle, int traffic_class);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Whether it is up. Never blocks. Throws mlt::Error that names the peer if it failed.
  bool is_up();

  // Null if as many as possible are in progress. Throw mlt::Error.
  Request* send(const void* data, std::size_t bytes);
  Request* receive(void* data, std::size_t max_bytes);
  // Whether it is complete; then sets *bytes, and frees the request, also if it throws mlt::Error because it failed.
  static bool test(Request* request, std::size_t* bytes);

  const std::string& peer() const { return peer_; }

 private:
  enum class End { kReceiver, kSender };
  Connection(End end, const Options& options, int traffic_class);

  std::uint16_t peer_rank() const { return end_ == End::kReceiver ? 1 : 0; }
  Request* take_request();
  void free_request(Request* request);
  bool is_fork() const;
  void check_process() const;
  [[noreturn]] void fail(ErrorCode code, const std::string& what, const std::string& cause) const;
  void report_end() const;
  void send_introduction();
  void receive_introduction();
  bool has_introduction();

  const LibraryPin pin_;       // declared first: everything else ends before
  const std::uint32_t forks_;  // when it was made
  const End end_;
  const std::uint32_t layer_;  // of `layers_`: what the core makes the traffic class of
  const std::uint32_t layers_;
  std::string peer_ = "a process that has not connected yet";
  std::string introduction_;            // of this process to the receiver
  std::array<char, 128> introduced_{};  // of the sender
  std::optional<OperationId> introduction_receive_;
  std::uint64_t posted_ = 0;
  std::uint64_t bytes_ = 0;  // of transfers that are complete
  std::uint64_t repaired_segments_ = 0;
  std::array<Request, kRequests> requests_;
  std::array<std::uint16_t, kRequests> free_;
  std::size_t free_count_ = 0;
  std::unique_ptr<Engine> engine_;  // declared last: its threads stop before the buffers above end
};

}  // namespace mlt::nccl
