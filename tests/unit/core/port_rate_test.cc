// The port rate: what is delivered while packets queue, and more than that whenever it is seen.
#include "core/port_rate.h"

#include <doctest/doctest.h>

using mlt::core::PortRate;

namespace {

constexpr mlt::base::TimeNs kNow = 100 * mlt::base::kSecond;

// Four windows of 1 ms, which make a measurement.
void measure(PortRate& port, double bytes_per_second, bool is_queued, mlt::base::TimeNs now = kNow) {
  for (int i = 0; i < 4; ++i) {
    port.on_sample(is_queued);
    port.on_window(now, static_cast<std::uint64_t>(bytes_per_second / 1'000), mlt::base::kMillisecond, is_queued);
  }
}

}  // namespace

TEST_CASE("port_rate__is_unknown_until_packets_queue_in_a_whole_measurement") {
  PortRate port;
  measure(port, 5e6, false);
  CHECK(port.bytes_per_second(kNow) == 0);
  measure(port, 5e6, true);  // the first sample of its first window was the last one before
  CHECK(port.bytes_per_second(kNow) == 0);
  port.on_sample(false);
  measure(port, 5e6, true);
  CHECK(port.bytes_per_second(kNow) == 0);
  measure(port, 5e6, true);
  CHECK(port.bytes_per_second(kNow) == 5e6);
}

TEST_CASE("port_rate__follows_more_soon_and_less_slowly_and_only_with_a_queue") {
  PortRate port;
  measure(port, 5e6, true);
  measure(port, 5e6, true);
  measure(port, 17e6, false);
  CHECK(port.bytes_per_second(kNow) == 8e6);
  measure(port, 1e6, false);
  CHECK(port.bytes_per_second(kNow) == 8e6);
  measure(port, 4.8e6, true);
  CHECK(port.bytes_per_second(kNow) == 8e6);
  measure(port, 4.8e6, true);
  CHECK(port.bytes_per_second(kNow) == doctest::Approx(7.9e6));
  for (int i = 0; i < 200; ++i) measure(port, 4.8e6, true);
  CHECK(port.bytes_per_second(kNow) == doctest::Approx(4.8e6).epsilon(0.01));
}

TEST_CASE("port_rate__is_forgotten_after_ten_seconds_and_begins_anew") {
  PortRate port;
  measure(port, 9e6, true);
  measure(port, 9e6, true);
  const auto later = kNow + 10 * mlt::base::kSecond;
  CHECK(port.bytes_per_second(later) == 9e6);
  CHECK(port.bytes_per_second(later + 1) == 0);
  measure(port, 50e6, false, later + 1);
  CHECK(port.bytes_per_second(later + 1) == 0);
  measure(port, 4e6, true, later + 1);
  measure(port, 4e6, true, later + 1);
  CHECK(port.bytes_per_second(later + 1) == 4e6);
}
