#include "io/os/os_error.h"

#include <cerrno>
#include <cstring>
#include <utility>

namespace mlt::io {

namespace {

// What the user can do about it; empty if only the errno is known.
const char* way_out(OsErrorCode code) {
  switch (code) {
    case OsErrorCode::kAddressInUse:
      return "Another process uses this port: choose another one (0: the system chooses), or stop that process "
             "(`ss -lntup` lists it).";
    case OsErrorCode::kAddressNotAvailable:
      return "No interface of this host has this address: give one that `ip address` lists.";
    case OsErrorCode::kPermission:
      return "The process lacks the privilege, or a firewall blocks it: use a port above 1023, or check the nftables "
             "or iptables output rules.";
    case OsErrorCode::kUnreachable:
      return "Check that the host is up and that `ip route get` finds a route to it.";
    case OsErrorCode::kNoResources:
      return "No file descriptors or memory are left: check `ulimit -n` and free memory.";
    case OsErrorCode::kUnsupported:
      return "This kernel or interface does not support it.";
    case OsErrorCode::kNone:
    case OsErrorCode::kBadArgument:
    case OsErrorCode::kSystem:
      break;
  }
  return "";
}

}  // namespace

OsErrorCode classify_errno(int number) {
  switch (number) {
    case 0:
      return OsErrorCode::kNone;
    case EADDRINUSE:
      return OsErrorCode::kAddressInUse;
    case EADDRNOTAVAIL:
      return OsErrorCode::kAddressNotAvailable;
    case EACCES:
    case EPERM:
      return OsErrorCode::kPermission;
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
    case ETIMEDOUT:
      return OsErrorCode::kUnreachable;
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
      return OsErrorCode::kNoResources;
    case ENOPROTOOPT:
    case EOPNOTSUPP:
    case EAFNOSUPPORT:
    case EPROTONOSUPPORT:
      return OsErrorCode::kUnsupported;
    default:
      return OsErrorCode::kSystem;
  }
}

std::string errno_text(int number) {
#if __GLIBC_PREREQ(2, 32)
  const char* name = strerrorname_np(number);
  const char* meaning = strerrordesc_np(number);
  if (name == nullptr || meaning == nullptr) return "error " + std::to_string(number);
  return std::string(name) + " (" + meaning + ")";
#else  // manylinux_2_28
  char meaning[128] = "";
  return "error " + std::to_string(number) + " (" + strerror_r(number, meaning, sizeof(meaning)) + ")";
#endif
}

OsError os_error(int number, std::string_view action, std::string_view object) {
  OsError error;
  error.code = number == 0 ? OsErrorCode::kSystem : classify_errno(number);
  error.number = number;
  error.text.append("cannot ").append(action);
  if (!object.empty()) error.text.append(" ").append(object);
  error.text.append(": ").append(errno_text(number)).append(".");
  if (const char* advice = way_out(error.code); *advice != '\0') error.text.append(" ").append(advice);
  return error;
}

OsError bad_argument(std::string text) { return {OsErrorCode::kBadArgument, 0, std::move(text)}; }

}  // namespace mlt::io
