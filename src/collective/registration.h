// What a service checks of a worker's registration by itself, and against the first worker's of the same partition.
#pragma once

#include <cstdint>
#include <string>

#include "collective/messages.h"
#include "collective/service_loads.h"

namespace mlt::collective {

// Why the registration of rank `from`, whose connection has a grid of so many bytes, is refused; empty if it is not.
// `loads`: of the services, by which the worker cuts its tensors. `move`: it came with a takeover, or null.
std::string rejection(std::uint16_t from, const Register& shape, const ServiceLoads& loads, std::uint32_t grid_bytes,
                      const Move* move);

// How a worker's tensor differs from that of the first worker of this partition; empty if it does not.
std::string difference(std::uint16_t worker, const Register& shape, std::uint16_t first_worker, const Register& first);

}  // namespace mlt::collective
