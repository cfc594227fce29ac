// Error texts: which rank, which operation, what happened, what to do.
#pragma once

#include <string>

#include "core/event.h"
#include "io/control/control_channel.h"
#include "io/os/os_error.h"
#include "mlt.h"

namespace mlt::engine {

// "rank 0: receive of tag 7 (4096 bytes of float32) from rank 1 failed: ...".
std::string failure_text(std::uint16_t rank, const std::string& what, const core::Completion& completion,
                         const std::string& peer_error);
std::string refusal_text(core::PostStatus status, const std::string& peer_error, const Options& options);
struct PathLimitWords {
  std::uint16_t rank = 0;
  std::uint16_t peer = 0;
  std::string host;                 // of the peer
  std::uint32_t segment_bytes = 0;  // of the pair
  std::uint32_t packet_bytes = 0;   // size of the IP packet that does not pass
  std::uint32_t path_bytes = 0;     // max size that passes
  std::uint32_t fitting_bytes = 0;  // the segment bytes that would fit; 0: none
  bool probed = false;              // found by MTU probes; else the interface's MTU
};
std::string path_limit_text(const PathLimitWords& words);
const char* element_text(Element element);
const char* verb_text(Verb verb);
ErrorCode down_code(io::PeerDownCause cause);
ErrorCode status_code(Status status);
[[noreturn]] void throw_os_error(const io::OsError& error, std::uint16_t rank);

}  // namespace mlt::engine
