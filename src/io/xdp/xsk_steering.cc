#include "io/xdp/xsk_steering.h"

#include <netinet/in.h>

#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "io/net/ip_bytes.h"
#include "io/xdp/xsk_frame.h"

namespace mlt::io {

namespace {

// Registers: the context stays where the kernel passes it, the packet's start is next to it.
constexpr int kContext = BPF_REG_1;
constexpr int kStart = BPF_REG_2;
constexpr int kEnd = BPF_REG_3;
constexpr int kLimit = BPF_REG_4;
constexpr int kField = BPF_REG_5;
constexpr int kSum = BPF_REG_0;

bpf_insn instruction(int code, int to, int from, int offset, std::int32_t immediate) {
  bpf_insn result{};
  result.code = static_cast<std::uint8_t>(code);
  result.dst_reg = static_cast<std::uint8_t>(to & 0xF);
  result.src_reg = static_cast<std::uint8_t>(from & 0xF);
  result.off = static_cast<std::int16_t>(offset);
  result.imm = immediate;
  return result;
}

class Assembler {
 public:
  void load(int size, int to, int from, std::size_t offset) {
    emit(instruction(BPF_LDX | size | BPF_MEM, to, from, static_cast<int>(offset), 0));
  }
  void copy(int to, int from) { emit(instruction(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0)); }
  void set(int to, std::int32_t value) { emit(instruction(BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value)); }
  void add(int to, std::int32_t value) { emit(instruction(BPF_ALU64 | BPF_ADD | BPF_K, to, 0, 0, value)); }
  void add_register(int to, int from) { emit(instruction(BPF_ALU64 | BPF_ADD | BPF_X, to, from, 0, 0)); }
  void shift_right(int to, std::int32_t bits) { emit(instruction(BPF_ALU64 | BPF_RSH | BPF_K, to, 0, 0, bits)); }
  void mask(int to, std::int32_t value) { emit(instruction(BPF_ALU64 | BPF_AND | BPF_K, to, 0, 0, value)); }
  void load_map(int to, int map) {
    emit(instruction(BPF_LD | BPF_DW | BPF_IMM, to, BPF_PSEUDO_MAP_FD, 0, map));
    emit(instruction(0, 0, 0, 0, 0));
  }
  void call(int helper) { emit(instruction(BPF_JMP | BPF_CALL, 0, 0, 0, helper)); }
  void exit() { emit(instruction(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)); }

  // Jumps to the end of the program, where the frame passes, if ...
  void pass_if_above(int left, int right) { jump(instruction(BPF_JMP | BPF_JGT | BPF_X, left, right, 0, 0)); }
  void pass_if_equal(int left, int right) { jump(instruction(BPF_JMP | BPF_JEQ | BPF_X, left, right, 0, 0)); }
  void pass_unless(int field, std::uint32_t value) {
    // The 32-bit comparison: the 64-bit one would extend the sign of the constant.
    jump(instruction(BPF_JMP32 | BPF_JNE | BPF_K, field, 0, 0, static_cast<std::int32_t>(value)));
  }

  std::vector<bpf_insn> finish() {
    for (const std::size_t at : jumps_) code_[at].off = static_cast<std::int16_t>(code_.size() - at - 1);
    set(BPF_REG_0, XDP_PASS);
    exit();
    return std::move(code_);
  }

 private:
  void emit(const bpf_insn& one) { code_.push_back(one); }
  void jump(const bpf_insn& one) {
    jumps_.push_back(code_.size());
    emit(one);
  }

  std::vector<bpf_insn> code_;
  std::vector<std::size_t> jumps_;
};

// Fields are loaded in network byte order; so are the constants that they are compared to.
void require16(Assembler& program, std::size_t offset, std::uint16_t value) {
  program.load(BPF_H, kField, kStart, offset);
  program.pass_unless(kField, htons(value));
}

void require8(Assembler& program, std::size_t offset, std::uint8_t value) {
  program.load(BPF_B, kField, kStart, offset);
  program.pass_unless(kField, value);
}

void require_address(Assembler& program, std::size_t offset, const IpBytes& address) {
  for (std::size_t at = 0; at < address.size; at += sizeof(std::uint32_t)) {
    std::uint32_t word;
    std::memcpy(&word, address.bytes.data() + at, sizeof word);
    program.load(BPF_W, kField, kStart, offset + at);
    program.pass_unless(kField, word);
  }
}

// Passes a frame whose UDP checksum is the bare sum of the pseudo-header, `addresses_bytes` of which are at
// `addresses`.
void pass_unfinished(Assembler& program, std::size_t addresses, std::size_t addresses_bytes, std::size_t udp) {
  program.load(BPF_H, kSum, kStart, udp + 4);
  program.add(kSum, htons(IPPROTO_UDP));
  for (std::size_t at = 0; at < addresses_bytes; at += sizeof(std::uint16_t)) {
    program.load(BPF_H, kField, kStart, addresses + at);
    program.add_register(kSum, kField);
  }
  for (int i = 0; i < 2; ++i) {
    program.copy(kField, kSum);
    program.shift_right(kField, 16);
    program.mask(kSum, 0xFFFF);
    program.add_register(kSum, kField);
  }
  program.load(BPF_H, kField, kStart, udp + 6);
  program.pass_if_equal(kSum, kField);
}

}  // namespace

std::vector<bpf_insn> steering_program(int sockets, const SocketAddress& local, std::uint32_t max_frame_bytes,
                                       Unfinished unfinished) {
  MLT_CHECK(!local.is_wildcard() && local.port() != 0);
  const IpBytes address = IpBytes::of(local);
  const bool is_ipv6 = address.family == AF_INET6;
  const std::size_t ip = kEthernetHeaderBytes;
  const std::size_t udp = ip + (is_ipv6 ? kIpv6HeaderBytes : kIpv4HeaderBytes);

  Assembler program;
  program.load(BPF_W, kStart, kContext, offsetof(xdp_md, data));
  program.load(BPF_W, kEnd, kContext, offsetof(xdp_md, data_end));
  program.copy(kLimit, kStart);
  program.add(kLimit, static_cast<std::int32_t>(udp + kUdpHeaderBytes));
  program.pass_if_above(kLimit, kEnd);
  program.copy(kLimit, kStart);
  program.add(kLimit, static_cast<std::int32_t>(max_frame_bytes));
  program.pass_if_above(kEnd, kLimit);
  if (is_ipv6) {
    require16(program, 12, 0x86DD);
    require8(program, ip + 6, IPPROTO_UDP);
    require_address(program, ip + 24, address);
  } else {
    require16(program, 12, 0x0800);
    require8(program, ip, 0x45);
    program.load(BPF_H, kField, kStart, ip + 6);
    program.mask(kField, htons(0x3FFF));  // "more fragments", and the fragment's offset
    program.pass_unless(kField, 0);
    require8(program, ip + 9, IPPROTO_UDP);
    require_address(program, ip + 16, address);
  }
  require16(program, udp + 2, local.port());
  if (unfinished == Unfinished::kPass) {
    pass_unfinished(program, ip + (is_ipv6 ? 8 : 12), 2 * address.size, udp);
  }

  // Redirects to the socket of the frame's receive queue; the last argument is the action if there is none.
  program.load(BPF_W, BPF_REG_2, kContext, offsetof(xdp_md, rx_queue_index));
  program.load_map(BPF_REG_1, sockets);
  program.set(BPF_REG_3, XDP_PASS);
  program.call(BPF_FUNC_redirect_map);
  program.exit();
  return program.finish();
}

}  // namespace mlt::io
