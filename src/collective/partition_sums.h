// The sums of a partition at a service: of the round in progress, and of the round before while its results leave.
//
// Adds pushes straight from the packets, by cells of the connection's grid, and feeds a cell to the results once
// nothing is added to it any more. May also repeat a round of another service from results that workers have
// (takeover.h). Absent on purpose: whose pushes are waited for, and all messages (summation.h). Owned by the driver's
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "collective/messages.h"
#include "collective/takeover.h"
#include "core/event.h"

namespace mlt::collective {

class PartitionSums {
 public:
  // A worker's result: the segments to send it are complete cells, several where worker and service share memory.
  struct Result {
    std::uint32_t cells_per_segment = 1;
    core::SendFeed feed;
    std::vector<std::uint64_t> words;  // of the feed
    bool is_pending = false;           // in progress, or waits for space
    bool is_late = false;              // its worker may not have begun the round
  };
  struct Buffer {
    // The contents of a cell without contributors are left over from an earlier round.
    std::vector<float> values;
    std::vector<Result> results;  // per worker
    std::uint16_t sending = 0;    // pending results
    bool begun = false;           // a cell of the round is complete
    bool posting = false;         // its results were given to the driver

    void end_result(std::uint16_t worker);
    // Of a worker that is not late: a late one may never take it.
    bool has_due_result() const;
  };

  // `index` is added to `begun` when the first cell of a round is complete: this may happen in the middle of the
  // endpoint's work, where nothing can be posted. `begun` must outlive this object.
  PartitionSums(const Register& shape, std::uint32_t index, std::uint16_t workers, std::vector<std::uint32_t>& begun);
  PartitionSums(const PartitionSums&) = delete;
  PartitionSums& operator=(const PartitionSums&) = delete;

  static std::size_t cells_of(const Register& shape);
  // Of one partition's memory, that of an empty one too; otherwise registrations would be unlimited.
  static std::uint64_t cost_bytes(const Register& shape, std::uint16_t workers);

  std::uint8_t current() const { return current_; }  // the buffer that this round is summed in
  Buffer& buffer(std::uint8_t index) { return buffers_[index]; }
  Buffer& sum() { return buffers_[current_]; }
  Buffer& before() { return buffers_[current_ ^ 1U]; }

  // The worker gets results, in segments of so many cells.
  void add_receiver(std::uint16_t worker, std::uint32_t cells_per_segment);
  void remove_receiver(std::uint16_t worker);
  // So many workers push in this round.
  void expect(std::uint16_t workers) { expected_ = workers; }
  std::uint16_t expected() const { return expected_; }
  void begin_round(std::uint16_t expected);
  // This round repeats one of another service.
  void repeat(const Repetition& repetition);
  bool is_repeated() const { return !repetition_.sources.empty(); }
  // The round repeats one whose result the worker has whole.
  bool has_result(std::uint16_t worker) const { return is_repeated() && repetition_.ahead[worker]; }
  bool is_receiver(std::uint16_t worker) const { return receives_[worker] && !has_result(worker); }

  // Where the pushes of this round go.
  void receive(core::ReceiveRequest& request, std::uint16_t worker);
  // Of this round, once it has ended.
  std::span<const float> result() const { return buffers_[current_].values; }
  // Every push is over: completes the other cells with what has arrived.
  void end_round();
  // Elements of `workers` pushes that did not arrive.
  std::uint64_t missing_elements(std::size_t workers);

 private:
  // A segment of the connection's grid: the workers whose push of it arrived, and whether it can be sent.
  struct Cell {
    std::uint16_t contributors = 0;
    bool complete = false;
  };
  struct PushContext {
    PartitionSums* sums = nullptr;
    std::uint16_t worker = 0;
  };

  static void add_segment(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload);
  static void add_repeated(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload);
  void add_cell(std::size_t cell, std::span<const std::byte> terms);
  void complete_cell(std::size_t cell);
  std::span<float> values_of(std::size_t cell);

  std::uint32_t segment_bytes_;
  bool average_;
  std::uint32_t index_;
  std::vector<std::uint32_t>& begun_;
  std::array<Buffer, 2> buffers_;
  std::uint8_t current_ = 0;
  std::vector<Cell> cells_;     // of this round
  std::vector<bool> receives_;  // per worker: it registered, and is not gone
  std::uint16_t expected_ = 0;
  Repetition repetition_;
  std::vector<PushContext> contexts_;
};

}  // namespace mlt::collective
