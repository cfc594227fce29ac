#include "collective/takeover_record.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bitmap.h"

namespace mlt::collective {

void TakeoverRecord::begin_round(std::span<const float> input, std::span<float> output) {
  input_ = input;
  output_ = output;
  again_ = {};
  if (!is_kept_) return;
  const std::size_t cells = (output.size_bytes() + cell_bytes_ - 1) / cell_bytes_;
  here_.assign(base::words_for_bits(std::max<std::size_t>(1, cells)), 0);
}

void TakeoverRecord::place(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload) {
  TakeoverRecord& record = *static_cast<TakeoverRecord*>(context);
  const auto output = std::as_writable_bytes(record.output_);
  if (!payload.empty()) std::memcpy(output.data() + offset_bytes, payload.data(), payload.size());
  const std::size_t first = offset_bytes / record.cell_bytes_;
  const std::size_t cells = std::max<std::size_t>(1, (payload.size() + record.cell_bytes_ - 1) / record.cell_bytes_);
  for (std::size_t cell = first; cell < first + cells; ++cell) {
    record.here_[cell / 64] |= std::uint64_t{1} << (cell % 64);
  }
}

void TakeoverRecord::on_result() {
  ++rounds_;
  if (is_kept_) last_.assign(output_.begin(), output_.end());
}

Move TakeoverRecord::report(const Register& shape, bool is_repeated) {
  Move move;
  move.shape = shape;
  move.rounds = rounds_;
  const bool has_any = is_repeated && std::ranges::any_of(here_, [](std::uint64_t word) { return word != 0; });
  if (!has_any) return move;
  const std::size_t cells = std::max<std::size_t>(1, (output_.size_bytes() + cell_bytes_ - 1) / cell_bytes_);
  move.cells.resize((cells + 7) / 8);
  const std::size_t elements = cell_bytes_ / sizeof(float);
  again_.assign(input_.begin(), input_.end());
  for (std::size_t cell = 0; cell < cells; ++cell) {
    if (((here_[cell / 64] >> (cell % 64)) & 1U) == 0) continue;
    move.cells[cell / 8] |= static_cast<std::byte>(1U << (cell % 8));
    const std::size_t first = cell * elements;
    const std::size_t count = std::min(elements, output_.size() - std::min(first, output_.size()));
    std::copy_n(output_.begin() + static_cast<std::ptrdiff_t>(first), count,
                again_.begin() + static_cast<std::ptrdiff_t>(first));
  }
  return move;
}

}  // namespace mlt::collective
