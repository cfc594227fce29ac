// NCCL's log, which the plugin writes to. Any thread.
#pragma once

#include <string>

#include "net_table.h"

namespace mlt::nccl {

void set_logger(Logger log);
void log_warning(const std::string& text);
void log_info(const std::string& text);

// Writes the exception that is being handled to the log, with `before` in front, and returns what NCCL gets for it.
Result report_exception(const char* before) noexcept;

// Runs the body of a function of the table.
template <typename Body>
Result guarded(Body&& body) noexcept {
  try {
    body();
    return kSuccess;
  } catch (...) {
    return report_exception("");
  }
}

}  // namespace mlt::nccl
