// The endpoint's fixed-size tables: timers, tags, early segments, outcomes, replies, completions.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "core/completion_queue.h"
#include "core/early_buffer.h"
#include "core/finished_log.h"
#include "core/reply_queue.h"
#include "core/segmenter.h"
#include "core/send_queue.h"
#include "core/slot_set.h"
#include "core/tag_table.h"
#include "support/timer_table.h"

using namespace mlt;
using base::kNever;

// ---- timers --------------------------------------------------------------------------------------------------------

TEST_CASE("timer_table__agrees_with_a_map") {
  constexpr std::uint32_t kSlots = 37;
  core::TimerTable timers(kSlots);
  std::map<std::uint32_t, base::TimeNs> model;
  base::Prng prng(1);
  for (int step = 0; step < 50'000; ++step) {
    const auto slot = static_cast<std::uint32_t>(prng.below(kSlots));
    switch (prng.below(5)) {
      case 0:
        timers.cancel(slot);
        model.erase(slot);
        break;
      case 1:
        timers.set(slot, kNever);
        model.erase(slot);
        break;
      case 2: {
        const auto now = static_cast<base::TimeNs>(prng.below(100));
        std::uint32_t due = 0;
        // Earliest first; among equals the smallest slot.
        const auto first = std::min_element(model.begin(), model.end(), [](const auto& a, const auto& b) {
          return a.second != b.second ? a.second < b.second : a.first < b.first;
        });
        const bool expected = first != model.end() && first->second <= now;
        REQUIRE(timers.pop_due(now, due) == expected);
        if (expected) {
          REQUIRE(due == first->first);
          model.erase(first);
        }
        break;
      }
      default: {
        const auto at = static_cast<base::TimeNs>(prng.below(100));
        timers.set(slot, at);
        model[slot] = at;
      }
    }
    base::TimeNs next = kNever;
    for (const auto& [s, at] : model) next = std::min(next, at);
    REQUIRE(timers.next() == next);
  }
}

// ---- tags ----------------------------------------------------------------------------------------------------------

TEST_CASE("tag_table__agrees_with_a_map_up_to_its_limit") {
  core::TagTable<core::SendTag> table(0, 400, 100, 5);
  std::map<std::pair<std::uint16_t, std::uint64_t>, std::uint32_t> model;
  base::Prng prng(2);
  bool was_full = false;
  for (int step = 0; step < 50'000; ++step) {
    const auto peer = static_cast<std::uint16_t>(prng.below(5));
    // Tags that differ in few bits only, as partition numbers do.
    const std::uint64_t tag = prng.below(200) << (16 * prng.below(3));
    const auto known = model.find({peer, tag});
    core::SendTag* found = table.find(peer, tag);
    REQUIRE((found != nullptr) == (known != model.end()));
    if (found != nullptr) REQUIRE(found->generation == known->second);
    if (found != nullptr && prng.chance(model.size() > 400 ? 0.3 : 0.1)) {
      table.erase(*found);
      model.erase(known);
      continue;
    }
    if (prng.chance(0.0005)) {
      table.forget(peer);
      std::erase_if(model, [&](const auto& entry) { return entry.first.first == peer; });
    }
    const bool is_new = !model.contains({peer, tag});
    core::SendTag* entry = table.find_or_insert(peer, tag);
    if (is_new && model.size() == 500) {
      REQUIRE(entry == nullptr);
      was_full = true;
      continue;
    }
    REQUIRE(entry != nullptr);
    REQUIRE(entry->tag == tag);
    REQUIRE(entry->peer == peer);
    model[{peer, tag}] = ++entry->generation;
    REQUIRE(table.used() == model.size());
    if (step % 1'000 != 0) continue;
    std::size_t seen = 0;
    for (std::uint16_t each = 0; each < 5; ++each) {
      table.each_of(each, [&](const core::SendTag& of_peer) {
        REQUIRE(model.contains({each, of_peer.tag}));
        ++seen;
      });
    }
    REQUIRE(seen == model.size());
  }
  CHECK(was_full);
}

TEST_CASE("tag_table__keeps_a_share_for_each_peer_and_the_rest_for_all") {
  core::TagTable<core::SendTag> table(10, 30, 7, 3);  // of one peer at most 40
  std::vector<core::SendTag*> counted;
  const auto take = [&](std::uint16_t peer) {
    std::uint64_t tags = 0;
    for (; table.has_space(peer); ++tags) {
      counted.push_back(table.find_or_insert(peer, 1'000 + counted.size()));
      REQUIRE(counted.back() != nullptr);
      table.count(*counted.back());
    }
    return tags;
  };
  CHECK(take(1) == 40);
  CHECK(take(0) == 10);
  CHECK(take(2) == 10);
  table.erase(*counted[0]);  // of peer 1: common again
  CHECK(take(2) == 1);
  for (std::size_t i = 1; i < 40; ++i) table.erase(*counted[i]);
  CHECK(take(0) == 29);
  CHECK_FALSE(table.has_space(2));
  CHECK(take(1) == 10);
  // What does not count has entries of its own.
  for (std::uint64_t tag = 0; tag < 7; ++tag) CHECK(table.find_or_insert(1, tag) != nullptr);
  CHECK(table.find_or_insert(1, 7) == nullptr);
  table.forget(0);
  CHECK(take(0) == 39);
}

// ---- slots ---------------------------------------------------------------------------------------------------------

TEST_CASE("slot_set__finds_its_smallest") {
  for (const std::uint32_t slots : {1U, 64U, 65U, 4'096U, 5'000U, 300'000U}) {
    CAPTURE(slots);
    core::SlotSet set(slots);
    std::set<std::uint32_t> model;
    base::Prng prng(slots);
    for (int step = 0; step < 20'000; ++step) {
      const auto slot = static_cast<std::uint32_t>(prng.below(slots));
      // Mostly what is in it: it would never become empty otherwise.
      const std::uint32_t out = prng.chance(0.7) && !model.empty() ? *model.begin() : slot;
      if (prng.chance(0.5)) {
        set.set(slot);
        model.insert(slot);
      } else {
        set.clear(out);
        model.erase(out);
      }
      REQUIRE(set.empty() == model.empty());
      if (!model.empty()) REQUIRE(set.first() == *model.begin());
    }
  }
}

namespace {

constexpr wire::AbortReason kCancelled{wire::AbortCause::kCancelled, 0};

struct Queued {
  core::SendQueueLinks queue;
  std::uint32_t order = 0;
  std::uint32_t number = 0;
  bool goes_before(const Queued& other) const {
    return order != other.order ? order < other.order : number < other.number;
  }
};

}  // namespace

TEST_CASE("send_queue__gives_the_first_whatever_was_put_in_and_taken_out") {
  std::vector<Queued> sends(3'000);
  base::Prng prng(5);
  for (std::uint32_t i = 0; i < sends.size(); ++i) {
    sends[i].order = static_cast<std::uint32_t>(prng.below(7));
    sends[i].number = i;
  }
  std::uint32_t root = core::kNil;
  core::SendQueue queue(sends, root);
  const auto before = [&](std::uint32_t a, std::uint32_t b) { return sends[a].goes_before(sends[b]); };
  std::set<std::uint32_t, decltype(before)> model(before);
  for (int step = 0; step < 60'000; ++step) {
    const auto slot = static_cast<std::uint32_t>(prng.below(sends.size()));
    if (model.contains(slot)) {
      queue.erase(slot);
      model.erase(slot);
    } else if (prng.chance(0.3) && !model.empty()) {
      queue.erase(root);
      model.erase(model.begin());
    } else {
      queue.push(slot);
      model.insert(slot);
    }
    REQUIRE((root == core::kNil) == model.empty());
    if (!model.empty()) REQUIRE(root == *model.begin());
  }
}

// ---- early segments ------------------------------------------------------------------------------------------------

TEST_CASE("early_buffer__keeps_copies_and_hands_each_out_once") {
  core::EarlyBuffer early(64, 10, 8, 3);
  core::EarlyTransfer* transfer = early.find_or_insert_for_data(1, {7, 2});
  REQUIRE(transfer != nullptr);
  CHECK(early.find(1, {7, 2}) == transfer);
  CHECK(early.find(1, {7, 3}) == nullptr);
  CHECK(early.find(2, {7, 2}) == nullptr);
  std::vector<std::byte> payload(64);
  for (std::uint32_t i = 0; i < 5; ++i) {
    wire::DataHeader header;
    header.offset_bytes = i * 64;
    std::fill(payload.begin(), payload.end(), static_cast<std::byte>(i));
    REQUIRE(early.keep(*transfer, header, std::span(payload).first(i == 4 ? 0 : 64)) == core::EarlyBuffer::Kept::kKept);
  }
  std::fill(payload.begin(), payload.end(), std::byte{0xEE});
  std::uint32_t seen = 0;
  early.release(*transfer, [&](const wire::DataHeader& header, std::span<const std::byte> kept) {
    const std::uint32_t i = header.offset_bytes / 64;
    seen |= 1U << i;
    CHECK(kept.size() == (i == 4 ? 0 : 64));
    for (const std::byte b : kept) CHECK(b == static_cast<std::byte>(i));
  });
  CHECK(seen == 0x1F);
  CHECK(early.find(1, {7, 2}) == nullptr);
}

TEST_CASE("early_buffer__one_peer_cannot_use_up_the_share_of_another") {
  core::EarlyBuffer early(64, 5, 8, 3);
  const std::vector<std::byte> payload(64);
  core::EarlyTransfer* greedy = early.find_or_insert_for_data(1, {1, 0});
  int kept = 0;
  wire::DataHeader header;
  for (; header.offset_bytes < 20 * 64; header.offset_bytes += 64) {
    kept += early.keep(*greedy, header, payload) == core::EarlyBuffer::Kept::kKept ? 1 : 0;
  }
  CHECK(kept == 5);
  int records = 1;
  for (std::uint64_t tag = 2; tag < 20; ++tag) records += early.find_or_insert_for_data(1, {tag, 0}) != nullptr ? 1 : 0;
  CHECK(records == 8);
  core::EarlyTransfer* other = early.find_or_insert_for_data(2, {1, 0});
  REQUIRE(other != nullptr);
  CHECK(early.keep(*other, {}, payload) == core::EarlyBuffer::Kept::kKept);
  early.forget(1);
  greedy = early.find_or_insert_for_data(1, {1, 0});
  REQUIRE(greedy != nullptr);
  CHECK(early.keep(*greedy, {}, payload) == core::EarlyBuffer::Kept::kKept);
}

// The ABORT overtook the sender's last packets: they must not take a place that the sender believes to be free again.
TEST_CASE("early_buffer__late_data_of_an_aborted_transfer_takes_no_record_of_data") {
  core::EarlyBuffer early(64, 4, 2, 2);
  for (const std::uint64_t tag : {1UL, 2UL}) {
    REQUIRE(early.abort(1, {tag, 0}, kCancelled));
    core::EarlyTransfer* aborted = early.find(1, {tag, 0});
    REQUIRE(aborted != nullptr);
    CHECK(aborted->aborted());
    CHECK(early.find_or_insert_for_data(1, {tag, 0}) == aborted);
  }
  CHECK(early.find_or_insert_for_data(1, {3, 0}) != nullptr);
  CHECK(early.find_or_insert_for_data(1, {4, 0}) != nullptr);
  CHECK(early.find_or_insert_for_data(1, {5, 0}) == nullptr);
}

// Whatever mixture of data, probes and ABORTs one peer sends, the other finds all of its own share.
TEST_CASE("early_buffer__no_mixture_of_records_takes_the_share_of_another_peer") {
  constexpr std::uint32_t kShare = 4;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    base::Prng prng(seed);
    core::EarlyBuffer early(64, kShare, kShare, 3);
    const std::vector<std::byte> payload(64);
    for (int step = 0; step < 100; ++step) {
      const wire::TransferId transfer{prng.below(12), 0};
      switch (prng.below(4)) {
        case 0:
          early.find_or_insert(1, transfer);
          break;
        case 1:
          if (core::EarlyTransfer* data = early.find_or_insert_for_data(1, transfer); data && !data->aborted()) {
            wire::DataHeader header;
            header.offset_bytes = 64 * static_cast<std::uint32_t>(prng.below(3));
            early.keep(*data, header, payload);
          }
          break;
        case 2:
          early.abort(1, transfer, kCancelled);
          break;
        default:
          if (core::EarlyTransfer* known = early.find(1, transfer)) {
            early.release(*known, [](const wire::DataHeader&, std::span<const std::byte>) {});
          }
      }
    }
    for (std::uint64_t tag = 0; tag < kShare; ++tag) {
      REQUIRE(early.find_or_insert(2, {tag, 0}) != nullptr);
      core::EarlyTransfer* data = early.find_or_insert_for_data(2, {100 + tag, 0});
      REQUIRE(data != nullptr);
      CHECK(early.keep(*data, {}, payload) == core::EarlyBuffer::Kept::kKept);
    }
    early.forget(1);
    CHECK(early.segments_kept() == kShare);
    CHECK(early.transfers_known() == 2 * kShare);
    for (std::uint64_t tag = 0; tag < kShare; ++tag) REQUIRE(early.abort(1, {tag, 0}, kCancelled));
    CHECK_FALSE(early.abort(1, {kShare, 0}, kCancelled));
  }
}

TEST_CASE("early_buffer__a_duplicate_takes_no_room") {
  core::EarlyBuffer early(64, 2, 2, 2);
  core::EarlyTransfer* transfer = early.find_or_insert_for_data(1, {1, 0});
  const std::vector<std::byte> payload(64);
  wire::DataHeader header;
  CHECK(early.keep(*transfer, header, payload) == core::EarlyBuffer::Kept::kKept);
  for (int i = 0; i < 10; ++i) CHECK(early.keep(*transfer, header, payload) == core::EarlyBuffer::Kept::kDuplicate);
  header.offset_bytes = 64;
  CHECK(early.keep(*transfer, header, payload) == core::EarlyBuffer::Kept::kKept);
  CHECK(early.segments_kept() == 2);
}

TEST_CASE("early_buffer__refuses_a_payload_larger_than_its_cells") {
  using Kept = core::EarlyBuffer::Kept;
  core::EarlyBuffer early(64, 2, 2, 2);
  core::EarlyTransfer* transfer = early.find_or_insert_for_data(1, {1, 0});
  const std::vector<std::byte> payload(65);
  wire::DataHeader header;
  CHECK(early.keep(*transfer, header, payload) == Kept::kNoRoom);
  CHECK(early.keep(*transfer, header, std::span(payload).first(64)) == Kept::kKept);
  header.offset_bytes = 64;
  CHECK(early.keep(*transfer, header, std::span(payload).first(64)) == Kept::kKept);  // the refusal cost no cell
  header.offset_bytes = 128;
  CHECK(early.keep(*transfer, header, std::span(payload).first(64)) == Kept::kNoRoom);
}

TEST_CASE("early_buffer__probes_take_no_space_from_data") {
  core::EarlyBuffer early(64, 4, 4, 2);
  const std::vector<std::byte> payload(64);
  int notes = 0;
  for (std::uint64_t tag = 0; tag < 20; ++tag) {
    core::EarlyTransfer* note = early.find_or_insert(1, {tag, 0});
    if (note != nullptr) note->probed = true;
    notes += note != nullptr ? 1 : 0;
  }
  CHECK(notes == 4);
  for (std::uint64_t tag = 100; tag < 104; ++tag) {
    core::EarlyTransfer* transfer = early.find_or_insert_for_data(1, {tag, 0});
    REQUIRE(transfer != nullptr);
    CHECK(early.keep(*transfer, {}, payload) == core::EarlyBuffer::Kept::kKept);
  }
  CHECK(early.find_or_insert_for_data(1, {200, 0}) == nullptr);
  // An ABORT displaces a probe.
  REQUIRE(early.abort(1, {300, 0}, kCancelled));
  REQUIRE(early.find(1, {300, 0}) != nullptr);
  CHECK(early.find(1, {300, 0})->aborted());
  CHECK(early.segments_kept() == 4);
  REQUIRE(early.abort(1, {100, 0}, kCancelled));
  CHECK(early.segments_kept() == 3);
  REQUIRE(early.find(1, {100, 0}) != nullptr);
  // An ABORT displaces no other: the newest is not remembered, and its transfer keeps no data either.
  for (const std::uint64_t tag : {101UL, 102UL}) REQUIRE(early.abort(1, {tag, 0}, kCancelled));
  CHECK_FALSE(early.abort(1, {103, 0}, kCancelled));
  CHECK(early.find(1, {103, 0}) == nullptr);
  CHECK(early.segments_kept() == 0);
}

// ---- outcomes, replies, completions --------------------------------------------------------------------------------

TEST_CASE("finished_log__finds_what_was_put_until_it_is_replaced") {
  core::FinishedLog log(4);
  core::FinishedReceive entry;
  entry.used = true;
  entry.peer = 3;
  entry.status = wire::StopStatus::kWithinBound;
  for (std::uint32_t generation = 0; generation < 10; ++generation) {
    entry.transfer = {5, generation};
    entry.missing_bytes = generation;
    entry.finished_ns = generation;
    log.put(entry);
    const core::FinishedReceive* found = log.find(3, {5, generation});
    REQUIRE(found != nullptr);
    CHECK(found->missing_bytes == generation);
  }
  for (std::uint32_t generation = 0; generation < 10; ++generation) {  // the last four of ten, exactly
    CHECK((log.find(3, {5, generation}) != nullptr) == (generation >= 6));
  }
  CHECK(log.find(2, {5, 9}) == nullptr);
  log.renumber(3, {5, 8}, 1'000);
  CHECK(log.find(3, {5, 8}) == nullptr);
  REQUIRE(log.find(3, {5, 1'000}) != nullptr);
  CHECK(log.find(3, {5, 1'000})->missing_bytes == 8);
  int recent = 0;
  log.each_since(8, [&](const core::FinishedReceive& finished) {
    CHECK(finished.finished_ns >= 8);
    ++recent;
  });
  CHECK(recent == 2);
  log.forget(3);
  CHECK(log.find(3, {5, 9}) == nullptr);
}

TEST_CASE("reply_queue__is_first_in_first_out_refuses_when_full_and_forgets_a_peer") {
  core::ReplyQueue queue(5);
  core::Reply reply;
  for (std::uint32_t turn = 0; turn < 7; ++turn) {  // so that the ring wraps
    for (std::uint16_t i = 0; i < 5; ++i) {
      reply.peer = i % 2;
      reply.missing_bytes = i;
      CHECK(queue.push(reply));
    }
    CHECK_FALSE(queue.push(reply));
    queue.forget(1);
    for (const std::uint32_t expected : {0U, 2U, 4U}) {
      REQUIRE(queue.front() != nullptr);
      CHECK(queue.front()->missing_bytes == expected);
      queue.pop();
    }
    CHECK(queue.front() == nullptr);
  }
}

TEST_CASE("completion_queue__is_first_in_first_out") {
  core::CompletionQueue queue(6, 5);
  core::CompletedSlot slot;
  CHECK_FALSE(queue.pop(slot));
  for (std::uint32_t turn = 0; turn < 5; ++turn) {
    queue.push({core::CompletionKind::kReceive, turn});
    queue.push({core::CompletionKind::kSend, turn + 1});
    CHECK(queue.size() == 2);
    REQUIRE(queue.pop(slot));
    CHECK(slot.slot == turn);
    CHECK(slot.kind == core::CompletionKind::kReceive);
    REQUIRE(queue.pop(slot));
    CHECK(slot.slot == turn + 1);
  }
}

// ---- the grid ------------------------------------------------------------------------------------------------------

TEST_CASE("segment_grid__covers_every_byte_once") {
  for (const std::uint32_t size : {8U, 64U, 1'432U, 8'960U}) {
    for (const std::uint32_t total : {0U, 1U, 7U, 8U, 9U, 1'431U, 1'432U, 1'433U, 100'000U}) {
      CAPTURE(size);
      CAPTURE(total);
      const core::SegmentGrid grid(total, size);
      std::uint32_t at = 0;
      for (std::uint32_t s = 0; s < grid.count(); ++s) {
        REQUIRE(grid.offset(s) == at);
        REQUIRE(grid.fits(at, grid.length(s)));
        REQUIRE_FALSE(grid.fits(at, std::uint64_t{grid.length(s)} + 1));
        REQUIRE_FALSE(grid.fits(at + 1, grid.length(s)));
        at += grid.length(s);
      }
      CHECK(at == total);
      CHECK_FALSE(grid.fits(grid.count() * size, 0));
      CHECK_FALSE(grid.fits(grid.count() * size, size));
    }
  }
}

TEST_CASE("segment_grid__reaches_the_largest_tensor") {
  const core::SegmentGrid grid(~std::uint32_t{0}, 8);
  CHECK(grid.count() == 1U << 29);
  CHECK(grid.offset(grid.count() - 1) == ~std::uint32_t{0} - 7 + 0U);
  CHECK(grid.length(grid.count() - 1) == 7);
}
