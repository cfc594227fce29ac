// The function tables that NCCL looks up in an external network plugin, versions 8 and 11, and their constants.
//
// Order, types and values are NCCL's ABI; the names of members are ours. Functions of version 11 that version 8 has too
// are called alike, except that sizes are size_t, and that listen() and connect() are given what init() returned.
// docs/nccl.md says which NCCL releases take which version.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mlt::nccl {

// What functions return.
enum Result : int {
  kSuccess = 0,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,  // of another rank
};

// NCCL's log: levels, and the subsystems of a line.
enum LogLevel : int { kLogWarn = 2, kLogInfo = 3 };
inline constexpr unsigned long kLogAll = ~0UL;
inline constexpr unsigned long kLogNet = 16;
using Logger = void (*)(LogLevel level, unsigned long subsystems, const char* file, int line, const char* format, ...);

inline constexpr std::size_t kHandleBytes = 128;  // what listen() fills, and connect() gets
inline constexpr int kMaxRequests = 32;           // in progress on a connection
inline constexpr int kHostMemory = 1;             // pointer type, and bit of Properties::pointer_types
inline constexpr int kNoDeviceOffload = 0;        // Properties::offload_type

struct PropertiesV8 {
  char* name;
  char* pci_path;  // NULL: virtual
  std::uint64_t guid;
  int pointer_types;
  int registration_is_global;
  int speed_mbps;
  int port;
  float latency_us;
  int max_connections;
  int max_grouped_receives;
  int offload_type;
  int offload_version;
};

struct MergedDevices {
  int count;
  int devices[4];
};

struct PropertiesV11 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointer_types;
  int registration_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_connections;
  int max_grouped_receives;
  int offload_type;
  int offload_version;
  MergedDevices merged;
  std::size_t max_p2p_bytes;
  std::size_t max_collective_bytes;
  int max_multi_request;
};

// Of one communicator, from ncclConfig_t.
struct CommunicatorConfigV11 {
  int traffic_class;
};
inline constexpr int kTrafficClassUnset = -1;

struct TableV8 {
  const char* name;
  Result (*init)(Logger log);
  Result (*devices)(int* count);
  Result (*properties)(int device, PropertiesV8* properties);
  Result (*listen)(int device, void* handle, void** listener);
  Result (*connect)(int device, void* handle, void** send_connection, void** offload);
  Result (*accept)(void* listener, void** receive_connection, void** offload);
  Result (*register_memory)(void* connection, void* data, std::size_t size, int type, void** memory);
  Result (*register_dma_buf)(void* connection, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                             void** memory);
  Result (*deregister_memory)(void* connection, void* memory);
  Result (*send)(void* connection, void* data, int size, int tag, void* memory, void** request);
  Result (*receive)(void* connection, int count, void** data, int* sizes, int* tags, void** memory, void** request);
  Result (*flush)(void* connection, int count, void** data, int* sizes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* connection);
  Result (*close_receive)(void* connection);
  Result (*close_listener)(void* listener);
  Result (*device_memory)(void* connection, void* memory, void** device_memory);
  Result (*receive_consumed)(void* connection, int count, void* request);
};

struct TableV11 {
  const char* name;
  Result (*init)(void** context, std::uint64_t communicator, CommunicatorConfigV11* config, Logger log, void* profiler);
  Result (*devices)(int* count);
  Result (*properties)(int device, PropertiesV11* properties);
  Result (*listen)(void* context, int device, void* handle, void** listener);
  Result (*connect)(void* context, int device, void* handle, void** send_connection, void** offload);
  Result (*accept)(void* listener, void** receive_connection, void** offload);
  Result (*register_memory)(void* connection, void* data, std::size_t size, int type, void** memory);
  Result (*register_dma_buf)(void* connection, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                             void** memory);
  Result (*deregister_memory)(void* connection, void* memory);
  Result (*send)(void* connection, void* data, std::size_t size, int tag, void* memory, void* profiler_event,
                 void** request);
  Result (*receive)(void* connection, int count, void** data, std::size_t* sizes, int* tags, void** memory,
                    void** profiler_events, void** request);
  Result (*flush)(void* connection, int count, void** data, int* sizes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* connection);
  Result (*close_receive)(void* connection);
  Result (*close_listener)(void* listener);
  Result (*device_memory)(void* connection, void* memory, void** device_memory);
  Result (*receive_consumed)(void* connection, int count, void* request);
  Result (*merge_devices)(int* device, MergedDevices* merged);
  Result (*finalize)(void* context);
  Result (*hint)(void* context, void* attributes);
};

}  // namespace mlt::nccl
