#include "io/os/os_error.h"

#include <doctest/doctest.h>

#include <cerrno>

using namespace mlt;

TEST_CASE("errno_text__gives_name_and_meaning_even_for_numbers_without_one") {
  CHECK(io::errno_text(EADDRINUSE) == "EADDRINUSE (Address already in use)");
  CHECK(io::errno_text(99'999) == "error 99999");
}

TEST_CASE("os_error__names_action_object_cause_and_way_out") {
  const io::OsError error = io::os_error(EADDRINUSE, "bind a UDP socket to", "10.0.0.1:5000");
  CHECK(error.code == io::OsErrorCode::kAddressInUse);
  CHECK(error.number == EADDRINUSE);
  CHECK(error.text.starts_with("cannot bind a UDP socket to 10.0.0.1:5000: EADDRINUSE (Address already in use). "));
  CHECK(error.text.find("choose another one") != std::string::npos);
  CHECK(static_cast<bool>(error));
  CHECK(!io::OsError{});
}

TEST_CASE("classify_errno__groups_by_what_can_be_done") {
  CHECK(io::classify_errno(0) == io::OsErrorCode::kNone);
  CHECK(io::classify_errno(EADDRNOTAVAIL) == io::OsErrorCode::kAddressNotAvailable);
  CHECK(io::classify_errno(EPERM) == io::OsErrorCode::kPermission);
  CHECK(io::classify_errno(EHOSTUNREACH) == io::OsErrorCode::kUnreachable);
  CHECK(io::classify_errno(EMFILE) == io::OsErrorCode::kNoResources);
  CHECK(io::classify_errno(ENOPROTOOPT) == io::OsErrorCode::kUnsupported);
  CHECK(io::classify_errno(EBADF) == io::OsErrorCode::kSystem);
}
