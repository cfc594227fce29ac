// Iterates over the datagrams of an outgoing run, and keeps a copy of a run that has to wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/datagram.h"

namespace mlt::io {

// One datagram of a run: a few consecutive slices.
struct DatagramView {
  std::span<const base::Slice> slices;
  std::uint32_t bytes = 0;
};

// Visits the datagrams of a run in order. The slices of a run must add up to its datagrams.
class DatagramCursor {
 public:
  explicit DatagramCursor(const base::DatagramRun& run) : run_(run) {
    MLT_CHECK(run.datagram_count >= 1 && run.datagram_count <= base::kMaxRunSegments);
    MLT_CHECK(run.slice_count <= run.slices.size());
    MLT_CHECK(run.total_bytes > (run.datagram_count - 1) * std::uint64_t{run.datagram_bytes});
    MLT_CHECK(run.total_bytes <= run.datagram_count * std::uint64_t{run.datagram_bytes});
  }

  bool next(DatagramView& out) {
    if (taken_ == run_.datagram_count) {
      MLT_CHECK(slice_ == run_.slice_count);
      return false;
    }
    const bool last = ++taken_ == run_.datagram_count;
    out.bytes = last ? run_.total_bytes - (run_.datagram_count - 1) * run_.datagram_bytes : run_.datagram_bytes;
    const std::uint32_t first = slice_;
    std::size_t sum = 0;
    while (sum < out.bytes) {
      MLT_CHECK(slice_ < run_.slice_count);
      sum += run_.slices[slice_++].size;
    }
    MLT_CHECK(sum == out.bytes);
    out.slices = std::span<const base::Slice>(run_.slices).subspan(first, slice_ - first);
    return true;
  }

 private:
  const base::DatagramRun& run_;
  std::uint32_t taken_ = 0;
  std::uint32_t slice_ = 0;
};

// Copies the bytes of `view` to `to`; returns their number.
std::size_t copy_datagram(const DatagramView& view, std::byte* to);

// A run with its own bytes: the part of a run that a datapath could not send yet. Allocates in its constructor only.
class CopiedRun {
 public:
  CopiedRun() : storage_(base::kMaxRunBytes) {}

  bool empty() const { return run_.datagram_count == 0; }
  // Replaces the content with the datagrams of `run` from index `first` on.
  void assign(const base::DatagramRun& run, std::uint32_t first);
  void remove_front(std::uint32_t datagrams);
  void clear() { run_.datagram_count = 0; }

  const base::DatagramRun& run() const { return run_; }

 private:
  base::DatagramRun run_;
  std::vector<std::byte> storage_;
};

}  // namespace mlt::io
