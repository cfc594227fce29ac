// The network interface whose address the plugin binds and announces.
#pragma once

#include <string>

namespace mlt::nccl {

struct Interface {
  std::string name;
  std::string address;   // numeric
  std::string pci_path;  // of its NIC in /sys; empty: none
  int speed_mbps = 0;    // 0: unknown
};

// The interface that has MLT_HOST, else the first that MLT_INTERFACE or NCCL_SOCKET_IFNAME selects, else the one that
// routes to MASTER_ADDR, else that of the default route, else the first that is not loopback, else loopback. Within
// what a list selects, the one that routes to MASTER_ADDR is preferred. Throws mlt::Error that lists the interfaces.
Interface choose_interface();

// Of the interface called `name`, or that has it as an address; 0: unknown.
int speed_mbps_of(const std::string& name);

}  // namespace mlt::nccl
