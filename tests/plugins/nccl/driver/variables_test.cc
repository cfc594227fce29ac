// What the plugin reads from the environment, against the table of values that Python's readers pass too
// (tests/plugins/nccl/test_nccl_values.py). MLT_NCCL_VALUES is the table.
#include "variables/variables.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "children.h"
#include "mlt.h"
#include "plugins/nccl/settings.h"

using mlt::nccl::Settings;

namespace {

std::string short_form(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

std::string paths_of(const mlt::Options& options) {
  std::string text;
  for (const mlt::PathOptions& path : options.paths) {
    const std::string& one = path.host.empty() ? path.interface : path.host;
    text += (text.empty() ? "" : " ") + (one.empty() ? "any" : one);
  }
  return text;
}

std::string faults_of(const mlt::FaultOptions& faults) {
  std::string text;
  for (const double one : {faults.drop, faults.duplicate, faults.reorder, faults.corrupt})
    text += short_form(one) + " ";
  return text + std::to_string(faults.delay_ns) + " " + std::to_string(faults.jitter_ns) + " " +
         std::to_string(faults.seed) + " " + (faults.control ? "1" : "0");
}

std::string meaning_of(const Settings& settings, const std::string& name) {
  const mlt::Options& options = settings.options;
  if (name == "MLT_OPERATION_TIMEOUT") return std::to_string(options.operation_timeout_ns);
  if (name == "MLT_CONNECT_TIMEOUT") return std::to_string(settings.connect_timeout_ns);
  if (name == "MLT_PEER_TIMEOUT") return std::to_string(options.peer_timeout_ns);
  if (name == "MLT_SUSPENDED_TIMEOUT") return std::to_string(options.suspended_timeout_ns);
  if (name == "MLT_SPIN_US") return std::to_string(options.spin_us);
  if (name == "MLT_MAX_OPERATIONS") return std::to_string(options.max_operations);
  if (name == "MLT_MAX_TAGS") return std::to_string(options.max_tags);
  if (name == "MLT_EARLY_SEGMENTS") return std::to_string(options.early_segments);
  if (name == "MLT_EARLY_TRANSFERS") return std::to_string(options.early_transfers);
  if (name == "MLT_MAX_WINDOW_MIB") return std::to_string(options.max_window_mib);
  if (name == "MLT_INSECURE") return std::to_string(mlt::variables::integer(name.c_str(), 0, 1).value_or(0));
  if (name == "MLT_IO_THREADS") return "none";
  if (name == "MLT_PATHS") return paths_of(options);
  if (name == "MLT_NCCL_FAULTS") return faults_of(options.faults);
  if (name == "MLT_NCCL_LINE_RATE_GBPS") return short_form(options.line_rate_bits_per_second / 1e9);
  if (name == "MLT_JOB_SECRET") return settings.job_secret;
  return "a variable that this test does not know";
}

std::string read(const std::string& name) {
  try {
    return meaning_of(mlt::nccl::read_settings(), name);
  } catch (const mlt::Error& error) {
    CHECK(std::string(error.what()).find(name == "MLT_JOB_SECRET" ? "job secret" : name) != std::string::npos);
    return "-";
  }
}

}  // namespace

TEST_CASE("variables__mean_what_they_mean_to_python") {
  std::ifstream table(MLT_NCCL_VALUES);
  int rows = 0;
  for (std::string line; std::getline(table, line);) {
    if (line.starts_with('#')) continue;
    const std::size_t first = line.find('\t'), second = line.find('\t', first + 1);
    REQUIRE(second != std::string::npos);
    const std::string name = line.substr(0, first);
    CAPTURE(line);
    driver::clear_environment();
    ::setenv(name.c_str(), line.substr(first + 1, second - first - 1).c_str(), 1);
    CHECK(read(name) == line.substr(second + 1));
    ::unsetenv(name.c_str());
    ++rows;
  }
  CHECK(rows > 150);
}
