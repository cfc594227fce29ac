// SPDX-License-Identifier: GPL-2.0
// What the programs of these tests share: the places in an IPv4 packet without options, and a table of one entry that
// the test writes. They run at clsact egress. GPL is what the kernel asks of a program that uses these helpers.
#pragma once

// clang-format off: libbpf's headers use types that this one defines.
#include <linux/bpf.h>
// clang-format on

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

#define TOS_OFFSET (ETH_HLEN + 1)
#define LENGTH_OFFSET (ETH_HLEN + 2)
#define PROTOCOL_OFFSET (ETH_HLEN + 9)
#define CHECKSUM_OFFSET (ETH_HLEN + 10)
#define TARGET_OFFSET (ETH_HLEN + 16)
#define IP_HEADER 20
#define TARGET_PORT_OFFSET (ETH_HLEN + IP_HEADER + 2)
#define TCP_HEADER_OFFSET (ETH_HLEN + IP_HEADER + 12)
#define TCP_FLAGS_OFFSET (ETH_HLEN + IP_HEADER + 13)
#define TCP 6
#define UDP 17

// The table `name` with one entry, a struct what.
#define ONE_ENTRY(name)                                       \
  struct {                                                    \
    __uint(type, BPF_MAP_TYPE_ARRAY);                         \
    __uint(max_entries, 1);                                   \
    __type(key, __u32);                                       \
    __type(value, struct what);                               \
  } name SEC(".maps");                                        \
  static __always_inline struct what* entry_of_##name(void) { \
    __u32 zero = 0;                                           \
    return bpf_map_lookup_elem(&name, &zero);                 \
  }

// The IP protocol of an IPv4 packet; 0 of all others.
static __always_inline __u8 protocol_of(struct __sk_buff* skb) {
  __u8 protocol = 0;
  if (skb->protocol != bpf_htons(ETH_P_IP)) return 0;
  return bpf_skb_load_bytes(skb, PROTOCOL_OFFSET, &protocol, 1) ? 0 : protocol;
}

char _license[] SEC("license") = "GPL";
