#include "engine/options_check.h"

#include <array>
#include <cmath>
#include <string>

#include "core/priority.h"
#include "engine/endpoint_config.h"

namespace mlt::engine {

namespace {

[[noreturn]] void reject(const Options& options, const std::string& text) {
  throw Error(ErrorCode::kConfig, "rank " + std::to_string(options.rank) + ": " + text);
}

// Empty if the map of classes to code points is valid, else the error.
// PROTOCOL 13.1.2: The number of classes is that of the map, 1 to 8; all code points of a map, control's included, MUST
//     be distinct.
std::string dscp_error(const core::DscpMap& map) {
  std::array<int, 64> owner;
  owner.fill(-1);
  for (std::size_t i = 0; i < map.data_classes; ++i) {
    const std::uint8_t dscp = map.data[i];
    const std::string name = "data_dscp[" + std::to_string(i) + "] is " + std::to_string(dscp);
    if (dscp >= owner.size()) return name + ": a DSCP is 0 to 63";
    if (owner[dscp] >= 0) return name + ", as data_dscp[" + std::to_string(owner[dscp]) + "]: each class needs its own";
    owner[dscp] = static_cast<int>(i);
  }
  const std::string name = "control_dscp is " + std::to_string(map.control);
  if (map.control >= owner.size()) return name + ": a DSCP is 0 to 63";
  if (owner[map.control] >= 0) {
    return name + ", as data_dscp[" + std::to_string(owner[map.control]) + "]: control needs a class of its own";
  }
  return "";
}

void check_faults(const Options& options) {
  for (const double p :
       {options.faults.drop, options.faults.duplicate, options.faults.reorder, options.faults.corrupt}) {
    if (!(p >= 0.0 && p <= 1.0)) reject(options, "a fault's probability must lie between 0 and 1");
  }
  if (options.faults.delay_ns < 0 || options.faults.jitter_ns < 0) {
    reject(options, "a fault's delay must not be negative");
  }
}

void check_secret(const Options& options) {
  // PROTOCOL 3.8.11: A secret MUST be 16 bytes or more, and not one byte repeated.
  if (!options.secret.empty() && options.secret.size() < kMinSecretBytes) {
    reject(options, "the job secret has " + std::to_string(options.secret.size()) + " bytes; it needs " +
                        std::to_string(kMinSecretBytes) + " or more (`openssl rand -hex 32` makes one)");
  }
  if (!options.secret.empty() && options.secret.find_first_not_of(options.secret[0]) == std::string::npos) {
    reject(options, "the job secret is one repeated byte: make a random one with `openssl rand -hex 32`");
  }
}

void check_limits(const Options& options) {
  const auto check = [&](const char* name, std::uint32_t value, std::uint32_t min, std::uint32_t max) {
    if (value >= min && value <= max) return;
    reject(options, std::string(name) + " is " + std::to_string(value) + "; it must be " + std::to_string(min) +
                        " to " + std::to_string(max));
  };
  check("max_operations", options.max_operations, 1, kMaxOperationsLimit);
  check("max_tags", options.max_tags, 1, 1U << 24);
  check("early_segments", options.early_segments, 1, 1U << 22);
  check("early_transfers", options.early_transfers, 1, 1U << 22);
  check("max_window_mib", options.max_window_mib, 1, 1U << 16);
}

}  // namespace

void check_options(const Options& options) {
  if (options.ranks < 1 || options.rank >= options.ranks) {
    reject(options, "rank must be below the number of ranks, which is " + std::to_string(options.ranks));
  }
  check_faults(options);
  check_secret(options);
  if (options.operation_timeout_ns <= 0 || options.peer_timeout_ns <= 0 || options.suspended_timeout_ns <= 0) {
    reject(options, "a timeout must be positive");
  }
  if (!std::isfinite(options.line_rate_bits_per_second) || options.line_rate_bits_per_second < 0) {
    reject(options, "the line rate must be positive, or 0 for the interface's own");
  }
  if (options.data_dscp.size() > core::kMaxClasses) {
    reject(options, "data_dscp names " + std::to_string(options.data_dscp.size()) + " classes; there are 1 to " +
                        std::to_string(core::kMaxClasses) + ", or none for the default map");
  }
  if (const std::string error = dscp_error(dscp_map(options)); !error.empty()) reject(options, error);
  check_limits(options);
}

}  // namespace mlt::engine
