#include "variables.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "mlt.h"

namespace mlt::nccl {

namespace {

constexpr double kMaxTimeNs = 9e18;  // what 64 bits hold

// A decimal number and what follows it, trimmed. Nothing if there is no number, or it has a sign.
std::optional<std::pair<double, std::string_view>> number_and_unit(std::string_view text) {
  text = trimmed(text);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || std::signbit(number)) return std::nullopt;
  return std::pair(number, trimmed(text.substr(static_cast<std::size_t>(end - text.data()))));
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

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  const std::string_view text = value == nullptr ? std::string_view() : trimmed(value);
  if (text.empty()) return std::nullopt;
  return std::string(text);
}

std::optional<std::uint64_t> parse_integer(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<std::uint32_t> integer_variable(const char* name, std::uint32_t min, std::uint32_t max) {
  const std::optional<std::string> text = variable(name);
  if (!text) return std::nullopt;
  const std::optional<std::uint64_t> number = parse_integer(*text);
  if (!number || *number < min || *number > max) {
    reject(name, *text, "it must be an integer from " + std::to_string(min) + " to " + std::to_string(max));
  }
  return static_cast<std::uint32_t>(*number);
}

std::optional<std::int64_t> parse_time(std::string_view text, double unit_ns) {
  constexpr std::array<std::pair<std::string_view, double>, 8> kUnits{
      {{"ns", 1}, {"us", 1e3}, {"µs", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"min", 60e9}, {"h", 3600e9}}};
  const auto found = number_and_unit(text);
  if (!found) return std::nullopt;
  if (!found->second.empty()) {
    const auto* unit =
        std::find_if(kUnits.begin(), kUnits.end(), [&](const auto& one) { return one.first == found->second; });
    if (unit == kUnits.end()) return std::nullopt;
    unit_ns = unit->second;
  }
  const double time_ns = found->first * unit_ns;
  return time_ns <= kMaxTimeNs ? std::optional(std::llround(time_ns)) : std::nullopt;
}

std::optional<std::int64_t> time_variable(const char* name) {
  const std::optional<std::string> text = variable(name);
  if (!text) return std::nullopt;
  const std::optional<std::int64_t> time_ns = parse_time(*text, 1e9);
  if (!time_ns || *time_ns <= 0) {
    reject(name, *text, "it must be a time above 0 such as 20s, 1500ms or 2min; without a unit it is in seconds");
  }
  return time_ns;
}

std::optional<double> parse_loss(std::string_view text) {
  const auto found = number_and_unit(text);
  if (!found) return std::nullopt;
  const bool is_percent = found->second == "%";
  const double loss = is_percent ? found->first / 100 : found->first;
  if ((!is_percent && !found->second.empty()) || loss > 1 || (!is_percent && loss >= 1)) return std::nullopt;
  return loss;
}

}  // namespace mlt::nccl
