// A thread that makes the system calls of one datapath and does nothing else: it sends what the owner's thread has put
// into its ring, receives into the other ring, and sleeps when there is neither. So the kernel's copying and its stack
// have a CPU of their own.
//
// After start() the datapath inside belongs to this thread: the owner reaches it by ask() alone. A run that the system
// does not take for 20 ms is lost, as the engine's own sends are. One owner's thread calls everything public.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "io/datapath.h"
#include "io/doorbell.h"
#include "io/os_error.h"
#include "io/run_rings.h"

namespace mlt::io {

// What the owner of several I/O threads hears: something was received or refused, or, if it waits for that, sent.
struct OwnerBell {
  Doorbell bell;
  std::atomic<bool> waits_for_sends{false};
};

struct IoThreadOptions {
  unsigned number = 0;           // it is called "mlt-io-<number>"
  int cpu = -1;                  // the one that it runs on; -1: any
  base::DurationNs spin_ns = 0;  // how long it polls before it sleeps
};

class IoThread final : private ReceiveSink {
 public:
  struct Counts {
    std::uint64_t loops = 0;
    std::uint64_t sleeps = 0;
    std::uint64_t sends_timed_out = 0;
    std::uint64_t receive_ring_full = 0;
  };

  // Null on failure, with `error` filled. `owner` outlives this.
  static std::unique_ptr<IoThread> start(std::unique_ptr<Datapath> inner, const IoThreadOptions& options,
                                         OwnerBell& owner, OsError& error);
  // Offers what is queued to the system once more, and ends.
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  // Queues a run; false if there is no room. A thread that sleeps is woken once for several runs: by wake(), at the
  // latest when half of the ring is full.
  bool send(std::uint64_t number, const base::DatagramRun& run);
  void wake();
  SendRing& sends() { return sends_; }
  const ReceiveRing& received() const { return receives_; }
  std::size_t receive(base::TimeNs now, std::size_t most, ReceiveSink& sink);

  // Runs `question` on the I/O thread and waits for it: for what is rare. No allocation where the function has none.
  void ask(const std::function<void(Datapath& inner)>& question);
  // Of the I/O thread: inside a question.
  const Counts& counts() const { return counts_; }
  std::uint64_t wakes() const { return bell_.rings(); }

 private:
  using Question = std::function<void(Datapath&)>;

  IoThread(std::unique_ptr<Datapath> inner, const IoThreadOptions& options, OwnerBell& owner);

  bool pin(OsError& error);
  void run();
  bool answer();
  bool send_queued();
  bool receive_some(base::TimeNs now);
  void tell_sent();
  bool has_work();
  void sleep();
  void on_run(const base::ReceivedRun& run) override;

  std::unique_ptr<Datapath> inner_;
  const IoThreadOptions options_;
  OwnerBell& owner_;
  bool direct_ = false;  // the inner datapath receives into our ring
  SendRing sends_;
  ReceiveRing receives_;
  Doorbell bell_;
  std::atomic<const Question*> question_{nullptr};
  std::atomic<bool> waits_for_room_{false};  // to receive into
  std::atomic<bool> stopping_{false};
  std::size_t unannounced_ = 0;  // the owner's: runs queued since the last wake()

  // The I/O thread's.
  Counts counts_;
  base::TimeNs now_ = 0;
  base::TimeNs idle_since_ = 0;
  base::TimeNs blocked_since_ = base::kNever;  // the first run waits for the system since
  bool was_writable_ = false;                  // and blocked though the descriptor was writable

  std::thread thread_;
};

}  // namespace mlt::io
