#include "io/threaded_datapath.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>

#include "io/udp_paths_datapath.h"
#include "unit/io/datagrams.h"

using namespace mlt;
using io::SendStatus;
using io_test::CollectingSink;
using io_test::TestRun;

namespace {

constexpr std::size_t kPaths = 4;

std::unique_ptr<io::ThreadedDatapath> open_threads(std::size_t threads, io::OsError& error, int cpu = -1) {
  std::vector<io::PathSpec> specs(kPaths);
  for (io::PathSpec& spec : specs) spec.bind = *io::SocketAddress::from_host("127.0.0.1", 0);
  std::vector<io::IoGroup> groups(threads);
  for (std::size_t i = 0; i < threads; ++i) {
    io::UdpPathsDatapath::PathSet served = 0;
    for (std::size_t path = i; path < kPaths; path += threads) {
      served |= 1U << path;
      groups[i].paths.push_back(static_cast<std::uint8_t>(path));
    }
    io::UdpOptions options;
    options.peer_count = 2;
    auto udp = io::UdpPathsDatapath::open(options, specs, error, served);
    REQUIRE_MESSAGE(udp != nullptr, error.text);
    groups[i].network = udp.get();
    groups[i].outer = std::move(udp);
    groups[i].cpu = cpu;
  }
  return io::ThreadedDatapath::open(std::move(groups), 2, 0, error);
}

struct ThreadsPair {
  explicit ThreadsPair(std::size_t threads) {
    io::OsError error;
    zero = open_threads(threads, error);
    one = open_threads(threads, error);
    REQUIRE_MESSAGE((zero && one), error.text);
    std::vector<io::SocketAddress> addresses;
    for (std::uint8_t path = 0; path < one->paths(); ++path) addresses.push_back(one->path_address(path));
    REQUIRE(zero->set_peer_paths(1, addresses, error));
  }
  std::unique_ptr<io::ThreadedDatapath> zero, one;
};

std::multiset<std::string> io_thread_names() {
  std::multiset<std::string> names;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name.starts_with("mlt-io-")) names.insert(name);
  }
  return names;
}

// Takes runs, or does not, as the test says; its descriptor is always writable.
class ScriptedDatapath final : public io::NetworkDatapath {
 public:
  ScriptedDatapath() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) { capabilities_.max_run_bytes = 65'507; }

  bool set_peer(std::uint16_t, const io::SocketAddress&, io::OsError&) override { return true; }
  const io::SocketAddress& local_address() const override { return address_; }
  const io::Capabilities& capabilities() const override { return capabilities_; }
  SendStatus send(base::TimeNs, const base::DatagramRun&) override {
    ++sends;
    return answer;
  }
  std::size_t receive(base::TimeNs, std::size_t, io::ReceiveSink&) override { return 0; }
  int readable_fd() const override { return fd_.get(); }
  std::string last_error() const override { return "the script says so"; }

  std::atomic<SendStatus> answer{SendStatus::kSent};
  std::atomic<std::uint64_t> sends{0};

 private:
  io::UniqueFd fd_;
  io::SocketAddress address_ = io::SocketAddress::loopback(AF_INET, 1);
  io::Capabilities capabilities_;
};

struct Scripted {
  Scripted() {
    auto inner = std::make_unique<ScriptedDatapath>();
    script = inner.get();
    std::vector<io::IoGroup> groups(1);
    groups[0].network = script;
    groups[0].outer = std::move(inner);
    groups[0].paths = {0};
    io::OsError error;
    datapath = io::ThreadedDatapath::open(std::move(groups), 2, 0, error);
    REQUIRE_MESSAGE(datapath != nullptr, error.text);
    REQUIRE(datapath->set_peer(1, io::SocketAddress::loopback(AF_INET, 2), error));
  }
  // Waits for the datapath's descriptor; whether it came.
  bool woken(int wait_ms) {
    CollectingSink sink;
    datapath->receive(0, 16, sink);  // finds nothing, and arms the bell
    pollfd ready{datapath->readable_fd(), POLLIN, 0};
    return ::poll(&ready, 1, wait_ms) == 1;
  }
  io::RefusedRun wait_refused() {
    io::RefusedRun refused;
    const base::TimeNs give_up = io::monotonic_now() + 5 * base::kSecond;
    while (!datapath->poll_refused(refused)) {
      REQUIRE(io::monotonic_now() < give_up);
      woken(10);
    }
    return refused;
  }
  ScriptedDatapath* script = nullptr;
  std::unique_ptr<io::ThreadedDatapath> datapath;
};

}  // namespace

TEST_CASE("threads__each_serves_its_paths_under_their_own_numbers") {
  for (const std::size_t threads : {1U, 2U, 3U, 4U}) {
    CAPTURE(threads);
    ThreadsPair pair(threads);
    CHECK(pair.zero->paths() == kPaths);
    std::set<std::uint16_t> ports;
    CollectingSink sink;
    std::vector<TestRun> runs;
    for (std::uint8_t path = 0; path < kPaths; ++path) {
      ports.insert(pair.zero->path_address(path).port());
      runs.emplace_back(1, path * 10U, path + 1U, 200);
      runs.back().get().path = path;
      REQUIRE(pair.zero->send(0, runs.back().get()) == SendStatus::kSent);
      io_test::wait_until_left(*pair.zero);
      io_test::receive_until(*pair.one, sink, (path + 1U) * (path + 2U) / 2);
    }
    CHECK(ports.size() == kPaths);
    CHECK(sink.numbers() == std::vector<std::uint32_t>{0, 10, 11, 20, 21, 22, 30, 31, 32, 33});
    TestRun beyond(1, 0, 1, 200);
    beyond.get().path = kPaths;
    CHECK(pair.zero->send(0, beyond.get()) == SendStatus::kNoPeer);
    io_test::wait_until_left(*pair.zero);
    const auto counters = pair.zero->counters();
    CHECK(io::counter_value(counters, "io_threads") == threads);
    CHECK(io::counter_value(counters, "udp_runs_sent") == kPaths);
    for (const char* name :
         {"udp_path0_runs_sent", "udp_path1_runs_sent", "udp_path2_runs_sent", "udp_path3_runs_sent"}) {
      CHECK(io::counter_value(counters, name) == 1);
    }
    for (std::uint8_t path = 0; path < kPaths; ++path) CHECK(pair.zero->path_count(path).runs_sent == 1);
    CHECK(io::counter_value(pair.one->counters(), "udp_bytes_received") == 10 * 200);
  }
}

TEST_CASE("threads__have_names_and_end_with_their_datapath") {
  REQUIRE(io_thread_names().empty());
  {
    io::OsError error;
    const auto datapath = open_threads(3, error);
    REQUIRE(datapath != nullptr);
    CHECK(io_thread_names() == std::multiset<std::string>{"mlt-io-0", "mlt-io-1", "mlt-io-2"});
  }
  CHECK(io_thread_names().empty());
}

TEST_CASE("threads__run_on_the_cpu_that_they_are_given_and_name_those_that_there_are_if_it_is_none") {
  cpu_set_t allowed;
  REQUIRE(::sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  std::size_t first = 0;
  while (!CPU_ISSET(first, &allowed)) ++first;
  io::OsError error;
  const auto datapath = open_threads(2, error, static_cast<int>(first));
  REQUIRE_MESSAGE(datapath != nullptr, error.text);
  std::size_t pinned = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    std::string line, name;
    while (std::getline(status, line)) {
      if (line.starts_with("Name:")) name = line.substr(line.find('\t') + 1);
      if (!name.starts_with("mlt-io-") || !line.starts_with("Cpus_allowed_list:")) continue;
      CHECK(line.substr(line.find('\t') + 1) == std::to_string(first));
      ++pinned;
    }
  }
  CHECK(pinned == 2);
  for (const int cpu : {1'023, 1'024, 70'000}) {
    CHECK(open_threads(2, error, cpu) == nullptr);
    CHECK(error.code == io::OsErrorCode::kBadArgument);
    CHECK(error.text.find("I/O thread 0 can't run on CPU " + std::to_string(cpu) + ": this process may use " +
                          std::to_string(first)) == 0);
  }
}

TEST_CASE("threads__sleep_while_there_is_nothing_to_do") {
  ThreadsPair pair(2);
  const auto loops = [&] { return io::counter_value(pair.one->counters(), "io_thread_loops"); };
  loops();
  const std::uint64_t before = loops();
  pollfd nothing{pair.one->readable_fd(), POLLIN, 0};
  CHECK(::poll(&nothing, 1, 100) == 0);
  // One turn for each question, and the look before the next sleep; not one for the time that passed.
  CHECK(loops() - before <= 2 * 4);
}

TEST_CASE("fence__memory_is_read_until_the_system_has_taken_the_run") {
  Scripted one;
  one.script->answer = SendStatus::kWouldBlock;
  const TestRun run(1, 0, 3, 200);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    REQUIRE(one.datapath->send(0, run.get()) == SendStatus::kSent);
    CHECK(one.datapath->runs_taken() == i);
  }
  CHECK(!one.woken(5));
  CHECK(one.datapath->runs_left() == 0);
  one.script->answer = SendStatus::kSent;
  CHECK(one.woken(1'000));
  io_test::wait_until_left(*one.datapath);
  CHECK(one.datapath->runs_left() == 3);
}

TEST_CASE("send__a_full_ring_has_no_room_and_says_when_it_has_again") {
  Scripted one;
  one.script->answer = SendStatus::kWouldBlock;
  const TestRun run(1, 0, 1, 200);
  std::uint64_t taken = 0;
  while (one.datapath->has_room()) {
    REQUIRE(one.datapath->send(0, run.get()) == SendStatus::kSent);
    ++taken;
  }
  CHECK(taken == io::SendRing::kPlaces);
  CHECK(one.datapath->send(0, run.get()) == SendStatus::kWouldBlock);
  CHECK(one.datapath->runs_taken() == taken);
  one.script->answer = SendStatus::kSent;
  CHECK(one.woken(1'000));
  CHECK(one.datapath->has_room());
  CHECK(io::counter_value(one.datapath->counters(), "io_send_ring_full") > 0);
}

TEST_CASE("send__what_the_system_says_of_a_run_comes_back_later_with_its_words") {
  Scripted one;
  TestRun run(1, 0, 4, 700, 90);
  one.script->answer = SendStatus::kFailed;
  REQUIRE(one.datapath->send(0, run.get()) == SendStatus::kSent);
  io::RefusedRun refused = one.wait_refused();
  CHECK(refused.status == SendStatus::kFailed);
  CHECK(refused.peer == 1);
  CHECK(refused.path == 0);
  CHECK(refused.datagram_bytes == 700);
  CHECK(refused.error == "the script says so");
  CHECK(one.datapath->last_error() == "the script says so");
  one.script->answer = SendStatus::kTooLarge;
  REQUIRE(one.datapath->send(0, run.get()) == SendStatus::kSent);
  refused = one.wait_refused();
  CHECK(refused.status == SendStatus::kTooLarge);
  // A system that takes nothing for 20 ms has lost the run; it is not asked without pause meanwhile, though its
  // descriptor claims to be writable.
  const std::uint64_t asked = one.script->sends;
  one.script->answer = SendStatus::kWouldBlock;
  const base::TimeNs before = io::monotonic_now();
  REQUIRE(one.datapath->send(0, run.get()) == SendStatus::kSent);
  refused = one.wait_refused();
  CHECK(refused.status == SendStatus::kWouldBlock);
  CHECK(io::monotonic_now() - before >= 20 * base::kMillisecond);
  CHECK(one.script->sends - asked < 60);
  CHECK(one.datapath->runs_left() == one.datapath->runs_taken());
  CHECK(io::counter_value(one.datapath->counters(), "io_sends_timed_out") == 1);
}

TEST_CASE("close__offers_what_is_queued_to_the_system_and_does_not_wait_for_it") {
  Scripted one;
  const TestRun run(1, 0, 1, 200);
  one.script->answer = SendStatus::kWouldBlock;
  for (int i = 0; i < 4; ++i) REQUIRE(one.datapath->send(0, run.get()) == SendStatus::kSent);
  const base::TimeNs before = io::monotonic_now();
  one.datapath.reset();
  CHECK(io::monotonic_now() - before < base::kSecond);

  ThreadsPair pair(2);
  std::vector<TestRun> runs;
  for (std::uint32_t i = 0; i < 8; ++i) {
    runs.emplace_back(1, i, 1, 200);
    runs.back().get().path = static_cast<std::uint8_t>(i % 4);
    REQUIRE(pair.zero->send(0, runs.back().get()) == SendStatus::kSent);
  }
  pair.zero.reset();
  CollectingSink sink;
  io_test::receive_until(*pair.one, sink, runs.size());
  CHECK(sink.datagrams.size() == runs.size());
}
