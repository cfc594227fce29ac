// How two processes come to share memory, and that nothing of it is left behind.
#include "io/shm/shm_offer.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "unit/io/datagrams.h"

using namespace mlt;

namespace {

constexpr std::uint32_t kRing = io::kMinShmRingBytes;

// An address of this process's own.
std::string address(std::uint64_t number) { return io::shm_address(static_cast<std::uint64_t>(::getpid()), number); }

io::ShmOffer offer_of(std::uint16_t rank) { return {rank, 0x1122'3344'5566'0000ULL + rank, kRing, 31'504}; }

std::size_t open_descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

// What the system says of shared memory in use, in KiB.
long shared_kib() {
  std::ifstream info("/proc/meminfo");
  for (std::string word; info >> word;) {
    if (word == "Shmem:") {
      long kib = 0;
      info >> kib;
      return kib;
    }
  }
  return -1;
}

sockaddr_un raw_address(const std::string& name, socklen_t& length) {
  sockaddr_un raw{};
  raw.sun_family = AF_UNIX;
  std::memcpy(raw.sun_path + 1, name.data(), name.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return raw;
}

}  // namespace

TEST_CASE("offer_shm__is_there_when_the_other_side_asks_and_joins_both_ways") {
  io::OsError error;
  auto listener = io::ShmListener::open(address(1), 4, error);
  REQUIRE_MESSAGE(listener.has_value(), error.text);
  CHECK_FALSE(listener->take(2, offer_of(2).cookie).has_value());
  io::ShmDescriptors give;
  auto mine = io::ShmSegment::create(kRing, give, error);
  REQUIRE(mine.has_value());
  REQUIRE_MESSAGE(io::offer_shm(address(1), offer_of(2), give, error), error.text);
  CHECK_FALSE(listener->take(3, offer_of(3).cookie).has_value());
  auto taken = listener->take(2, offer_of(2).cookie);
  REQUIRE(taken.has_value());
  CHECK(taken->offer.segment_bytes == 31'504);
  auto theirs = io::ShmSegment::join(taken->offer.ring_bytes, std::move(taken->descriptors), error);
  REQUIRE_MESSAGE(theirs.has_value(), error.text);
  for (auto* way : {&*mine, &*theirs}) {
    io::ShmSegment& other = way == &*mine ? *theirs : *mine;
    const io_test::TestRun run(0, 9, 1, 3'000);
    REQUIRE(way->out().has_room(io::shm_footprint(3'000)));
    way->out().push(run.get(), 0, 3'000);
    io::ShmRecord record;
    REQUIRE(other.in().front(record));
    CHECK(record.bytes.size() == 3'000);
    CHECK(base::load_le32(record.bytes.data() + 8) == io_test::TestRun::checksum(record.bytes));
    other.in().release();
    way->ring_other();
    pollfd rung{other.own_bell(), POLLIN, 0};
    CHECK(::poll(&rung, 1, 0) == 1);
    other.drain_own_bell();
    CHECK(::poll(&rung, 1, 0) == 0);
  }
  CHECK(listener->refused() == 0);
}

TEST_CASE("offer_shm__nobody_there_is_no_error_and_no_offer") {
  io::OsError error;
  io::ShmDescriptors give;
  REQUIRE(io::ShmSegment::create(kRing, give, error).has_value());
  CHECK_FALSE(io::offer_shm(address(2), offer_of(1), give, error));
  CHECK_FALSE(static_cast<bool>(error));
}

TEST_CASE("shm_listener__drops_an_offer_with_another_cookie") {
  io::OsError error;
  auto listener = io::ShmListener::open(address(3), 4, error);
  REQUIRE(listener.has_value());
  io::ShmDescriptors give;
  REQUIRE(io::ShmSegment::create(kRing, give, error).has_value());
  REQUIRE(io::offer_shm(address(3), offer_of(1), give, error));
  CHECK_FALSE(listener->take(1, offer_of(1).cookie + (1ULL << 40)).has_value());
  CHECK_FALSE(listener->take(1, offer_of(1).cookie).has_value());
  CHECK(listener->refused() == 1);
}

TEST_CASE("shm_listener__turns_away_what_is_no_offer_and_keeps_no_descriptor_of_it") {
  io::OsError error;
  auto listener = io::ShmListener::open(address(4), 2, error);
  REQUIRE(listener.has_value());
  const std::size_t before = open_descriptors();
  {
    socklen_t length = 0;
    const sockaddr_un raw = raw_address(address(4), length);
    std::vector<io::UniqueFd> callers;
    for (const char* text : {"", "x", "no offer at all, but of 24", "far too long to be an offer of anything"}) {
      callers.emplace_back(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
      REQUIRE(::connect(callers.back().get(), reinterpret_cast<const sockaddr*>(&raw), length) == 0);
      if (*text != '\0') REQUIRE(::send(callers.back().get(), text, std::strlen(text), 0) > 0);
    }
    CHECK_FALSE(listener->take(1, 1).has_value());
    CHECK(listener->refused() >= 3);
  }
  CHECK_FALSE(listener->take(1, 1).has_value());
  CHECK(open_descriptors() <= before + 2);  // of silent callers, as many as there are ranks
}

TEST_CASE("shm_segment__join_refuses_what_could_fault") {
  io::OsError error;
  const auto offered = [&](std::size_t size, int seals) {
    io::ShmDescriptors give;
    give.memory = io::UniqueFd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(::ftruncate(give.memory.get(), static_cast<off_t>(size)) == 0);
    REQUIRE(::fcntl(give.memory.get(), F_ADD_SEALS, seals) == 0);
    return give;
  };
  const std::size_t size = 8'192 + 2 * std::size_t{kRing};
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  CHECK(io::ShmSegment::join(kRing, offered(size, seals), error).has_value());
  CHECK_FALSE(io::ShmSegment::join(kRing, offered(size - 4'096, seals), error).has_value());
  CHECK_FALSE(io::ShmSegment::join(kRing, offered(size, F_SEAL_GROW | F_SEAL_SEAL), error).has_value());
  CHECK_FALSE(io::ShmSegment::join(kRing, offered(size, F_SEAL_SHRINK | F_SEAL_GROW), error).has_value());
  for (const std::uint32_t ring : {0U, kRing + 64, kRing / 2, 2 * io::kMaxShmRingBytes, 0x8000'0000U}) {
    CHECK_FALSE(io::ShmSegment::join(ring, offered(size, seals), error).has_value());
  }
  io::ShmDescriptors pipe_end;  // a descriptor of another kind
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  pipe_end.memory = io::UniqueFd(ends[0]);
  const io::UniqueFd other(ends[1]);
  CHECK_FALSE(io::ShmSegment::join(kRing, std::move(pipe_end), error).has_value());
}

TEST_CASE("shm__another_user_is_refused_by_both_sides") {
  if (::geteuid() != 0) {
    MESSAGE("left out: only root can become another user");
    return;
  }
  constexpr uid_t kNobody = 65'534;
  io::OsError error;
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  auto listener = io::ShmListener::open(address(5), 4, error);
  REQUIRE(listener.has_value());
  const std::string ours = address(5);
  const std::string theirs = address(6);
  const pid_t child = ::fork();
  if (child == 0) {
    // It listens, so that root's offer may be refused by root; and offers, so that root's listener may refuse it.
    io::OsError child_error;
    if (::setuid(kNobody) != 0) ::_exit(2);
    auto own = io::ShmListener::open(theirs, 4, child_error);
    io::ShmDescriptors give;
    const bool made = io::ShmSegment::create(kRing, give, child_error).has_value();
    const bool taken = io::offer_shm(ours, offer_of(1), give, child_error);
    const char verdict = own && made && !taken && child_error ? 'r' : 'x';
    [[maybe_unused]] const auto n = ::write(ready[1], &verdict, 1);
    ::pause();
    ::_exit(0);
  }
  char verdict = 0;
  REQUIRE(::read(ready[0], &verdict, 1) == 1);
  CHECK(verdict == 'r');
  io::ShmDescriptors give;
  REQUIRE(io::ShmSegment::create(kRing, give, error).has_value());
  CHECK_FALSE(io::offer_shm(theirs, offer_of(1), give, error));
  CHECK(error.text.find("another user") != std::string::npos);
  CHECK_FALSE(listener->take(1, offer_of(1).cookie).has_value());
  CHECK(listener->refused() == 1);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("shm__a_killed_process_leaves_nothing") {
  io::OsError error;
  const std::string name = address(7);
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  constexpr std::uint32_t kLarge = io::kMaxShmRingBytes;
  const long before = shared_kib();
  const pid_t child = ::fork();
  if (child == 0) {
    io::OsError child_error;
    auto listener = io::ShmListener::open(name, 4, child_error);
    io::ShmDescriptors give;
    auto segment = io::ShmSegment::create(kLarge, give, child_error);
    if (!listener || !segment) ::_exit(2);
    const io_test::TestRun run(0, 0, 1, 60'000);
    while (segment->out().has_room(io::shm_footprint(60'000))) segment->out().push(run.get(), 0, 60'000);
    [[maybe_unused]] const auto n = ::write(ready[1], "r", 1);
    ::pause();
    ::_exit(0);
  }
  char verdict = 0;
  REQUIRE(::read(ready[0], &verdict, 1) == 1);
  CHECK(shared_kib() > before + 8 * 1'024);  // it is counted there
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(shared_kib() < before + 8 * 1'024);
  auto listener = io::ShmListener::open(name, 4, error);  // its address is free
  CHECK_MESSAGE(listener.has_value(), error.text);
  ::close(ready[0]);
  ::close(ready[1]);
}
