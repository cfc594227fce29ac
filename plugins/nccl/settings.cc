#include "settings.h"

#include <arpa/inet.h>
#include <net/if.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "net_table.h"
#include "variables/variables.h"

namespace mlt::nccl {

namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr std::int64_t kMinPeerTimeoutNs = 1'000'000;  // below it, the pauses between heartbeats would be 0
constexpr std::int64_t kConnectTimeoutNs = 60 * kSecondNs;
constexpr std::uint32_t kMaxPaths = 16;
constexpr int kUnknownSpeedMbps = 10'000;  // what NCCL's own sockets report then
// A connection has kMaxRequests operations in progress, all of one tag, so the defaults would only reserve more.
constexpr std::uint32_t kMaxOperations = 1'024;
constexpr std::uint32_t kMinOperations = 2 * kMaxRequests + 1;  // a connection's pool, and the sender's introduction
constexpr std::uint32_t kMaxTags = 64;

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325;  // FNV-1a
  for (const char one : text) hash = (hash ^ static_cast<unsigned char>(one)) * 0x100'0000'01b3;
  return hash;
}

bool is_address(const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  const std::string without_zone = text.substr(0, text.find('%'));
  return ::inet_pton(AF_INET, text.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, without_zone.c_str(), address.data()) == 1;
}

std::vector<PathOptions> paths() {
  const std::optional<std::string> text = variables::text("MLT_PATHS");
  if (!text) return {};
  const auto check_count = [&](std::uint64_t count) {
    if (count < 1 || count > kMaxPaths)
      variables::reject("MLT_PATHS", *text, "there are 1 to " + std::to_string(kMaxPaths));
  };
  if (const std::optional<std::uint64_t> count = variables::parse_integer(*text)) {
    check_count(*count);
    return std::vector<PathOptions>(*count);
  }
  if (text->find('/') != std::string::npos || text->ends_with(".yaml") || text->ends_with(".yml") ||
      text->ends_with(".json")) {
    variables::reject(
        "MLT_PATHS", *text,
        "the NCCL plugin reads no path files; give a number of paths, or interfaces or addresses with commas between");
  }
  std::vector<PathOptions> found;
  for (const std::string& item : variables::split(*text)) {
    if (item.empty()) variables::reject("MLT_PATHS", *text, "a path is empty");
    PathOptions path;
    const bool has_address = is_address(item);
    // The kernel takes a label after a colon for the interface's own name.
    const bool is_interface = item.find(':') == std::string::npos && ::if_nametoindex(item.c_str()) != 0;
    if (!has_address && !is_interface) {
      variables::reject("MLT_PATHS", *text, "'" + item + "' is not an address or interface of this host");
    }
    (has_address ? path.host : path.interface) = item;
    found.push_back(path);
  }
  check_count(found.size());
  return found;
}

double line_rate() {
  const std::optional<std::string> text = variables::text("MLT_NCCL_LINE_RATE_GBPS");
  if (!text) return 0;
  const std::optional<double> gbps = variables::parse_gbps(*text);
  if (!gbps)
    variables::reject("MLT_NCCL_LINE_RATE_GBPS", *text, "it must be a speed above 0; without a unit it is in Gbit/s");
  return *gbps * 1e9;
}

void reject_unsupported() {
  if (const auto text = variables::text("MLT_QOS_POLICY")) {
    variables::reject("MLT_QOS_POLICY", *text,
                      "the NCCL plugin reads no policy files and sends with the default DSCPs: unset it");
  }
  for (const char* name : {"MLT_IO_THREADS", "MLT_IO_CPUS"}) {
    const auto text = variables::text(name);
    if (text && *text != "0") variables::reject(name, *text, "mlt no longer has I/O threads: unset it");
  }
}

// The speed of all paths together, which is 0 if one is unknown.
int speed_of(const Settings& settings) {
  const Options& options = settings.options;
  if (options.line_rate_bits_per_second > 0) return static_cast<int>(options.line_rate_bits_per_second / 1e6);
  int sum = 0;
  for (const PathOptions& path : options.paths) {
    const std::string& name = !path.interface.empty() ? path.interface : path.host;
    if (name.empty()) continue;  // differs in ports only
    const int speed = speed_mbps_of(name);
    if (speed == 0) return 0;
    sum += speed;
  }
  return sum > 0 ? sum : settings.interface.speed_mbps;
}

}  // namespace

Settings read_settings() {
  reject_unsupported();
  Settings settings;
  Options& options = settings.options;
  settings.interface = choose_interface();
  settings.job_name = hash_of(variables::text("MLT_JOB").value_or("default"));
  settings.job_secret = variables::job_secret();
  settings.connect_timeout_ns = variables::time("MLT_CONNECT_TIMEOUT").value_or(kConnectTimeoutNs);
  options.host = settings.interface.address;
  options.ranks = 2;
  options.paths = paths();
  options.faults = variables::faults("MLT_NCCL_FAULTS");
  options.line_rate_bits_per_second = line_rate();
  options.datapath = variables::text("MLT_DATAPATH").value_or(options.datapath);
  options.operation_timeout_ns = variables::time("MLT_OPERATION_TIMEOUT").value_or(kNoLimitNs);
  options.peer_timeout_ns = variables::time("MLT_PEER_TIMEOUT", kMinPeerTimeoutNs).value_or(options.peer_timeout_ns);
  options.suspended_timeout_ns =
      variables::time("MLT_SUSPENDED_TIMEOUT", kMinPeerTimeoutNs).value_or(options.suspended_timeout_ns);
  options.max_operations = variables::integer("MLT_MAX_OPERATIONS", kMinOperations, 131'072).value_or(kMaxOperations);
  options.max_tags = variables::integer("MLT_MAX_TAGS", 1, 1U << 24).value_or(kMaxTags);
  options.early_segments = variables::integer("MLT_EARLY_SEGMENTS", 1, 1U << 22).value_or(options.early_segments);
  options.early_transfers = variables::integer("MLT_EARLY_TRANSFERS", 1, 1U << 22).value_or(options.early_transfers);
  options.max_window_mib = variables::integer("MLT_MAX_WINDOW_MIB", 1, 1U << 16).value_or(options.max_window_mib);
  if (const auto spin = variables::text("MLT_SPIN_US")) {
    const std::optional<std::int64_t> spin_ns = variables::parse_time(*spin, 1e3);
    if (!spin_ns || *spin_ns > kSecondNs)
      variables::reject("MLT_SPIN_US", *spin, "it must be a time of 0 to 1000000 microseconds");
    options.spin_us = static_cast<std::uint32_t>((*spin_ns + 500) / 1'000);
  }
  // Every connection has a secret of its own, so there is nothing to permit; the value is still checked.
  variables::integer("MLT_INSECURE", 0, 1);
  settings.speed_mbps = speed_of(settings);
  if (settings.speed_mbps == 0) settings.speed_mbps = kUnknownSpeedMbps;
  return settings;
}

}  // namespace mlt::nccl
