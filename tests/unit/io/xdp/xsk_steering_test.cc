// The steering program in the kernel's own test run: what it redirects and what it passes.
#include "io/xdp/xsk_steering.h"

#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "io/xdp/bpf_loader.h"
#include "io/xdp/xsk_frame.h"

using namespace mlt;

namespace {

constexpr std::uint32_t kMaxFrame = 1'514;

struct Program {
  io::UniqueFd map, socket, code;
  std::string missing;
};

Program load(const io::SocketAddress& local, io::Unfinished unfinished) {
  Program program;
  io::OsError error;
  program.map = io::create_socket_map(1, error);
  program.socket = io::UniqueFd(::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  if (!program.map || !program.socket) {
    program.missing = error ? error.text : "no AF_XDP here";
    return program;
  }
  REQUIRE_MESSAGE(io::put_socket(program.map.get(), 0, program.socket.get(), error), error.text);
  program.code = io::load_xdp_program(io::steering_program(program.map.get(), local, kMaxFrame, unfinished), error);
  REQUIRE_MESSAGE(program.code, error.text);
  return program;
}

// What the program says of `frame`.
std::uint32_t run(const Program& program, std::vector<std::byte> frame) {
  bpf_attr attributes{};
  attributes.test.prog_fd = static_cast<std::uint32_t>(program.code.get());
  attributes.test.data_in = reinterpret_cast<std::uintptr_t>(frame.data());
  attributes.test.data_size_in = static_cast<std::uint32_t>(frame.size());
  attributes.test.repeat = 1;
  REQUIRE(::syscall(SYS_bpf, BPF_PROG_TEST_RUN, &attributes, sizeof attributes) == 0);
  return attributes.test.retval;
}

std::vector<std::byte> datagram(const char* from, const char* to, std::size_t payload) {
  const io::UdpFrameHeader header({}, {}, *io::SocketAddress::parse(from), *io::SocketAddress::parse(to));
  std::vector<std::byte> frame(header.bytes() + payload, std::byte{1});
  header.write(frame.data(), static_cast<std::uint32_t>(payload), 0);
  return frame;
}

struct Case {
  const char* name;
  std::function<void(std::vector<std::byte>&)> change;
};

void check_all_pass(const Program& program, const std::vector<std::byte>& good, const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    CAPTURE(std::string(one.name));
    auto frame = good;
    one.change(frame);
    CHECK(run(program, frame) == XDP_PASS);
  }
}

void set(std::vector<std::byte>& frame, std::size_t at, int value) { frame[at] = static_cast<std::byte>(value); }

}  // namespace

TEST_CASE("steering__ipv4__redirects_our_datagrams_and_passes_the_rest") {
  const Program program = load(*io::SocketAddress::parse("10.1.2.200:40001"), io::Unfinished::kRedirect);
  if (!program.missing.empty()) {
    MESSAGE("skipped: ", program.missing);
    return;
  }
  const auto good = datagram("10.1.2.3:7", "10.1.2.200:40001", 100);
  CHECK(run(program, good) == XDP_REDIRECT);
  CHECK(run(program, datagram("10.1.2.3:7", "10.1.2.200:40001", kMaxFrame - 42)) == XDP_REDIRECT);
  CHECK(run(program, datagram("10.1.2.3:7", "10.1.2.200:40001", 1)) == XDP_REDIRECT);
  check_all_pass(program, good,
                 {{"another port", [](auto& frame) { set(frame, 37, 0x42); }},
                  {"another address", [](auto& frame) { set(frame, 33, 201); }},
                  {"another network", [](auto& frame) { set(frame, 30, 11); }},
                  {"TCP", [](auto& frame) { set(frame, 23, 6); }},
                  {"ICMP", [](auto& frame) { set(frame, 23, 1); }},
                  {"a first fragment", [](auto& frame) { set(frame, 20, 0x20); }},
                  {"a later fragment", [](auto& frame) { set(frame, 21, 1); }},
                  {"IP options", [](auto& frame) { set(frame, 14, 0x46); }},
                  {"ARP", [](auto& frame) { set(frame, 13, 0x06); }},
                  {"a VLAN tag", [](auto& frame) { set(frame, 12, 0x81); }},
                  {"cut short", [](auto& frame) { frame.resize(41); }},
                  {"too large for a frame", [](auto& frame) { frame.resize(kMaxFrame + 1); }}});
}

TEST_CASE("steering__ipv6__redirects_our_datagrams_and_passes_the_rest") {
  const Program program = load(*io::SocketAddress::parse("[fd00::fe:1]:40001"), io::Unfinished::kRedirect);
  if (!program.missing.empty()) return;
  const auto good = datagram("[fd00::2]:7", "[fd00::fe:1]:40001", 100);
  CHECK(run(program, good) == XDP_REDIRECT);
  check_all_pass(program, good,
                 {{"another port", [](auto& frame) { set(frame, 57, 0x42); }},
                  {"another address", [](auto& frame) { set(frame, 53, 2); }},
                  {"another prefix", [](auto& frame) { set(frame, 38, 0xFE); }},
                  {"a fragment header", [](auto& frame) { set(frame, 20, 44); }},
                  {"ICMPv6", [](auto& frame) { set(frame, 20, 58); }},
                  {"IPv4", [](auto& frame) { set(frame, 12, 0x08), set(frame, 13, 0x00); }},
                  {"cut short", [](auto& frame) { frame.resize(61); }}});
}

TEST_CASE("steering__generic__passes_what_a_kernel_left_unfinished") {
  for (const bool ipv6 : {false, true}) {
    CAPTURE(ipv6);
    const char* to = ipv6 ? "[fd00::fe:1]:40001" : "10.1.2.200:40001";
    const Program program = load(*io::SocketAddress::parse(to), io::Unfinished::kPass);
    if (!program.missing.empty()) return;
    auto frame = datagram(ipv6 ? "[fd00::2]:7" : "10.255.254.253:7", to, 100);
    CHECK(run(program, frame) == XDP_REDIRECT);
    const std::size_t addresses = ipv6 ? 22 : 26;
    const std::size_t udp = ipv6 ? 54 : 34;
    unsigned sum = 17 + 108;
    for (std::size_t i = addresses; i < udp; i += 2) {
      sum += std::to_integer<unsigned>(frame[i]) << 8 | std::to_integer<unsigned>(frame[i + 1]);
    }
    while (sum >> 16 != 0) sum = (sum & 0xFFFF) + (sum >> 16);
    set(frame, udp + 6, static_cast<int>(sum >> 8));
    set(frame, udp + 7, static_cast<int>(sum & 0xFF));
    CHECK(run(program, frame) == XDP_PASS);
  }
}

TEST_CASE("steering__passes_what_comes_in_where_no_socket_is") {
  const io::SocketAddress local = *io::SocketAddress::parse("10.1.2.200:40001");
  Program program = load(local, io::Unfinished::kRedirect);
  if (!program.missing.empty()) return;
  const auto good = datagram("10.1.2.3:7", "10.1.2.200:40001", 100);
  CHECK(run(program, good) == XDP_REDIRECT);
  program.socket.reset();  // as when the process that owned it died
  CHECK(run(program, good) == XDP_PASS);
}
