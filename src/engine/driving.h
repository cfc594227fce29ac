// Who may run the event loop: whoever posts or waits, and the I/O thread when nobody does.
//
// The loop's lock owns the loop's whole state. Its holder runs one turn and gives it back; nobody sleeps with it. A
// post takes it if it is free and runs itself; if not, the holder looks at the queue again after it gave the lock back.
// Of the threads that wait one has the seat: it runs turns and sleeps on the loop's descriptors until what it waits for
// is done, then hands the seat to the next one that waits. The I/O thread parks while others drive. It looks after a
// lease whether they still do, and takes over when nobody did; so no operation depends on a thread being in wait.
//
// Absent on purpose: what a turn does (DrivenLoop), and what is waited for (OperationTable).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "base/time.h"
#include "engine/adaptive_spin.h"
#include "engine/deadline.h"
#include "io/os/unique_fd.h"

namespace mlt::engine {

// What is driven.
class DrivenLoop {
 public:
  struct Descriptors {
    int datagrams = -1;  // -1: none
    int channel = -1;
  };

  // With the loop's lock. One turn; true if anything was done. `is_channel_quiet`: the channel's descriptor was not
  // readable just now.
  virtual bool step(bool is_channel_quiet) = 0;
  // Runs what was queued and begins to send it; true if a turn would find more to do at once.
  virtual bool run_posts() = 0;
  // When a turn has something to do that no descriptor tells.
  virtual base::TimeNs next_timeout() const = 0;
  virtual Descriptors descriptors() const = 0;
  // Before a thread sleeps on the descriptors, and after every turn while one does: a turn ends it. False: there is
  // something to do now.
  virtual bool prepare_to_wait() = 0;

  // Any thread.
  virtual bool has_posts() const = 0;
  virtual bool has_operations() const = 0;

 protected:
  ~DrivenLoop() = default;
};

// A thread that waits; on its stack.
struct Waiter {
  std::atomic<bool> done{false};
  std::condition_variable wake;
};

class Driving {
 public:
  struct Counts {
    std::atomic<std::uint64_t> driven_by_waiters{0};  // times that a waiting thread took the seat
    std::atomic<std::uint64_t> driven_by_posts{0};
    std::atomic<std::uint64_t> driven_by_polls{0};
    std::atomic<std::uint64_t> sleeps{0};     // on the descriptors
    std::atomic<std::uint64_t> wakes{0};      // given to another thread
    std::atomic<std::uint64_t> takeovers{0};  // by the I/O thread, after nobody else drove
  };

  // `loop` outlives this. Throws mlt::Error if the system has no descriptor left.
  Driving(DrivenLoop& loop, base::DurationNs spin_bound_ns);
  Driving(const Driving&) = delete;
  Driving& operator=(const Driving&) = delete;

  // The I/O thread: opens the loop to all, and drives it while nobody else does, until close(). Nobody drives when this
  // returns, nor later.
  void run();
  // Any thread. Ends run(); who waits then goes on waiting until it is notified.
  void close();

  // Any thread: takes the lock for a post, which queues itself if this fails. finish_post() gives it back.
  bool try_begin_post();
  void finish_post();
  // Any thread, after something was queued.
  void run_queued();
  // Any thread: one turn, unless somebody is in one.
  void poll();

  // Waits until notify() or `until`, and drives if nobody else does; true if notified. One thread for each waiter.
  bool wait(Waiter& waiter, std::optional<SteadyTime> until);
  // Any thread; the waiter must exist.
  void notify(Waiter& waiter);

  const Counts& counts() const { return counts_; }
  // With the loop's lock.
  const AdaptiveSpin& spin() const { return spin_; }

 private:
  // A thread that sleeps on the descriptors without the lock.
  struct Sleeper {
    io::UniqueFd bell;
    std::atomic<base::TimeNs> until{0};  // 0: awake. Set with the lock, before a post may look at it
  };

  // Of a thread in the seat: since its last turn that did something.
  struct Idle {
    base::TimeNs since = 0;  // 0: it is not
    bool polled = false;
    bool slept = false;
    bool is_channel_quiet = false;
  };

  void give_back();
  void call_for(base::TimeNs due);
  void after_turn(base::TimeNs due);
  bool ring_if_asleep(Sleeper& sleeper);
  bool sleep(Sleeper& sleeper, base::TimeNs until, const Waiter* waiter);
  bool drive(Waiter& waiter, base::TimeNs until);
  bool turn(Waiter& waiter, base::TimeNs until, Idle& idle);
  void sit(Waiter& waiter);
  void leave_to_sleeper();
  void leave_seat();
  void hand_on();
  void park();
  void shut();

  DrivenLoop& loop_;
  std::mutex loop_lock_;
  bool open_ = false;  // with loop_lock_: others than the I/O thread may drive
  // One of queueing and of giving the lock back comes first here, and the other sees what was done before it: a fence
  // that ThreadSanitizer understands.
  std::atomic<std::uint64_t> order_{0};
  AdaptiveSpin spin_;  // the seat's
  Sleeper seat_sleeper_;
  Sleeper io_sleeper_;
  std::atomic<bool> closing_{false};
  std::atomic<bool> seat_taken_{false};
  std::atomic<bool> drove_{false};    // a waiting thread did, since the I/O thread looked last
  std::atomic<base::TimeNs> due_{0};  // when somebody must run the next turn, as of the last one

  std::mutex mutex_;  // of all below
  bool may_sit_ = false;
  Waiter* seat_ = nullptr;
  std::vector<Waiter*> sleeping_;
  std::condition_variable seat_left_;  // while closing
  std::condition_variable io_wake_;
  bool io_called_ = false;
  bool io_rests_ = false;  // parked until it is called, not for a lease
  bool io_parked_ = false;
  base::DurationNs lease_ns_;
  base::TimeNs sat_at_ = 0;
  base::TimeNs left_at_ = 0;
  bool is_away_long_ = false;  // the last time between two waits was long

  Counts counts_;
};

}  // namespace mlt::engine
