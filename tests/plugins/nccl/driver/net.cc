#include "net.h"

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace driver {

namespace {

std::mutex log_mutex;
std::string log_lines;

void log(mlt::nccl::LogLevel level, unsigned long, const char*, int, const char* format, ...) {
  char line[4'096];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  const std::lock_guard lock(log_mutex);
  log_lines += (level == mlt::nccl::kLogWarn ? "WARN " : "INFO ") + std::string(line) + "\n";
}

}  // namespace

void failed(const char* file, int line, const std::string& text) {
  std::printf("process %d: %s:%d: %s failed; the plugin's log:\n%s", ::getpid(), file, line, text.c_str(),
              log_text().c_str());
  std::fflush(stdout);
  ::_exit(1);
}

void must_succeed(Result result, const char* file, int line, const char* call) {
  if (result != mlt::nccl::kSuccess) failed(file, line, std::string(call) + " (" + std::to_string(result) + ")");
}

std::string log_text() {
  const std::lock_guard lock(log_mutex);
  return log_lines;
}

Net::Net(const std::string& library, int version) : version_(version) {
  library_ = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) failed(__FILE__, __LINE__, ::dlerror());
  const void* table = ::dlsym(library_, version == 8 ? "ncclNetPlugin_v8" : "ncclNetPlugin_v11");
  MUST(table != nullptr);
  if (version == 8) v8 = *static_cast<const mlt::nccl::TableV8*>(table);
  if (version == 11) v11 = *static_cast<const mlt::nccl::TableV11*>(table);
}

Net::~Net() {
  finalize();
  ::dlclose(library_);
}

Result Net::init(int traffic_class) {
  if (version_ == 8) return v8.init(log);
  mlt::nccl::CommunicatorConfigV11 config{traffic_class};
  return v11.init(&context_, 77, &config, log, nullptr);
}

void Net::finalize() {
  if (context_ != nullptr) OK(v11.finalize(context_));
  context_ = nullptr;
}

Result Net::listen(Handle& handle, void** listener, int device) {
  handle.assign(mlt::nccl::kHandleBytes, '\0');
  return version_ == 8 ? v8.listen(device, handle.data(), listener)
                       : v11.listen(context_, device, handle.data(), listener);
}

Result Net::connect(const Handle& handle, void** connection) {
  Handle copy = handle;
  void* offload = nullptr;
  return version_ == 8 ? v8.connect(0, copy.data(), connection, &offload)
                       : v11.connect(context_, 0, copy.data(), connection, &offload);
}

Result Net::accept(void* listener, void** connection) {
  void* offload = nullptr;
  return version_ == 8 ? v8.accept(listener, connection, &offload) : v11.accept(listener, connection, &offload);
}

Result Net::send(void* connection, const void* data, std::size_t size, void** request) {
  void* bytes = const_cast<void*>(data);
  void* memory = nullptr;
  if (version_ == 8) {
    OK(v8.register_memory(connection, bytes, size, mlt::nccl::kHostMemory, &memory));
    const Result result = v8.send(connection, bytes, static_cast<int>(size), 3, memory, request);
    OK(v8.deregister_memory(connection, memory));
    return result;
  }
  return v11.send(connection, bytes, size, 3, memory, nullptr, request);
}

Result Net::receive(void* connection, void* data, std::size_t size, void** request, int count) {
  int tag = 3;
  void* memory = nullptr;
  if (version_ == 8) {
    int bytes = static_cast<int>(size);
    return v8.receive(connection, count, &data, &bytes, &tag, &memory, request);
  }
  *request = reinterpret_cast<void*>(1);  // NCCL's mark of a receive whose completion is optional
  void* event = nullptr;
  return v11.receive(connection, count, &data, &size, &tag, &memory, &event, request);
}

Result Net::test(void* request, bool* done, std::size_t* size) {
  int is_done = -1, bytes = -1;
  const Result result = version_ == 8 ? v8.test(request, &is_done, &bytes) : v11.test(request, &is_done, &bytes);
  *done = is_done == 1;
  if (*done) *size = static_cast<std::size_t>(bytes);
  return result;
}

Result Net::close_send(void* connection) {
  return version_ == 8 ? v8.close_send(connection) : v11.close_send(connection);
}
Result Net::close_receive(void* connection) {
  return version_ == 8 ? v8.close_receive(connection) : v11.close_receive(connection);
}
Result Net::close_listener(void* listener) {
  return version_ == 8 ? v8.close_listener(listener) : v11.close_listener(listener);
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
Deadline::Deadline(double seconds) : until_(now_seconds() + seconds) {}
bool Deadline::passed() const { return now_seconds() > until_; }

void* connect_until_up(Net& net, const Handle& handle) {
  const Deadline deadline;
  void* connection = nullptr;
  while (connection == nullptr) {
    OK(net.connect(handle, &connection));
    MUST(!deadline.passed());
  }
  return connection;
}

void* accept_until_up(Net& net, void* listener) {
  const Deadline deadline;
  void* connection = nullptr;
  while (connection == nullptr) {
    OK(net.accept(listener, &connection));
    MUST(!deadline.passed());
  }
  return connection;
}

void connect_pair(Net& net, void** sender, void** receiver) {
  const Deadline deadline;
  Handle handle;
  void* listener = nullptr;
  OK(net.listen(handle, &listener));
  *sender = *receiver = nullptr;
  while (*sender == nullptr || *receiver == nullptr) {
    if (*sender == nullptr) OK(net.connect(handle, sender));
    if (*receiver == nullptr) OK(net.accept(listener, receiver));
    MUST(!deadline.passed());
  }
  OK(net.close_listener(listener));
}

Pending send(Net& net, void* connection, const void* data, std::size_t size) {
  Pending pending;
  OK(net.send(connection, data, size, &pending.request));
  MUST(pending.request != nullptr);
  return pending;
}

Pending receive(Net& net, void* connection, void* data, std::size_t size) {
  Pending pending;
  OK(net.receive(connection, data, size, &pending.request));
  MUST(pending.request != nullptr);
  return pending;
}

void finish(Net& net, Pending& pending) {
  const Deadline deadline;
  for (bool done = false; !done;) {
    OK(net.test(pending.request, &done, &pending.size));
    if (!done) ::sched_yield();  // as NCCL's proxy thread where no request progressed
    MUST(!deadline.passed());
  }
}

Result finish_failing(Net& net, void* request) {
  const Deadline deadline;
  for (;;) {
    bool done = false;
    std::size_t size = 0;
    const Result result = net.test(request, &done, &size);
    if (result != mlt::nccl::kSuccess) return result;
    MUST(!done);
    MUST(!deadline.passed());
  }
}

std::vector<char> pattern(std::size_t size, std::uint64_t seed) {
  std::vector<char> bytes(size);
  std::uint64_t state = seed * 0x9e37'79b9'7f4a'7c15 + 1;
  for (char& one : bytes) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    one = static_cast<char>(state);
  }
  return bytes;
}

}  // namespace driver
