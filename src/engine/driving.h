// Decides which thread runs the event loop: a thread that posts or waits, otherwise the I/O thread.
//
// The loop's lock protects the loop's whole state. Its holder runs one turn and releases it; no thread sleeps with it.
// A post takes the lock if it is free and runs itself. Otherwise it is queued, and the holder checks the queue again
// after it released the lock. One of the waiting threads has the seat: it runs turns and sleeps on the loop's
// descriptors until its operation ends, then hands the seat to the next waiting thread. The I/O thread parks while
// others drive. After each lease it takes over if no other thread drove, so no operation depends on a waiting thread.
//
// Absent on purpose: the content of a turn (DrivenLoop), and the operations waited for (OperationTable).
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

// The loop to drive.
class DrivenLoop {
 public:
  struct Descriptors {
    int datagrams = -1;  // -1: none
    int channel = -1;
  };

  // Requires the loop's lock. Runs one turn; true if it did any work. `is_channel_quiet`: the channel's descriptor was
  // not readable just now.
  virtual bool step(bool is_channel_quiet) = 0;
  // Runs queued commands and starts to send; true if a turn would find more work at once.
  virtual bool run_posts() = 0;
  // Next time at which a turn has work that no descriptor signals.
  virtual base::TimeNs next_timeout() const = 0;
  // Until next_timeout() no turn is needed, even if datagrams arrive: then a turn reads them with its other work.
  virtual bool datagrams_may_wait(base::TimeNs now) const = 0;
  virtual Descriptors descriptors() const = 0;
  // Called before a thread sleeps on the descriptors, and after every turn meanwhile, because a turn cancels it. False:
  // there is work now.
  virtual bool prepare_to_wait() = 0;

  // Any thread.
  virtual bool has_posts() const = 0;
  virtual bool has_operations() const = 0;

 protected:
  ~DrivenLoop() = default;
};

// A waiting thread; on its stack.
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
    std::atomic<std::uint64_t> yields{0};     // of the CPU, by a thread that polls
    std::atomic<std::uint64_t> sleeps{0};     // on the descriptors
    std::atomic<std::uint64_t> wakes{0};      // of other threads
    std::atomic<std::uint64_t> takeovers{0};  // by the I/O thread, after no other thread drove
    std::atomic<std::uint64_t> parks{0};      // of the I/O thread, while others drive
  };

  // `loop` must outlive this. Throws mlt::Error if no descriptor is available.
  Driving(DrivenLoop& loop, base::DurationNs spin_bound_ns);
  Driving(const Driving&) = delete;
  Driving& operator=(const Driving&) = delete;

  // The I/O thread: opens the loop to all threads, and drives it while no other does, until close(). After it returns,
  // no thread drives any more.
  void run();
  // Any thread. Ends run(); waiting threads keep waiting until they are notified.
  void close();

  // Any thread: takes the lock for a post. If this fails, the caller must queue the post. finish_post() releases the
  // lock.
  bool try_begin_post();
  void finish_post();
  // Any thread, after it queued a command.
  void run_queued();
  // Any thread: runs one turn, unless another thread is in one.
  void poll();

  // Waits for notify(), at most until the time `until`, and drives if no other thread does; true if notified. One
  // thread per waiter.
  bool wait(Waiter& waiter, std::optional<SteadyTime> until);
  // Any thread; the waiter must exist.
  void notify(Waiter& waiter);

  const Counts& counts() const { return counts_; }
  // Requires the loop's lock.
  void set_crowded(bool crowded) {
    is_crowded_.store(crowded);
    spin_.set_crowded(crowded);
  }
  const AdaptiveSpin& spin() const { return spin_; }

 private:
  // A thread that sleeps on the descriptors without the lock.
  struct Sleeper {
    io::UniqueFd bell;
    std::atomic<base::TimeNs> until{0};  // 0: awake. Set with the lock, before a post may look at it
  };

  // Time of a thread in the seat since its last turn that did work.
  struct Idle {
    base::TimeNs since = 0;       // 0: not idle
    base::TimeNs yielded_at = 0;  // of a thread that polls
    bool polled = false;
    bool slept = false;
    bool is_channel_quiet = false;
  };

  void give_back();
  void call_for(base::TimeNs due);
  void after_turn(base::TimeNs due);
  bool ring_if_asleep(Sleeper& sleeper);
  bool sleep(Sleeper& sleeper, base::TimeNs until, const Waiter* waiter, bool for_datagrams);
  bool drive(Waiter& waiter, base::TimeNs until);
  bool turn(Waiter& waiter, base::TimeNs until, Idle& idle);
  void pause(base::TimeNs now, Idle& idle);
  void sit(Waiter& waiter);
  void leave_to_sleeper();
  void leave_seat();
  void hand_on();
  void park();
  void shut();

  DrivenLoop& loop_;
  std::mutex loop_lock_;
  bool open_ = false;  // with loop_lock_: threads other than the I/O thread may drive
  // Orders queueing and releasing the lock: whichever comes second sees the effects of the first. A fence that
  // ThreadSanitizer understands.
  std::atomic<std::uint64_t> order_{0};
  AdaptiveSpin spin_;  // of the thread in the seat
  Sleeper seat_sleeper_;
  Sleeper io_sleeper_;
  std::atomic<bool> closing_{false};
  std::atomic<bool> is_crowded_{false};  // ranks that far outnumber the CPUs share this host
  std::atomic<bool> seat_taken_{false};
  std::atomic<bool> drove_{false};    // a waiting thread drove since the I/O thread last checked
  std::atomic<base::TimeNs> due_{0};  // time of the next required turn, as of the last one

  std::mutex mutex_;  // guards all members below
  bool may_sit_ = false;
  Waiter* seat_ = nullptr;
  std::vector<Waiter*> sleeping_;
  std::condition_variable seat_left_;  // used while closing
  std::condition_variable io_wake_;
  bool io_called_ = false;
  bool io_rests_ = false;  // parked until a ring, not for a lease
  bool io_parked_ = false;
  base::DurationNs lease_ns_;
  base::TimeNs sat_at_ = 0;
  base::TimeNs left_at_ = 0;
  bool is_away_long_ = false;  // the last time between two waits was long

  Counts counts_;
};

}  // namespace mlt::engine
