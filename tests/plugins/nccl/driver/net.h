// NCCL's part, without a GPU: loads a network plugin as NCCL does, and calls its table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "plugins/nccl/net_table.h"

namespace driver {

using mlt::nccl::Result;

// Ends the process with a line that names the place, because it may be a child that no test framework watches.
[[noreturn]] void failed(const char* file, int line, const std::string& text);
#define MUST(condition) ((condition) ? void() : driver::failed(__FILE__, __LINE__, #condition))
#define OK(call) driver::must_succeed((call), __FILE__, __LINE__, #call)
void must_succeed(Result result, const char* file, int line, const char* call);

using Handle = std::vector<char>;

// One version of a plugin's table. Sizes are those of the newest version.
class Net {
 public:
  // Loads `library` and finds the table of `version`, 8 or 11.
  Net(const std::string& library, int version);
  ~Net();
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;

  Result init(int traffic_class = mlt::nccl::kTrafficClassUnset);
  Result listen(Handle& handle, void** listener, int device = 0);
  Result connect(const Handle& handle, void** connection);
  Result accept(void* listener, void** connection);
  Result send(void* connection, const void* data, std::size_t size, void** request);
  Result receive(void* connection, void* data, std::size_t size, void** request, int count = 1);
  Result test(void* request, bool* done, std::size_t* size);
  Result close_send(void* connection);
  Result close_receive(void* connection);
  Result close_listener(void* listener);
  void finalize();  // of version 11

  mlt::nccl::TableV8 v8{};
  mlt::nccl::TableV11 v11{};

 private:
  void* library_ = nullptr;
  const int version_;
  void* context_ = nullptr;
};

// What the plugin wrote to NCCL's log in this process; waits for nothing.
std::string log_text();

// An operation that was started, and its end.
struct Pending {
  void* request = nullptr;
  std::size_t size = 0;  // when done
};

// Repeat calls as NCCL's progress thread does, and fail after a minute.
void connect_pair(Net& net, void** sender, void** receiver);
void* connect_until_up(Net& net, const Handle& handle);
void* accept_until_up(Net& net, void* listener);
Pending send(Net& net, void* connection, const void* data, std::size_t size);
Pending receive(Net& net, void* connection, void* data, std::size_t size);
void finish(Net& net, Pending& pending);
// Until the request fails; returns how.
Result finish_failing(Net& net, void* request);

// True once a second or so has passed after a minute: for loops that poll.
class Deadline {
 public:
  explicit Deadline(double seconds = 60);
  bool passed() const;

 private:
  double until_;
};
double now_seconds();

// Bytes that depend on both numbers.
std::vector<char> pattern(std::size_t size, std::uint64_t seed);

}  // namespace driver
