// Ranges of the engine's options: each error names the option, its value and its range.
#include "engine/options_check.h"

#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <string>

using namespace mlt;

namespace {

std::string error_of(const std::function<void(Options&)>& change) {
  Options options;
  options.ranks = 2;
  change(options);
  try {
    engine::check_options(options);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kConfig);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("check_options__accepts_the_defaults_and_the_ends_of_each_range") {
  CHECK(error_of([](Options&) {}) == "");
  CHECK(error_of([](Options& o) { o.max_operations = engine::kMaxOperationsLimit; }) == "");
  CHECK(error_of([](Options& o) { o.max_operations = o.max_tags = o.early_segments = o.early_transfers = 1; }) == "");
  CHECK(error_of([](Options& o) { o.faults.drop = 1.0; }) == "");
  CHECK(error_of([](Options& o) { o.secret = "0123456789abcdef"; }) == "");
  CHECK(error_of([](Options& o) { o.data_dscp = {0, 1, 2, 3, 4, 5, 6, 7}; }) == "");
}

TEST_CASE("check_options__rejects_values_out_of_range_with_the_option_and_the_range") {
  CHECK(error_of([](Options& o) { o.rank = 2; }) == "rank 2: rank must be below the number of ranks, which is 2");
  CHECK(error_of([](Options& o) { o.ranks = 0; }) == "rank 0: rank must be below the number of ranks, which is 0");
  CHECK(error_of([](Options& o) { o.faults.corrupt = 1.1; }) ==
        "rank 0: a fault's probability must lie between 0 and 1");
  CHECK(error_of([](Options& o) { o.faults.jitter_ns = -1; }) == "rank 0: a fault's delay must not be negative");
  CHECK(error_of([](Options& o) { o.secret = "short"; }) ==
        "rank 0: the job secret has 5 bytes; it needs 16 or more (`openssl rand -hex 32` makes one)");
  CHECK(error_of([](Options& o) { o.secret = std::string(32, 'x'); }) ==
        "rank 0: the job secret is one repeated byte: make a random one with `openssl rand -hex 32`");
  CHECK(error_of([](Options& o) { o.peer_timeout_ns = 0; }) == "rank 0: a timeout must be positive");
  CHECK(error_of([](Options& o) { o.suspended_timeout_ns = 0; }) == "rank 0: a timeout must be positive");
  CHECK(error_of([](Options& o) { o.line_rate_bits_per_second = std::numeric_limits<double>::infinity(); }) ==
        "rank 0: the line rate must be positive, or 0 for the interface's own");
  CHECK(error_of([](Options& o) { o.max_operations = engine::kMaxOperationsLimit + 1; }) ==
        "rank 0: max_operations is 131073; it must be 1 to 131072");
  CHECK(error_of([](Options& o) { o.early_transfers = 0; }) == "rank 0: early_transfers is 0; it must be 1 to 4194304");
}

TEST_CASE("check_options__rejects_a_map_of_dscps_whose_code_points_are_not_distinct") {
  CHECK(error_of([](Options& o) { o.data_dscp = {1, 2, 3, 4, 5, 6, 7, 8, 9}; }) ==
        "rank 0: data_dscp names 9 classes; there are 1 to 8, or none for the default map");
  CHECK(error_of([](Options& o) { o.data_dscp = {10, 64}; }) == "rank 0: data_dscp[1] is 64: a DSCP is 0 to 63");
  CHECK(error_of([](Options& o) { o.data_dscp = {10, 12, 10}; }) ==
        "rank 0: data_dscp[2] is 10, as data_dscp[0]: each class needs its own");
  CHECK(error_of([](Options& o) {
          o.data_dscp = {10, 12};
          o.control_dscp = 12;
        }) == "rank 0: control_dscp is 12, as data_dscp[1]: control needs a class of its own");
}
