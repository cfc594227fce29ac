// A ring of fast hosts in a rack: a host that waits for the chunk before it pauses again and again. What it may make up
// for after each pause must not queue at its own interface.
#include <doctest/doctest.h>

#include "sim/collectives/all_reduce_times.h"

using namespace mlt::test;

TEST_CASE("fast_ring__runs_at_the_speed_of_the_wire_though_packets_are_lost_now_and_then") {
  for (const double loss : {0.0, 0.001}) {
    AllReduces ring;
    ring.bytes = 1U << 20;
    ring.loss = loss;
    ring.operations = 20;
    const AllReduceTimes times = time_all_reduces(ring);
    const double payload_ns = 2.0 * 7 / 8 * static_cast<double>(ring.bytes) / ring.rate * 1e9;
    MESSAGE("eight hosts of 10 Gbit/s, 1 MiB, loss " << loss << ": p50 " << times.percentile(50) / payload_ns
                                                     << ", worst " << times.percentile(100) / payload_ns
                                                     << " of the payload's time on the wire");
    // Headers and acknowledgements are 8.4 %. With 200 us of credit after a pause p50 is 1.41 with a loss of 0.1 %.
    CHECK(times.percentile(50) < 1.12 * payload_ns);
    CHECK(times.percentile(100) < 1.25 * payload_ns);
  }
}
