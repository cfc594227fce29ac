// NCCL's external network plugin over mlt: libnccl-net-mlt.so, loaded by NCCL_NET_PLUGIN=mlt. docs/nccl.md.
//
// One device, host memory, exact. Deliberately absent: GPU memory (NCCL stages it through host memory), grouped
// receives, device offload, merged devices.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "connection.h"
#include "log.h"
#include "mlt.h"
#include "net_table.h"
#include "settings.h"

namespace mlt::nccl {

namespace {

// A transfer has at most 4 GiB; NCCL cuts larger ones, and counts what it gets in an int.
constexpr std::size_t kMaxBytes = std::size_t{1} << 30;
// Of one end of a connection that shares memory or has a path, and per further path.
constexpr std::size_t kDescriptorsPerEnd = 10;

char device_name[] = "mlt";

// Of one communicator; of version 8, of all.
struct Communicator {
  int traffic_class = kTrafficClassUnset;
};

struct Listener {
  std::unique_ptr<Connection> connection;  // null: accepted
};

// A sender's end that NCCL has not got yet.
struct Connecting {
  std::unique_ptr<Connection> connection;
  const Communicator* owner = nullptr;
};

struct Process {
  std::mutex mutex;
  std::optional<Settings> settings;
  std::map<std::uint64_t, Connecting> connecting;  // by the handle's job
  Communicator version8;
};

// Never destroyed: NCCL may end its threads after static objects.
Process& process() {
  static auto* const the_process = new Process;
  return *the_process;
}

const Settings& settings() {
  const std::optional<Settings>& read = process().settings;
  if (!read) throw Error(ErrorCode::kConfig, "a function of the plugin was called before init()");
  return *read;
}

void check_device(int device) {
  if (device != 0) {
    throw Error(ErrorCode::kConfig, "device " + std::to_string(device) + " does not exist: there is device 0 only");
  }
}

void check(bool is_valid, const char* text) {
  if (!is_valid) throw Error(ErrorCode::kConfig, text);
}

// What an argument of a function points to.
template <typename Object, typename Pointer>
Object& given(Pointer* pointer, const char* name) {
  if (pointer == nullptr) throw Error(ErrorCode::kConfig, std::string("the argument ") + name + " is NULL");
  return *static_cast<Object*>(pointer);
}

template <typename Object>
Object& result(Object* pointer) {
  return given<Object>(pointer, "for the result");
}

// The body of init(). NCCL takes another network if that fails, and by default writes nothing: that must not go
// unnoticed.
template <typename Body>
Result starting(Body&& body) noexcept {
  try {
    body();
    return kSuccess;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mlt: the NCCL plugin does not start, and NCCL uses another network: %s\n", error.what());
    return report_exception("the plugin does not start: ");
  }
}

void start(Logger log) {
  set_logger(log);
  const std::lock_guard lock(process().mutex);
  if (process().settings) return;
  process().settings = read_settings();
  const Settings& now = *process().settings;
  log_info("interface " + now.interface.name + ", " + now.options.host + ", " +
           std::to_string(std::max<std::size_t>(now.options.paths.size(), 1)) + " path(s), datapath " +
           now.options.datapath);
}

Result devices(int* count) {
  return guarded([&] { result(count) = 1; });
}

int max_connections() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return 1;
  const std::size_t per_end = kDescriptorsPerEnd + 2 * settings().options.paths.size();
  return static_cast<int>(std::clamp<rlim_t>(files.rlim_cur / per_end, 1, 65'536));
}

template <typename Properties>
void fill_properties(int device, Properties& properties) {
  check_device(device);
  const Settings& now = settings();
  properties = Properties();
  properties.name = device_name;
  const std::string& path = now.interface.pci_path;
  properties.pci_path = path.empty() ? nullptr : const_cast<char*>(path.c_str());
  properties.guid = std::hash<std::string>()(now.options.host);
  properties.pointer_types = kHostMemory;
  properties.speed_mbps = now.speed_mbps;
  properties.max_connections = max_connections();
  properties.max_grouped_receives = 1;
  properties.offload_type = kNoDeviceOffload;
}

void listen(int device, void* handle, void** listener) {
  check_device(device);
  result(listener) = nullptr;
  check(handle != nullptr, "the argument handle is NULL");
  Handle filled;
  auto made = std::make_unique<Listener>();
  made->connection = Connection::listen(settings(), filled);
  std::memset(handle, 0, kHandleBytes);
  std::memcpy(handle, &filled, sizeof filled);
  *listener = made.release();
}

void connect(const Communicator& owner, int device, const void* handle, void** connection) {
  check_device(device);
  result(connection) = nullptr;
  check(handle != nullptr, "the argument handle is NULL");
  Handle known;
  std::memcpy(&known, handle, sizeof known);
  // NCCL repeats the call with the same handle until it is connected.
  Process& own = process();
  const std::lock_guard lock(own.mutex);
  auto found = own.connecting.find(known.job);
  if (found == own.connecting.end()) {
    auto made = Connection::connect(settings(), known, owner.traffic_class);
    found = own.connecting.emplace(known.job, Connecting{std::move(made), &owner}).first;
  }
  try {
    if (!found->second.connection->is_up()) return;
  } catch (...) {
    own.connecting.erase(found);
    throw;
  }
  log_info("sends to " + found->second.connection->peer());
  *connection = found->second.connection.release();
  own.connecting.erase(found);
}

Result accept(void* listener, void** connection, void**) {
  return guarded([&] {
    result(connection) = nullptr;
    auto& own = given<Listener>(listener, "listener");
    check(own.connection != nullptr, "accept() was called for a listener whose connection was accepted: each has one");
    if (!own.connection->is_up()) return;
    log_info("receives from " + own.connection->peer());
    *connection = own.connection.release();
  });
}

Result register_memory(void* connection, void*, std::size_t, int type, void** memory) {
  return guarded([&] {
    check(type == kHostMemory, "only host memory can be registered: the plugin does not reach the GPU's");
    result(memory) = connection;  // nothing to keep
  });
}

Result deregister_memory(void*, void*) { return kSuccess; }

template <typename Size>
Result send(void* connection, void* data, Size size, void** request) {
  return guarded([&] {
    result(request) = nullptr;
    check(std::in_range<int>(size) && size >= Size{0},
          "a send has 2 GiB or more, or a negative size: NCCL reports the size as an int");
    check(data != nullptr || size == 0, "the data of a send is NULL");
    *request = given<Connection>(connection, "connection").send(data, static_cast<std::size_t>(size));
  });
}

// `request` may hold NCCL's mark for a receive whose completion it does not need; it gets it all the same.
template <typename Size>
Result receive(void* connection, int count, void** data, const Size* sizes, void** request) {
  return guarded([&] {
    result(request) = nullptr;
    check(count == 1, "a receive is of one buffer: the plugin does not group receives");
    const Size size = given<const Size>(sizes, "sizes");
    check(std::in_range<std::size_t>(size), "the size of a receive is negative");
    const auto bytes = std::min<std::size_t>(static_cast<std::size_t>(size), std::numeric_limits<int>::max());
    void* const into = given<void*>(data, "data");
    check(into != nullptr || bytes == 0, "the buffer of a receive is NULL");
    *request = given<Connection>(connection, "connection").receive(into, bytes);
  });
}

Result flush(void*, int, void**, int*, void**, void** request) {
  return guarded([&] { result(request) = nullptr; });  // host memory needs none
}

Result test(void* request, int* done, int* sizes) {
  return guarded([&] {
    result(done) = 0;
    std::size_t bytes = 0;
    if (!Connection::test(&given<Request>(request, "request"), &bytes)) return;
    *done = 1;
    if (sizes != nullptr) sizes[0] = static_cast<int>(bytes);
  });
}

Result close_connection(void* connection) {
  return guarded([&] { delete static_cast<Connection*>(connection); });
}

Result close_listener(void* listener) {
  return guarded([&] { delete static_cast<Listener*>(listener); });
}

Result finalize(void* context) {
  return guarded([&] {
    const std::unique_ptr<Communicator> own(static_cast<Communicator*>(context));
    const std::lock_guard lock(process().mutex);
    std::erase_if(process().connecting, [&](const auto& one) { return one.second.owner == own.get(); });
  });
}

}  // namespace

}  // namespace mlt::nccl

using namespace mlt::nccl;

#define MLT_EXPORTED extern "C" __attribute__((visibility("default")))

MLT_EXPORTED const TableV8 ncclNetPlugin_v8;
MLT_EXPORTED const TableV11 ncclNetPlugin_v11;

const TableV8 ncclNetPlugin_v8 = {
    .name = device_name,
    .init = [](Logger log) { return starting([&] { start(log); }); },
    .devices = devices,
    .properties =
        [](int device, PropertiesV8* properties) {
          return guarded([&] { fill_properties(device, result(properties)); });
        },
    .listen = [](int device, void* handle,
                 void** listener) { return guarded([&] { listen(device, handle, listener); }); },
    .connect = [](int device, void* handle, void** connection,
                  void**) { return guarded([&] { connect(process().version8, device, handle, connection); }); },
    .accept = accept,
    .register_memory = register_memory,
    .register_dma_buf = nullptr,
    .deregister_memory = deregister_memory,
    .send = [](void* connection, void* data, int size, int, void*,
               void** request) { return send(connection, data, size, request); },
    .receive = [](void* connection, int count, void** data, int* sizes, int*, void**,
                  void** request) { return receive(connection, count, data, sizes, request); },
    .flush = flush,
    .test = test,
    .close_send = close_connection,
    .close_receive = close_connection,
    .close_listener = close_listener,
    .device_memory = nullptr,
    .receive_consumed = nullptr,
};

const TableV11 ncclNetPlugin_v11 = {
    .name = device_name,
    .init =
        [](void** context, std::uint64_t, CommunicatorConfigV11* config, Logger log, void*) {
          return starting([&] {
            result(context) = nullptr;
            start(log);
            auto made = std::make_unique<Communicator>();
            if (config != nullptr) made->traffic_class = config->traffic_class;
            check(made->traffic_class >= kTrafficClassUnset && made->traffic_class < kTrafficClasses,
                  "the communicator's traffic class (trafficClass of ncclConfig_t) must be 0, the most urgent, to 6");
            *context = made.release();
          });
        },
    .devices = devices,
    .properties =
        [](int device, PropertiesV11* properties) {
          return guarded([&] {
            fill_properties(device, result(properties));
            properties->merged.count = 1;
            properties->max_p2p_bytes = kMaxBytes;
            properties->max_collective_bytes = kMaxBytes;
            properties->max_multi_request = 1;
          });
        },
    .listen = [](void*, int device, void* handle,
                 void** listener) { return guarded([&] { listen(device, handle, listener); }); },
    .connect =
        [](void* context, int device, void* handle, void** connection, void**) {
          return guarded([&] { connect(given<Communicator>(context, "context"), device, handle, connection); });
        },
    .accept = accept,
    .register_memory = register_memory,
    .register_dma_buf = nullptr,
    .deregister_memory = deregister_memory,
    .send = [](void* connection, void* data, std::size_t size, int, void*, void*,
               void** request) { return send(connection, data, size, request); },
    .receive = [](void* connection, int count, void** data, std::size_t* sizes, int*, void**, void**,
                  void** request) { return receive(connection, count, data, sizes, request); },
    .flush = flush,
    .test = test,
    .close_send = close_connection,
    .close_receive = close_connection,
    .close_listener = close_listener,
    .device_memory = nullptr,
    .receive_consumed = nullptr,
    .merge_devices = nullptr,
    .finalize = finalize,
    .hint = [](void*, void*) { return kSuccess; },
};
