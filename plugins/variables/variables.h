// Reads environment variables, in the grammar of docs/variables.md. Python's reader is python/mlt/_shared/variables.py;
// here are the kinds of values that the plugins for NCCL and ps-lite read. One table of values tests both
// (tests/plugins/nccl/values.tsv). Everything throws mlt::Error that names the variable.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mlt.h"

namespace mlt::variables {

// The value without the spaces around it; nothing if it is unset or empty.
std::optional<std::string> text(const char* name);
std::optional<std::uint32_t> integer(const char* name, std::uint32_t min, std::uint32_t max);
// Nanoseconds, above 0 and at least min_ns. A number without a unit is in seconds.
std::optional<std::int64_t> time(const char* name, std::int64_t min_ns = 0);

// A time such as "20s", "1500ms" or "2 min", in nanoseconds; a number without a unit is in `unit_ns`. Nothing if it is
// none, negative or above 9e9 s.
std::optional<std::int64_t> parse_time(std::string_view text, double unit_ns);
// "1%" or "0.01". Nothing if it is none, negative or above 100%, and for "1", which may mean either.
std::optional<double> parse_loss(std::string_view text);
// "25" or "25 Gbit/s", in Gbit/s. Nothing if it is none, or not above 0 and below 1e6.
std::optional<double> parse_gbps(std::string_view text);
// "1", "true" or "yes", "0", "false" or "no".
std::optional<bool> parse_boolean(std::string_view text);
// All of the text, up to 19 of the digits 0 to 9 after any zeros.
std::optional<std::uint64_t> parse_integer(std::string_view text);

// MLT_JOB_SECRET, or the content of MLT_JOB_SECRET_FILE; empty if neither is set.
std::string job_secret();
// Faults to inject, as "drop=1%,delay_us=50".
FaultOptions faults(const char* variable_name);

std::string_view trimmed(std::string_view text);
// The parts between commas, trimmed.
std::vector<std::string> split(std::string_view text);

// Throws mlt::Error: "NAME is 'VALUE': TEXT".
[[noreturn]] void reject(const std::string& name, std::string_view value, const std::string& text);

}  // namespace mlt::variables
