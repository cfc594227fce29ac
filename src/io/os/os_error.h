// An error of the operating system: a code to branch on and a text with the object, the cause and the remedy.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mlt::io {

enum class OsErrorCode : std::uint8_t {
  kNone,
  kBadArgument,          // rejected before any system call
  kAddressInUse,         // port taken
  kAddressNotAvailable,  // no interface has this address
  kPermission,           // needs a privilege that this process lacks, or a firewall rule
  kUnreachable,          // no route, host or network down
  kNoResources,          // no descriptors or memory left
  kUnsupported,          // this kernel does not have it
  kSystem,               // anything else; see `number`
};

struct OsError {
  OsErrorCode code = OsErrorCode::kNone;
  int number = 0;  // errno; 0 without a system call
  std::string text;

  explicit operator bool() const { return code != OsErrorCode::kNone; }
};

OsErrorCode classify_errno(int number);

// "EADDRINUSE (Address already in use)".
std::string errno_text(int number);

// `action` reads after "cannot": os_error(EADDRINUSE, "bind a UDP socket", "127.0.0.1:5000").
OsError os_error(int number, std::string_view action, std::string_view object);

// For input rejected without a system call; `text` is complete.
OsError bad_argument(std::string text);

}  // namespace mlt::io
