// A worker's half of a takeover: what it keeps of a partition so that another service can repeat the round of one that
// is gone. The newest result that it has had whole, and which segments of the next are here.
//
// Absent on purpose: the service's half (takeover.h), and which service takes over (push_pull.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collective/messages.h"

namespace mlt::collective {

class TakeoverRecord {
 public:
  // `cell_bytes`: of a segment of a result. `is_kept`: services may die; else only results are counted.
  TakeoverRecord() = default;
  TakeoverRecord(std::uint32_t cell_bytes, bool is_kept) : cell_bytes_(cell_bytes), is_kept_(is_kept) {}

  std::uint32_t cell_bytes() const { return cell_bytes_; }
  // The memory must be valid until the round is over.
  void begin_round(std::span<const float> input, std::span<float> output);
  // Of a receive of the result: place() of a TakeoverRecord.
  static void place(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload);
  void on_result();  // it is whole

  std::uint64_t rounds() const { return rounds_; }          // whose results this worker has had whole
  const std::vector<float>& last() const { return last_; }  // the newest of these, where it is kept
  // For the service that takes over. Where the round in progress is repeated, it names the segments that are here.
  Move report(const Register& shape, bool is_repeated);
  // What that service gets instead of the input: the input, and results that are here. Empty: the input itself.
  const std::vector<float>& again() const { return again_; }

 private:
  std::uint32_t cell_bytes_ = 0;
  bool is_kept_ = false;
  std::span<const float> input_;
  std::span<float> output_;
  std::uint64_t rounds_ = 0;
  std::vector<float> last_;
  std::vector<std::uint64_t> here_;  // a bit per cell
  std::vector<float> again_;
};

}  // namespace mlt::collective
