// Serves the control channel from the turns of the event loop: reads it when due, sends packets of the TCP fallback
// over it, and says goodbye at the end.
//
// Locking: all functions require the loop's lock (engine/driving.h). Invariant: as long as the channel's timers are not
// due, service() polls its descriptor at most once in 50 us.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "core/endpoint.h"
#include "engine/exit_wait.h"
#include "io/control/control_channel.h"

namespace mlt::engine {

// Message types on the control connection.
inline constexpr std::uint8_t kFallbackFrame = io::kFirstMessageType;          // bytes of a control-class packet
inline constexpr std::uint8_t kCollectiveMessage = io::kFirstMessageType + 1;  // collective/messages.h
inline constexpr std::uint8_t kFailureMessage = io::kFirstMessageType + 2;     // why the sender leaves, as text
inline constexpr std::uint8_t kPathReportMessage = io::kFirstMessageType + 3;  // path_checks.h
inline constexpr std::uint8_t kChecksumMessage = io::kFirstMessageType + 4;    // transfer_checksums.h

inline constexpr std::size_t kMaxFailureBytes = 1'024;  // of that text
// The text of a failure message, fit to be shown.
std::string failure_reason(std::span<const std::byte> payload);

class ControlService {
 public:
  // The references must outlive the last call.
  ControlService(core::Endpoint& endpoint, io::ControlChannel& channel) : endpoint_(endpoint), channel_(channel) {}

  // The channel's descriptor was not readable at `now`.
  void on_quiet(base::TimeNs now) { polled_ns_ = now; }
  // Serves the channel if it is readable or due; true if it was.
  bool service(base::TimeNs now, io::ControlSink& sink);
  // Sends all packets that the endpoint has for the TCP fallback.
  void send_fallback(base::TimeNs now);
  // Tells the peers what they still need, then that this rank leaves, and why if it failed (`failure` is not empty).
  // Advances `now`, the time that the sink reads. Returns once all peers have read it, or after a second, or after
  // seven while the host of one has not acknowledged it.
  void say_goodbye(base::TimeNs& now, io::ControlSink& sink, const std::string& failure = {});

  // The same in two steps, for a process that ends: tells the peers what they still need, keeps the connections until
  // `exit` has the status or its time is over, and then leaves, as a failure if the status is not 0. Calls
  // `end_operations` in between, after which it accesses no tensor. Ignores what arrives.
  void leave_at_exit(base::TimeNs& now, ExitWait& exit, const std::function<void()>& end_operations);

 private:
  void report_outcomes(base::TimeNs now);
  void leave(base::TimeNs& now, io::ControlSink& sink, const std::string& failure);
  // Serves the channel for at most 10 ms.
  void pause(base::TimeNs& now, io::ControlSink& sink);

  core::Endpoint& endpoint_;
  io::ControlChannel& channel_;
  core::ControlOutput output_;
  base::TimeNs polled_ns_ = 0;  // the descriptor was last checked then
};

}  // namespace mlt::engine
