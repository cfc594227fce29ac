// The same checks over every datapath: what src/io/datapath.h requires of each implementation.
#include "io/datapath.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>

#include "allocation_counter.h"
#include "io/fault/fault_datapath.h"
#include "io/memory_datapath.h"
#include "io/shm/shm_datapath.h"
#include "io/udp/udp_datapath.h"
#include "network_pairs.h"
#include "unit/io/datagrams.h"

using namespace mlt;
using io_test::CollectingSink;
using io_test::Pair;
using io_test::TestRun;
using io_test::XdpKind;

namespace {

Pair memory_pair() {
  auto network = std::make_shared<io::MemoryNetwork>(io::MemoryOptions{});
  auto zero = network->endpoint(0);
  auto one = network->endpoint(1);
  return {network, std::move(zero), std::move(one)};
}

// Wrapped on both sides with every kind of fault armed, none of which may hit: nothing is eligible.
std::unique_ptr<io::Datapath> wrapped(std::unique_ptr<io::Datapath> end) {
  io::FaultOptions options;
  options.drop = options.duplicate = options.reorder = options.corrupt = options.delay = 1;
  options.eligible = [](std::span<const std::byte>) { return false; };
  for (const io::FaultSide side : {io::FaultSide::kSend, io::FaultSide::kReceive}) {
    options.side = side;
    io::OsError error;
    end = io::FaultDatapath::wrap(std::move(end), options, error);
    REQUIRE_MESSAGE(end != nullptr, error.text);
  }
  return end;
}

Pair wrapped(Pair pair) {
  pair.zero = wrapped(std::move(pair.zero));
  pair.one = wrapped(std::move(pair.one));
  return pair;
}

Pair udp_pair(const char* host, bool offload) {
  std::array<std::unique_ptr<io::NetworkDatapath>, 2> ends;
  for (auto& end : ends) {
    io::UdpOptions options;
    options.socket.bind = *io::SocketAddress::from_host(host, 0);
    options.socket.receive_offload = offload;
    options.peer_count = 2;
    options.segmentation_offload = offload;
    io::OsError error;
    end = io::UdpDatapath::open(options, error);
    REQUIRE_MESSAGE(end != nullptr, error.text);
  }
  io::OsError error;
  REQUIRE(ends[0]->set_peer(1, ends[1]->local_address(), error));
  REQUIRE(ends[1]->set_peer(0, ends[0]->local_address(), error));
  return {nullptr, std::move(ends[0]), std::move(ends[1])};
}

// Over kernel UDP, which carries runs to those who share no memory.
Pair shm_pair(Pair network, bool share) {
  io::OsError error;
  auto zero = io::ShmDatapath::wrap(std::move(network.zero), 2, error);
  auto one = io::ShmDatapath::wrap(std::move(network.one), 2, error);
  REQUIRE_MESSAGE((zero && one), error.text);
  if (share) {
    io::ShmDescriptors give;
    auto created = io::ShmSegment::create(io::kMinShmRingBytes, give, error);
    REQUIRE_MESSAGE(created.has_value(), error.text);
    auto joined = io::ShmSegment::join(io::kMinShmRingBytes, std::move(give), error);
    REQUIRE_MESSAGE(joined.has_value(), error.text);
    REQUIRE_MESSAGE(zero->add_peer(1, std::move(*joined), error), error.text);
    REQUIRE_MESSAGE(one->add_peer(0, std::move(*created), error), error.text);
  }
  return {nullptr, std::move(zero), std::move(one)};
}

struct Backend {
  std::string name;
  std::function<Pair()> make;
};

bool has_ipv6() {
  io::UdpSocketOptions options;
  options.bind = io::SocketAddress::loopback(AF_INET6, 0);
  io::OsError error;
  return io::UdpSocket::open(options, error).has_value();
}

void add_udp(std::vector<Backend>& all) {
  all.push_back({"udp", [] { return udp_pair("127.0.0.1", true); }});
  all.push_back({"udp without offload", [] { return udp_pair("127.0.0.1", false); }});
  all.push_back({"fault over udp", [] { return wrapped(udp_pair("127.0.0.1", true)); }});
  all.push_back({"fault over udp without offload", [] { return wrapped(udp_pair("127.0.0.1", false)); }});
  all.push_back({"shm", [] { return shm_pair(udp_pair("127.0.0.1", true), true); }});
  all.push_back({"fault over shm", [] { return wrapped(shm_pair(udp_pair("127.0.0.1", true), true)); }});
  all.push_back({"shm, a peer that has none", [] { return shm_pair(udp_pair("127.0.0.1", true), false); }});
  if (!has_ipv6()) return;
  all.push_back({"udp over IPv6", [] { return udp_pair("::1", true); }});
  all.push_back({"udp over IPv6 without offload", [] { return udp_pair("::1", false); }});
}

void add_xdp(std::vector<Backend>& all) {
  static const std::string missing = io_test::xdp_missing();
  if (!missing.empty()) {
    MESSAGE("AF_XDP is left out: ", missing);
    return;
  }
  const auto add = [&](const char* name, XdpKind zero, XdpKind one, bool ipv6) {
    all.push_back({name, [=] { return io_test::xdp_pair(zero, one, ipv6); }});
  };
  add("xdp", XdpKind::kNative, XdpKind::kNative, false);
  add("xdp, generic", XdpKind::kGeneric, XdpKind::kGeneric, false);
  add("xdp to udp", XdpKind::kNative, XdpKind::kUdp, false);
  add("udp to xdp", XdpKind::kUdp, XdpKind::kNative, false);
  add("udp to xdp, generic", XdpKind::kUdp, XdpKind::kGeneric, false);
  add("udp without offload to xdp", XdpKind::kUdpWithoutOffload, XdpKind::kNative, false);
  all.push_back(
      {"fault over xdp", [] { return wrapped(io_test::xdp_pair(XdpKind::kNative, XdpKind::kNative, false)); }});
  if (has_ipv6()) add("xdp over IPv6", XdpKind::kNative, XdpKind::kNative, true);
}

// Under libvma, or its stand-in, there is no plain UDP: every socket is the library's.
void add_vma(std::vector<Backend>& all) {
  all.push_back({"vma", [] { return io_test::vma_pair("127.0.0.1"); }});
  all.push_back({"fault over vma", [] { return wrapped(io_test::vma_pair("127.0.0.1")); }});
  if (has_ipv6()) all.push_back({"vma over IPv6", [] { return io_test::vma_pair("::1"); }});
}

std::vector<Backend> backends() {
  std::vector<Backend> all = {
      {"memory", memory_pair},
      {"fault over memory", [] { return wrapped(memory_pair()); }},
  };
  if (!has_ipv6()) MESSAGE("no IPv6 on this machine: its backends are left out");
  if (io_test::has_vma()) {
    add_vma(all);
  } else {
    add_udp(all);
    add_xdp(all);
  }
  return all;
}

void for_each_backend(const std::function<void(Pair&)>& check) {
  for (const Backend& backend : backends()) {
    CAPTURE(backend.name);
    Pair pair = backend.make();
    check(pair);
  }
}

io::SendStatus send(io::Datapath& datapath, const TestRun& run) { return datapath.send(0, run.get()); }

std::vector<std::uint32_t> sequence(std::uint32_t first, std::uint32_t count) {
  std::vector<std::uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

// A failure says whether datagrams are missing or one overtook another.
void check_numbers(const CollectingSink& sink, const std::vector<std::uint32_t>& expected) {
  const std::vector<std::uint32_t> numbers = sink.numbers();
  const auto at = static_cast<std::size_t>(std::ranges::mismatch(numbers, expected).in1 - numbers.begin());
  INFO(numbers.size(), " datagrams of ", expected.size(), "; number ", at, " is ",
       at < numbers.size() ? std::to_string(numbers[at]) : "missing");
  CHECK(numbers == expected);
}

void check_all_intact(const CollectingSink& sink) {
  for (const auto& datagram : sink.datagrams) {
    CAPTURE(datagram.number);
    CHECK(datagram.intact);
  }
}

}  // namespace

TEST_CASE("send__one_datagram_arrives_whole") {
  for_each_backend([](Pair& pair) {
    for (const std::uint32_t bytes : {12U, 13U, 500U, 1'472U}) {
      CAPTURE(bytes);
      if (bytes > pair.zero->capabilities().max_datagram_bytes) continue;  // IPv6 takes 20 bytes more of a packet
      CollectingSink sink;
      const TestRun run(1, bytes, 1, bytes);
      REQUIRE(send(*pair.zero, run) == io::SendStatus::kSent);
      io_test::receive_until(*pair.one, sink, 1);
      REQUIRE(sink.numbers() == sequence(bytes, 1));
      CHECK(sink.datagrams[0].bytes == bytes);
      check_all_intact(sink);
    }
  });
}

TEST_CASE("send__run_arrives_datagram_by_datagram_with_a_shorter_last_one") {
  for_each_backend([](Pair& pair) {
    for (const std::uint32_t count : {2U, 3U, 44U}) {
      for (const std::uint32_t last : {12U, 700U, 1'440U}) {
        CAPTURE(count);
        CAPTURE(last);
        CollectingSink sink;
        const TestRun run(1, 100, count, 1'440, last);
        REQUIRE(send(*pair.zero, run) == io::SendStatus::kSent);
        io_test::receive_until(*pair.one, sink, count);
        REQUIRE(sink.numbers() == sequence(100, count));
        CHECK(sink.datagrams.front().bytes == 1'440);
        CHECK(sink.datagrams.back().bytes == last);
        check_all_intact(sink);
      }
    }
  });
}

TEST_CASE("send__a_run_of_the_most_datagrams_and_one_of_the_most_bytes") {
  for_each_backend([](Pair& pair) {
    const io::Capabilities& can = pair.zero->capabilities();
    CHECK(can.max_run_segments == base::kMaxRunSegments);
    CollectingSink sink;
    const TestRun many(1, 0, can.max_run_segments, 64);
    REQUIRE(send(*pair.zero, many) == io::SendStatus::kSent);
    const std::uint32_t bytes = 1'440;
    const std::uint32_t count = can.max_run_bytes / bytes;
    const TestRun large(1, 1'000, count + 1, bytes, can.max_run_bytes - count * bytes);
    REQUIRE(large.get().total_bytes == can.max_run_bytes);
    REQUIRE(send(*pair.zero, large) == io::SendStatus::kSent);
    io_test::receive_until(*pair.one, sink, can.max_run_segments + count + 1);
    std::vector<std::uint32_t> expected = sequence(0, can.max_run_segments);
    const auto rest = sequence(1'000, count + 1);
    expected.insert(expected.end(), rest.begin(), rest.end());
    check_numbers(sink, expected);
    check_all_intact(sink);
  });
}

TEST_CASE("send__both_ways_at_once") {
  for_each_backend([](Pair& pair) {
    CollectingSink at_zero, at_one;
    const TestRun out(1, 0, 20, 1'000), back(0, 500, 30, 900);
    REQUIRE(send(*pair.zero, out) == io::SendStatus::kSent);
    REQUIRE(send(*pair.one, back) == io::SendStatus::kSent);
    io_test::receive_until(*pair.one, at_one, 20);
    io_test::receive_until(*pair.zero, at_zero, 30);
    check_numbers(at_one, sequence(0, 20));
    check_numbers(at_zero, sequence(500, 30));
  });
}

TEST_CASE("send__ecn_mark_reaches_the_receiver") {
  for_each_backend([](Pair& pair) {
    REQUIRE(pair.zero->capabilities().sets_dscp);
    // libvma's calls deliver no mark. Who can't read any must say so, and then says "not capable" of every run.
    const bool reads = pair.one->capabilities().reads_ecn;
    const bool through_vma = pair.one->capabilities().name.find("vma") != std::string::npos;
    CHECK(reads != through_vma);
    for (const base::Ecn ecn : {base::Ecn::kNotEct, base::Ecn::kEct0, base::Ecn::kEct1, base::Ecn::kCe}) {
      for (const std::uint32_t count : {1U, 8U}) {
        CollectingSink sink;
        TestRun run(1, 0, count, 200);
        run.get().dscp = 46;
        run.get().ecn = ecn;
        REQUIRE(send(*pair.zero, run) == io::SendStatus::kSent);
        io_test::receive_until(*pair.one, sink, count);
        REQUIRE(sink.datagrams.size() == count);
        for (const auto& datagram : sink.datagrams) CHECK(datagram.ecn == (reads ? ecn : base::Ecn::kNotEct));
      }
    }
  });
}

TEST_CASE("send__refuses_what_is_too_large_and_whom_it_does_not_know") {
  for_each_backend([](Pair& pair) {
    const io::Capabilities& can = pair.zero->capabilities();
    const TestRun to_unknown_peer(7, 0, 1, 100);
    CHECK(send(*pair.zero, to_unknown_peer) == io::SendStatus::kNoPeer);
    TestRun other_path(1, 0, 1, 100);
    other_path.get().path = 1;
    CHECK(send(*pair.zero, other_path) == io::SendStatus::kNoPeer);
    const TestRun too_long_datagram(1, 0, 1, can.max_datagram_bytes + 1);
    CHECK(send(*pair.zero, too_long_datagram) == io::SendStatus::kTooLarge);
    const TestRun too_long_run(1, 0, can.max_run_bytes / 1'440 + 1, 1'440);
    CHECK(send(*pair.zero, too_long_run) == io::SendStatus::kTooLarge);
    CollectingSink sink;
    pair.one->receive(io::monotonic_now(), 16, sink);
    CHECK(sink.datagrams.empty());
  });
}

TEST_CASE("receive__keeps_to_its_budget_and_polls_readable_while_there_is_more") {
  for_each_backend([](Pair& pair) {
    // Different marks, so that no receive offload can merge them.
    for (std::uint32_t i = 0; i < 4; ++i) {
      TestRun run(1, i, 1, 100 + i);
      run.get().ecn = static_cast<base::Ecn>(i);
      REQUIRE(send(*pair.zero, run) == io::SendStatus::kSent);
    }
    CollectingSink sink;
    CHECK(pair.one->receive(io::monotonic_now(), 0, sink) == 0);
    for (std::size_t i = 1; i <= 4; ++i) {
      if (pair.one->readable_fd() < 0) {
        CHECK(pair.one->next_timeout() < base::kNever);
      } else if (pair.one->prepare_to_wait()) {
        pollfd ready{pair.one->readable_fd(), POLLIN, 0};
        REQUIRE(::poll(&ready, 1, 1'000) == 1);
      }
      CHECK(pair.one->receive(io::monotonic_now(), 1, sink) == 1);
      CHECK(sink.datagrams.size() == i);
    }
    CHECK(pair.one->receive(io::monotonic_now(), 1, sink) == 0);
    CHECK(pair.one->next_timeout() == base::kNever);
    check_numbers(sink, sequence(0, 4));
  });
}

TEST_CASE("send__wakes_a_receiver_that_sleeps") {
  for_each_backend([](Pair& pair) {
    if (pair.one->readable_fd() < 0) return;
    CollectingSink sink;
    for (std::uint32_t i = 0; i < 3; ++i) {
      while (!pair.one->prepare_to_wait()) pair.one->receive(io::monotonic_now(), 16, sink);
      REQUIRE(send(*pair.zero, TestRun(1, i, 1, 900)) == io::SendStatus::kSent);
      pollfd ready{pair.one->readable_fd(), POLLIN, 0};
      CHECK(::poll(&ready, 1, 1'000) == 1);
      io_test::receive_until(*pair.one, sink, i + 1);
      // Who has read everything may sleep again: nothing rings on.
      const base::TimeNs deadline = io::monotonic_now() + base::kSecond;
      while (io::monotonic_now() < deadline) {
        if (pair.one->prepare_to_wait() && ::poll(&ready, 1, 0) == 0) break;
        pair.one->receive(io::monotonic_now(), 16, sink);
      }
      CHECK(io::monotonic_now() < deadline);
    }
    check_numbers(sink, sequence(0, 3));
  });
}

TEST_CASE("receive__gives_every_packet_back_to_libvma") {
  const bool wanted = std::getenv("MLT_TEST_VMA") != nullptr;  // the ctest entry that preloads the stand-in
  CHECK(io_test::has_vma() == wanted);
  if (!io_test::has_vma()) return;
  Pair pair = io_test::vma_pair("127.0.0.1");
  CollectingSink sink;
  for (std::uint32_t i = 0; i < 10; ++i) {
    const TestRun run(1, i * 44, 44, 1'440);
    REQUIRE(send(*pair.zero, run) == io::SendStatus::kSent);
    io_test::receive_until(*pair.one, sink, (i + 1) * 44);
  }
  check_numbers(sink, sequence(0, 440));
  check_all_intact(sink);
  CHECK(io_test::vma_packets_held() == 0);
}

TEST_CASE("counters__have_unique_names") {
  for_each_backend([](Pair& pair) {
    const auto counters = pair.zero->counters();
    REQUIRE(!counters.empty());
    for (std::size_t i = 0; i < counters.size(); ++i) {
      CHECK(!counters[i].name.empty());
      for (std::size_t j = 0; j < i; ++j) CHECK(counters[i].name != counters[j].name);
    }
    CHECK(!pair.zero->capabilities().name.empty());
  });
}

namespace {
// Touches what it gets without keeping it.
class CountingSink final : public io::ReceiveSink {
 public:
  void on_run(const base::ReceivedRun& run) override { bytes += run.bytes.size(); }
  std::size_t bytes = 0;
};
}  // namespace

TEST_CASE("send__and_receive_allocate_nothing") {
  for_each_backend([](Pair& pair) {
    const TestRun data(1, 0, 44, 1'440);
    const TestRun control(1, 0, 1, 60);
    CountingSink sink;
    const std::uint64_t before = io_test::allocations();
    for (int i = 0; i < 50; ++i) {
      pair.zero->send(io::monotonic_now(), data.get());
      pair.zero->send(io::monotonic_now(), control.get());
      pair.one->receive(io::monotonic_now(), 16, sink);
      pair.one->next_timeout();
    }
    const base::TimeNs deadline = io::monotonic_now() + base::kSecond;  // the network may bring it later
    while (sink.bytes <= 10 * data.get().total_bytes && io::monotonic_now() < deadline) {
      pair.one->receive(io::monotonic_now(), 16, sink);
    }
    CHECK(io_test::allocations() == before);
    CHECK(sink.bytes > 10 * data.get().total_bytes);
  });
}

TEST_CASE("send__and_receive_allocate_nothing_while_every_fault_hits") {
  for (const io::FaultSide side : {io::FaultSide::kSend, io::FaultSide::kReceive}) {
    Pair pair = memory_pair();
    io::FaultOptions options;
    options.side = side;
    options.drop = options.duplicate = options.reorder = options.corrupt = options.delay = 0.2;
    options.burst_enter = 0.01;
    options.burst_leave = 0.5;
    io::OsError error;
    auto& end = side == io::FaultSide::kSend ? pair.zero : pair.one;
    end = io::FaultDatapath::wrap(std::move(end), options, error);
    REQUIRE(end != nullptr);
    const TestRun data(1, 0, 44, 1'440);
    CountingSink sink;
    const std::uint64_t before = io_test::allocations();
    for (int i = 0; i < 200; ++i) {
      const base::TimeNs now = i * 100 * base::kMicrosecond;
      pair.zero->send(now, data.get());
      pair.zero->receive(now, 16, sink);
      pair.one->receive(now, 64, sink);
      pair.one->next_timeout();
    }
    CHECK(io_test::allocations() == before);
    for (const char* name :
         {"fault_dropped", "fault_duplicated", "fault_reordered", "fault_corrupted", "fault_delayed"}) {
      CAPTURE(name);
      CHECK(io::counter_value(end->counters(), name) > 0);
    }
  }
}
