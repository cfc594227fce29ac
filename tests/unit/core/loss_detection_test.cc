#include "core/loss_detection.h"

#include <doctest/doctest.h>

#include <array>

namespace {

using mlt::base::kMicrosecond;
using mlt::base::kMillisecond;
using mlt::base::kNever;
using mlt::core::LossDetection;

constexpr mlt::base::DurationNs kReorderNs = 30 * kMicrosecond;

// The end of a round at `now` that names these packets, one per path.
template <std::size_t kPaths>
void end_round(LossDetection& loss, std::uint8_t round, mlt::base::TimeNs now,
               const std::array<std::uint32_t, kPaths>& newest_sent, std::uint16_t suspended = 0) {
  loss.begin_round(round, now);
  loss.take_newest_sent(newest_sent, suspended);
}

TEST_CASE("known_lost_ns__never_before_the_end_of_a_round") {
  LossDetection loss;
  loss.on_data(100);
  CHECK(loss.note_order(0, 5, 100) < 0);
  CHECK(loss.known_lost_ns(kReorderNs) == kNever);
  CHECK_FALSE(loss.is_proven());
  CHECK(loss.is_newer_round(0));
  CHECK(loss.is_newer_round(200));
}

TEST_CASE("known_lost_ns__needs_evidence_on_every_path_named") {
  LossDetection loss;
  loss.note_order(0, 7, 100);
  end_round<3>(loss, 0, 200, {7, 9, 0});
  CHECK(loss.unproven_paths() == 0b010);  // nothing was sent on path 2
  CHECK(loss.known_lost_ns(kReorderNs) == kNever);
  loss.note_order(1, 8, 300);
  CHECK(loss.unproven_paths() == 0b010);
  loss.on_data(400);
  loss.note_order(1, 10, 400);  // later than the one named: as good
  CHECK(loss.is_proven());
  CHECK(loss.known_lost_ns(kReorderNs) == 400 + kReorderNs);
}

TEST_CASE("known_lost_ns__runs_from_the_trailing_probe_that_completed_the_evidence") {
  LossDetection loss;
  end_round<1>(loss, 0, 200, {7});
  loss.on_trailing_probe(900);
  loss.note_order(0, 8, 900);
  CHECK(loss.known_lost_ns(kReorderNs) == 900 + kReorderNs);
  loss.on_trailing_probe(1'500);  // nothing more to prove
  CHECK(loss.known_lost_ns(kReorderNs) == 900 + kReorderNs);
}

TEST_CASE("known_lost_ns__saturates") {
  LossDetection loss;
  end_round<1>(loss, 0, 200, {0});
  CHECK(loss.known_lost_ns(kNever) == kNever);
}

TEST_CASE("note_order__returns_how_late_a_packet_is") {
  LossDetection loss;
  CHECK(loss.note_order(0, 5, 100) < 0);
  CHECK(loss.note_order(0, 4, 170) == 70);
  CHECK(loss.note_order(0, 5, 180) < 0);  // a duplicate
  CHECK(loss.note_order(0, 3, 90) < 0);   // arrived before
  CHECK(loss.note_order(1, 1, 200) < 0);  // another path
}

TEST_CASE("begin_with__buffered_packets_prove_but_do_not_measure") {
  LossDetection loss;
  LossDetection::SequencePerPath newest{};
  newest[0] = 7;
  loss.begin_with(newest);
  CHECK(loss.note_order(0, 6, 100) < 0);
  end_round<1>(loss, 0, 200, {7});
  CHECK(loss.is_proven());
}

TEST_CASE("is_newer_round__counts_modulo_256") {
  LossDetection loss;
  end_round<1>(loss, 250, 0, {1});
  CHECK(loss.round() == 250);
  CHECK_FALSE(loss.is_newer_round(250));
  CHECK_FALSE(loss.is_newer_round(249));
  CHECK(loss.is_newer_round(251));
  CHECK(loss.is_newer_round(2));
}

TEST_CASE("names_older_packets__on_any_path") {
  LossDetection loss;
  const std::array<std::uint32_t, 2> older{4, 9}, same{5, 9}, newer{6, 9}, none{5, 0};
  CHECK_FALSE(loss.names_older_packets(older));
  end_round<2>(loss, 0, 0, {5, 9});
  CHECK(loss.names_older_packets(older));
  CHECK(loss.names_older_packets(none));
  CHECK_FALSE(loss.names_older_packets(same));
  CHECK_FALSE(loss.names_older_packets(newer));
}

TEST_CASE("request_ns__after_the_reorder_window_where_only_suspended_paths_lack_evidence") {
  LossDetection loss;
  end_round<2>(loss, 0, 200, {7, 9}, 0b10);
  loss.note_order(0, 7, 100);
  CHECK(loss.known_lost_ns(kReorderNs) == kNever);
  CHECK(loss.request_ns(kReorderNs, 1) == 200 + kReorderNs);
}

TEST_CASE("request_ns__after_a_silence_that_doubles_with_rounds_that_bring_nothing") {
  LossDetection loss;
  mlt::base::DurationNs silence = 20 * kMillisecond;
  for (std::uint8_t round = 0; round < 8; ++round) {
    end_round<1>(loss, round, 1'000, {7});
    CHECK(loss.request_ns(kReorderNs, 1) == 1'000 + std::min(silence, 160 * kMillisecond));
    CHECK(loss.request_ns(kReorderNs, 20) == 1'000 + std::min(silence, 400 * kMillisecond));
    CHECK(loss.request_ns(kReorderNs, 1'000) == 1'000 + std::min(silence, 640 * kMillisecond));
    loss.on_request_in_silence();
    silence *= 2;
  }
  loss.on_segment();
  end_round<1>(loss, 8, 1'000, {7});
  CHECK(loss.request_ns(kReorderNs, 1'000) == 1'000 + 20 * kMillisecond);
}

}  // namespace
