// Error texts: which rank, which operation, what happened, what to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/event.h"
#include "io/os/os_error.h"
#include "mlt.h"

namespace mlt::engine {

// "rank 0: receive of tag 7 (4096 bytes of float32) from rank 1 failed: ...".
std::string failure_text(std::uint16_t rank, const std::string& what, const core::Completion& completion,
                         const std::string& peer_error);
std::string refusal_text(core::PostStatus status, const std::string& peer_error, const Options& options);
// "ranks 0 to 3", "rank 0 only" or "none": from `first` to the one before `end`.
std::string rank_range(std::size_t first, std::size_t end);
[[noreturn]] void throw_os_error(const io::OsError& error, std::uint16_t rank);

}  // namespace mlt::engine
