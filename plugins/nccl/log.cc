#include "log.h"

#include <atomic>
#include <exception>
#include <new>

#include "mlt.h"

namespace mlt::nccl {

namespace {

std::atomic<Logger> logger{nullptr};

void write(LogLevel level, unsigned long subsystems, const char* text) {
  if (const Logger log = logger.load()) log(level, subsystems, "mlt", 0, "%s", text);
}

Result result_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kConfig:
    case ErrorCode::kBuffer:
    case ErrorCode::kUnknownPeer:
      return kInvalidArgument;
    case ErrorCode::kSizeMismatch:
    case ErrorCode::kTypeMismatch:
    case ErrorCode::kClosed:
      return kInvalidUsage;
    case ErrorCode::kRendezvous:
    case ErrorCode::kPeerMismatch:
    case ErrorCode::kPeerFailed:
      return kRemoteError;
    default:
      return kSystemError;
  }
}

}  // namespace

void set_logger(Logger log) { logger = log; }
void log_warning(const std::string& text) { write(kLogWarn, kLogAll, ("NET/mlt: " + text).c_str()); }
void log_info(const std::string& text) { write(kLogInfo, kLogNet, ("NET/mlt: " + text).c_str()); }

Result report_exception(const char* before) noexcept {
  try {
    try {
      throw;
    } catch (const Error& error) {
      log_warning(std::string(before) + error.what());
      return result_of(error.code());
    } catch (const std::exception& error) {
      log_warning(std::string(before) + error.what());
    }
  } catch (...) {  // no memory for the text, or an exception of an unknown type
    write(kLogWarn, kLogAll, "NET/mlt: out of memory");
    return kSystemError;
  }
  return kInternalError;
}

}  // namespace mlt::nccl
