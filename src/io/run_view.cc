#include "io/run_view.h"

#include <algorithm>
#include <cstring>

namespace mlt::io {

std::size_t copy_datagram(const DatagramView& view, std::byte* to) {
  std::size_t at = 0;
  for (const base::Slice& slice : view.slices) {
    std::memcpy(to + at, slice.data, slice.size);
    at += slice.size;
  }
  return at;
}

void CopiedRun::assign(const base::DatagramRun& run, std::uint32_t first) {
  MLT_CHECK(first < run.datagram_count && run.total_bytes <= storage_.size());
  run_.begin_like(run, run.datagram_bytes);
  DatagramCursor cursor(run);
  DatagramView view;
  for (std::uint32_t i = 0; cursor.next(view); ++i) {
    if (i < first) continue;
    std::byte* to = storage_.data() + run_.total_bytes;
    run_.slices[run_.slice_count++] = {to, copy_datagram(view, to)};
    run_.total_bytes += view.bytes;
    ++run_.datagram_count;
  }
}

void CopiedRun::remove_front(std::uint32_t datagrams) {
  MLT_CHECK(datagrams <= run_.datagram_count);
  for (std::uint32_t i = 0; i < datagrams; ++i) run_.total_bytes -= static_cast<std::uint32_t>(run_.slices[i].size);
  std::copy(run_.slices.begin() + datagrams, run_.slices.begin() + run_.slice_count, run_.slices.begin());
  run_.slice_count -= datagrams;
  run_.datagram_count -= datagrams;
}

}  // namespace mlt::io
