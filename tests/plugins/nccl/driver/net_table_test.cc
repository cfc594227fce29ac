// The layout of the tables and of what their functions fill: that of NCCL 2.30's headers (net_v8.h, net_v11.h), as a
// compiler lays them out on a 64-bit Linux. Nothing else tells a wrong slot from a right one before NCCL calls it.
#include "plugins/nccl/net_table.h"

#include <doctest/doctest.h>

#include <cstddef>

namespace mlt::nccl {

static_assert(sizeof(void*) == 8 && sizeof(Result) == 4 && sizeof(LogLevel) == 4);

#define AT(type, member, offset) static_assert(offsetof(type, member) == (offset))

static_assert(sizeof(PropertiesV8) == 64);
AT(PropertiesV8, name, 0);
AT(PropertiesV8, pci_path, 8);
AT(PropertiesV8, guid, 16);
AT(PropertiesV8, pointer_types, 24);
AT(PropertiesV8, registration_is_global, 28);
AT(PropertiesV8, speed_mbps, 32);
AT(PropertiesV8, port, 36);
AT(PropertiesV8, latency_us, 40);
AT(PropertiesV8, max_connections, 44);
AT(PropertiesV8, max_grouped_receives, 48);
AT(PropertiesV8, offload_type, 52);
AT(PropertiesV8, offload_version, 56);

static_assert(sizeof(PropertiesV11) == 112);
AT(PropertiesV11, name, 0);
AT(PropertiesV11, pci_path, 8);
AT(PropertiesV11, guid, 16);
AT(PropertiesV11, pointer_types, 24);
AT(PropertiesV11, registration_is_global, 28);
AT(PropertiesV11, force_flush, 32);
AT(PropertiesV11, speed_mbps, 36);
AT(PropertiesV11, port, 40);
AT(PropertiesV11, latency_us, 44);
AT(PropertiesV11, max_connections, 48);
AT(PropertiesV11, max_grouped_receives, 52);
AT(PropertiesV11, offload_type, 56);
AT(PropertiesV11, offload_version, 60);
AT(PropertiesV11, merged, 64);
AT(PropertiesV11, max_p2p_bytes, 88);
AT(PropertiesV11, max_collective_bytes, 96);
AT(PropertiesV11, max_multi_request, 104);

static_assert(sizeof(MergedDevices) == 20);
AT(MergedDevices, count, 0);
AT(MergedDevices, devices, 4);

static_assert(sizeof(CommunicatorConfigV11) == 4);
AT(CommunicatorConfigV11, traffic_class, 0);

static_assert(sizeof(TableV8) == 19 * sizeof(void*));
AT(TableV8, name, 0 * sizeof(void*));
AT(TableV8, init, 1 * sizeof(void*));
AT(TableV8, devices, 2 * sizeof(void*));
AT(TableV8, properties, 3 * sizeof(void*));
AT(TableV8, listen, 4 * sizeof(void*));
AT(TableV8, connect, 5 * sizeof(void*));
AT(TableV8, accept, 6 * sizeof(void*));
AT(TableV8, register_memory, 7 * sizeof(void*));
AT(TableV8, register_dma_buf, 8 * sizeof(void*));
AT(TableV8, deregister_memory, 9 * sizeof(void*));
AT(TableV8, send, 10 * sizeof(void*));
AT(TableV8, receive, 11 * sizeof(void*));
AT(TableV8, flush, 12 * sizeof(void*));
AT(TableV8, test, 13 * sizeof(void*));
AT(TableV8, close_send, 14 * sizeof(void*));
AT(TableV8, close_receive, 15 * sizeof(void*));
AT(TableV8, close_listener, 16 * sizeof(void*));
AT(TableV8, device_memory, 17 * sizeof(void*));
AT(TableV8, receive_consumed, 18 * sizeof(void*));

static_assert(sizeof(TableV11) == 22 * sizeof(void*));
AT(TableV11, name, 0 * sizeof(void*));
AT(TableV11, init, 1 * sizeof(void*));
AT(TableV11, devices, 2 * sizeof(void*));
AT(TableV11, properties, 3 * sizeof(void*));
AT(TableV11, listen, 4 * sizeof(void*));
AT(TableV11, connect, 5 * sizeof(void*));
AT(TableV11, accept, 6 * sizeof(void*));
AT(TableV11, register_memory, 7 * sizeof(void*));
AT(TableV11, register_dma_buf, 8 * sizeof(void*));
AT(TableV11, deregister_memory, 9 * sizeof(void*));
AT(TableV11, send, 10 * sizeof(void*));
AT(TableV11, receive, 11 * sizeof(void*));
AT(TableV11, flush, 12 * sizeof(void*));
AT(TableV11, test, 13 * sizeof(void*));
AT(TableV11, close_send, 14 * sizeof(void*));
AT(TableV11, close_receive, 15 * sizeof(void*));
AT(TableV11, close_listener, 16 * sizeof(void*));
AT(TableV11, device_memory, 17 * sizeof(void*));
AT(TableV11, receive_consumed, 18 * sizeof(void*));
AT(TableV11, merge_devices, 19 * sizeof(void*));
AT(TableV11, finalize, 20 * sizeof(void*));
AT(TableV11, hint, 21 * sizeof(void*));

#undef AT

}  // namespace mlt::nccl

TEST_CASE("layout__is_that_of_nccls_headers") {
  using namespace mlt::nccl;
  CHECK(kSuccess == 0);
  CHECK(kSystemError == 2);
  CHECK(kRemoteError == 6);
  CHECK(kHandleBytes == 128);
  CHECK(kMaxRequests == 32);
  CHECK(kHostMemory == 1);
}
