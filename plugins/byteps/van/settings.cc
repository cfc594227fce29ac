#include "settings.h"

#include <optional>
#include <string>

#include "variables/variables.h"

namespace mlt::van {

namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr std::int64_t kNoLimitNs = 10LL * 365 * 24 * 3600 * kSecondNs;  // a receive waits for the next message
constexpr std::int64_t kMinPeerTimeoutNs = 1'000'000;
constexpr std::int64_t kConnectTimeoutNs = 300 * kSecondNs;
constexpr std::int64_t kRecoveryTimeoutNs = 60 * kSecondNs;
constexpr std::uint32_t kMaxOperations = 4'096;  // twice what a connection has in progress
constexpr std::uint32_t kMaxTags = 64;
constexpr const char* kLossBound = "MLT_VAN_LOSS_BOUND";

}  // namespace

Settings read_settings() {
  Settings settings;
  Options& options = settings.options;
  options.ranks = 2;
  options.secret = variables::job_secret();
  options.insecure = variables::integer("MLT_INSECURE", 0, 1).value_or(0) == 1;
  options.faults = variables::faults("MLT_VAN_FAULTS");
  options.datapath = variables::text("MLT_DATAPATH").value_or(options.datapath);
  options.operation_timeout_ns = kNoLimitNs;
  options.peer_timeout_ns = variables::time("MLT_PEER_TIMEOUT", kMinPeerTimeoutNs).value_or(options.peer_timeout_ns);
  options.suspended_timeout_ns =
      variables::time("MLT_SUSPENDED_TIMEOUT", kMinPeerTimeoutNs).value_or(options.suspended_timeout_ns);
  options.max_operations = kMaxOperations;
  options.max_tags = kMaxTags;
  settings.connect_timeout_ns = variables::time("MLT_CONNECT_TIMEOUT").value_or(kConnectTimeoutNs);
  if (const std::optional<std::string> bound = variables::text(kLossBound)) {
    const std::optional<double> parsed = variables::parse_loss(*bound);
    if (!parsed || *parsed >= 1)
      variables::reject(kLossBound, *bound, "write a share below 1 that may be lost, such as 1%");
    settings.push_loss_bound = *parsed;
  }
  // ps-lite replaces a node only where its heartbeats are on.
  const std::optional<std::string> heartbeats = variables::text("PS_HEARTBEAT_TIMEOUT");
  if (heartbeats && variables::parse_integer(*heartbeats).value_or(0) > 0) {
    settings.recovery_timeout_ns = variables::time("MLT_VAN_RECOVERY_TIMEOUT").value_or(kRecoveryTimeoutNs);
  }
  return settings;
}

}  // namespace mlt::van
