#include "variables.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "io/os/unique_fd.h"

namespace mlt::variables {

namespace {

constexpr double kMaxTimeNs = 9e18;     // what 64 bits hold
constexpr std::size_t kMaxDigits = 19;  // of an integer, without zeros in front
constexpr double kMaxRateGbps = 1e6;    // beyond it, nothing is an interface

struct Quantity {
  double number;
  std::string unit;  // as it was written
};

std::string lower(std::string_view text) {
  std::string found(text);
  for (char& one : found) {
    if (one >= 'A' && one <= 'Z') one = static_cast<char>(one - 'A' + 'a');
  }
  return found;
}

// A decimal number and what follows it, trimmed. Nothing if there is no number, or it is below 0.
std::optional<Quantity> number_and_unit(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  return Quantity{std::abs(number), std::string(trimmed(text.substr(static_cast<std::size_t>(end - text.data()))))};
}

// What the unit counts, whatever its case; `bare` if there is none. Nothing if it is not one of `units`.
template <std::size_t kCount>
std::optional<double> scale_of(const std::string& unit,
                               const std::array<std::pair<std::string_view, double>, kCount>& units, double bare) {
  if (unit.empty()) return bare;
  const std::string name = lower(unit);
  const auto* found = std::find_if(units.begin(), units.end(), [&](const auto& one) { return one.first == name; });
  return found == units.end() ? std::nullopt : std::optional(found->second);
}

// In nanoseconds, not rounded.
std::optional<double> read_time(std::string_view text, double unit_ns) {
  constexpr std::array<std::pair<std::string_view, double>, 8> kUnits{
      {{"ns", 1}, {"us", 1e3}, {"µs", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"min", 60e9}, {"h", 3600e9}}};
  const auto found = number_and_unit(text);
  if (!found) return std::nullopt;
  const std::optional<double> scale = scale_of(found->unit, kUnits, unit_ns);
  if (!scale || found->number * *scale > kMaxTimeNs) return std::nullopt;
  return found->number * *scale;
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n\v\f";
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t comma = 0; comma != std::string_view::npos;) {
    comma = text.find(',');
    parts.emplace_back(trimmed(text.substr(0, comma)));
    if (comma != std::string_view::npos) text.remove_prefix(comma + 1);
  }
  return parts;
}

void reject(const std::string& name, std::string_view value, const std::string& text) {
  throw Error(ErrorCode::kConfig, name + " is '" + std::string(value) + "': " + text);
}

std::optional<std::string> text(const char* name) {
  const char* value = std::getenv(name);
  const std::string_view text = value == nullptr ? std::string_view() : trimmed(value);
  if (text.empty()) return std::nullopt;
  return std::string(text);
}

std::optional<std::uint64_t> parse_integer(std::string_view text) {
  if (const std::size_t first = text.find_first_not_of('0'); text.size() - std::min(first, text.size()) > kMaxDigits) {
    return std::nullopt;
  }
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<std::uint32_t> integer(const char* name, std::uint32_t min, std::uint32_t max) {
  const std::optional<std::string> text = variables::text(name);
  if (!text) return std::nullopt;
  const std::optional<std::uint64_t> number = parse_integer(*text);
  if (!number || *number < min || *number > max) {
    reject(name, *text, "it must be an integer from " + std::to_string(min) + " to " + std::to_string(max));
  }
  return static_cast<std::uint32_t>(*number);
}

std::optional<std::int64_t> parse_time(std::string_view text, double unit_ns) {
  const std::optional<double> time_ns = read_time(text, unit_ns);
  return time_ns ? std::optional(std::llround(*time_ns)) : std::nullopt;
}

std::optional<std::int64_t> time(const char* name, std::int64_t min_ns) {
  const std::optional<std::string> text = variables::text(name);
  if (!text) return std::nullopt;
  const std::optional<double> time_ns = read_time(*text, 1e9);
  if (!time_ns || *time_ns <= 0) {
    reject(name, *text, "it must be a time above 0 such as 20s, 1500ms or 2min; without a unit it is in seconds");
  }
  if (*time_ns < static_cast<double>(min_ns)) {
    reject(name, *text, "it must be " + std::to_string(min_ns) + " ns or more; without a unit it is in seconds");
  }
  return std::max<std::int64_t>(std::llround(*time_ns), 1);
}

std::optional<double> parse_loss(std::string_view text) {
  const auto found = number_and_unit(text);
  if (!found) return std::nullopt;
  const bool is_percent = found->unit == "%";
  const double loss = is_percent ? found->number / 100 : found->number;
  if ((!is_percent && !found->unit.empty()) || loss > 1 || (!is_percent && loss >= 1)) return std::nullopt;
  return loss;
}

std::optional<double> parse_gbps(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 5> kPrefixes{
      {{"", 1e-9}, {"k", 1e-6}, {"m", 1e-3}, {"g", 1}, {"t", 1e3}}};
  const auto found = number_and_unit(text);
  if (!found) return std::nullopt;
  double gbps = found->number;
  if (!found->unit.empty()) {
    // GBps means bytes.
    if (found->unit.ends_with("Bps") || found->unit.ends_with("BPS")) return std::nullopt;
    std::string prefix = lower(found->unit);
    const auto suffix = [&](std::string_view one) {
      const bool has = prefix.ends_with(one);
      if (has) prefix.resize(prefix.size() - one.size());
      return has;
    };
    if (!suffix("bit/s") && !suffix("bit") && !suffix("bps")) return std::nullopt;
    const auto* scale =
        std::find_if(kPrefixes.begin(), kPrefixes.end(), [&](const auto& one) { return one.first == prefix; });
    if (scale == kPrefixes.end()) return std::nullopt;
    gbps *= scale->second;
  }
  return gbps > 0 && gbps < kMaxRateGbps ? std::optional(gbps) : std::nullopt;
}

std::optional<bool> parse_boolean(std::string_view text) {
  const std::string word = lower(text);
  if (word == "1" || word == "true" || word == "yes") return true;
  if (word == "0" || word == "false" || word == "no") return false;
  return std::nullopt;
}

namespace {

constexpr std::size_t kMaxSecretBytes = 4'096;

// The content of the file without the newline at its end.
std::string read_secret(const std::string& path) {
  const auto fail = [&](const std::string& text) { reject("MLT_JOB_SECRET_FILE", path, text); };
  const io::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) fail(std::string("it cannot be read: ") + std::strerror(errno));
  struct stat found{};
  std::string content(kMaxSecretBytes + 2, '\0');
  const bool is_known = ::fstat(file.get(), &found) == 0;
  const ssize_t size = ::read(file.get(), content.data(), content.size());
  if (!is_known || size < 0) fail("it cannot be read");
  if (S_ISREG(found.st_mode) &&
      ((found.st_mode & (S_IRWXG | S_IRWXO)) != 0 || (found.st_uid != 0 && found.st_uid != ::geteuid()))) {
    fail("other users may read or write it: chown it to this user, and chmod 600");
  }
  content.resize(static_cast<std::size_t>(size));
  for (const char end : {'\n', '\r'}) {
    if (content.ends_with(end)) content.pop_back();
  }
  return content;
}

}  // namespace

std::string job_secret() {
  std::optional<std::string> secret;
  if (const char* value = std::getenv("MLT_JOB_SECRET"); value != nullptr && *value != '\0') secret = value;
  const std::optional<std::string> path = text("MLT_JOB_SECRET_FILE");
  if (secret && path) {
    throw Error(ErrorCode::kConfig, "MLT_JOB_SECRET and MLT_JOB_SECRET_FILE are both set; keep one of them");
  }
  if (path) secret = read_secret(*path);
  if (!secret) return "";
  if (secret->size() < kMinSecretBytes || secret->size() > kMaxSecretBytes) {
    throw Error(ErrorCode::kConfig,
                std::string("the job secret (") + (path ? "MLT_JOB_SECRET_FILE" : "MLT_JOB_SECRET") + ") has " +
                    std::to_string(secret->size()) + " bytes; it needs " + std::to_string(kMinSecretBytes) + " to " +
                    std::to_string(kMaxSecretBytes) + ": make one with `openssl rand -hex 32`");
  }
  if (secret->find_first_not_of(secret->front()) == std::string::npos) {
    throw Error(ErrorCode::kConfig, "the job secret is one repeated byte: make one with `openssl rand -hex 32`");
  }
  return *secret;
}

FaultOptions faults(const char* variable_name) {
  FaultOptions found;
  const std::optional<std::string> text = variables::text(variable_name);
  if (!text) return found;
  for (const std::string& item : split(*text)) {
    if (item.empty()) continue;
    const std::size_t equals = item.find('=');
    const std::string_view name = trimmed(std::string_view(item).substr(0, equals));
    const std::string_view value =
        equals == std::string::npos ? std::string_view() : trimmed(std::string_view(item).substr(equals + 1));
    const auto take = [&](auto parsed, auto& into) {
      if (!parsed) reject(variable_name, *text, "'" + item + "' has no valid value");
      into = static_cast<std::remove_reference_t<decltype(into)>>(*parsed);
    };
    if (name == "drop")
      take(parse_loss(value), found.drop);
    else if (name == "duplicate")
      take(parse_loss(value), found.duplicate);
    else if (name == "reorder")
      take(parse_loss(value), found.reorder);
    else if (name == "corrupt")
      take(parse_loss(value), found.corrupt);
    else if (name == "delay_us")
      take(parse_time(value, 1e3), found.delay_ns);
    else if (name == "jitter_us")
      take(parse_time(value, 1e3), found.jitter_ns);
    else if (name == "seed")
      take(parse_integer(value), found.seed);
    else if (name == "control")
      take(parse_boolean(value), found.control);
    else
      reject(variable_name, *text,
             "'" + item +
                 "' is not one of drop=1%, duplicate=, reorder=, corrupt=, delay_us=, jitter_us=, seed=, control=0");
  }
  return found;
}

}  // namespace mlt::variables
