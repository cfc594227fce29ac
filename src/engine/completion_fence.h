// Holds back the completions of sends whose bytes a thread of the datapath may still read.
//
// A completion gives the tensor's memory back to whoever posted it. With I/O threads (io/threaded_datapath.h) runs of
// the tensor may lie in a queue by then: repairs that nobody needs any more, or what a cancel, a timeout, a peer's
// death or an early stop caught on its way. Such a completion waits here until every run that was taken before it has
// left. All completions come through here, whether a user waits for them or a collective; nothing is held where send()
// itself hands the bytes to the system. What ends no transfer by a completion (closing) ends the datapath first.
#pragma once

#include <cstdint>
#include <deque>

#include "core/event.h"
#include "io/datapath.h"

namespace mlt::engine {

class CompletionFence {
 public:
  // True if the completion was kept.
  bool hold(io::Datapath& datapath, const core::Completion& completion) {
    if (completion.kind != core::CompletionKind::kSend) return false;  // a receive's memory is not read
    const std::uint64_t taken = datapath.runs_taken();
    if (held_.empty() && datapath.runs_left() >= taken) return false;
    held_.push_back({completion, taken});
    return true;
  }

  // The next one that may pass; false if there is none.
  bool pop(io::Datapath& datapath, core::Completion& completion) {
    return !held_.empty() && held_.front().behind_runs <= datapath.runs_left() && pop_any(completion);
  }
  // The next one, when the datapath is gone.
  bool pop_any(core::Completion& completion) {
    if (held_.empty()) return false;
    completion = held_.front().completion;
    held_.pop_front();
    return true;
  }

 private:
  struct Held {
    core::Completion completion;  // of a send: it points to no bitmap
    std::uint64_t behind_runs;
  };
  // An operation each, of which there are no more than the engine's table and the machines' streams have.
  std::deque<Held> held_;
};

}  // namespace mlt::engine
