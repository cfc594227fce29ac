// SPDX-License-Identifier: GPL-2.0
// A firewall that drops new TCP connections to a range of ports, and nothing else. For tests of mlt's start.
//
// Runs at clsact egress, over IPv4 without options. GPL is what the kernel asks of a program that uses these helpers.
// clang-format off: libbpf's headers use types that this one defines.
#include <linux/bpf.h>
// clang-format on

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

#define PROTOCOL_OFFSET (ETH_HLEN + 9)
#define TARGET_OFFSET (ETH_HLEN + 16)
#define PORT_OFFSET (ETH_HLEN + 22)
#define FLAGS_OFFSET (ETH_HLEN + 33)
#define TCP 6
#define SYN 0x02
#define ACK 0x10

struct what {
  __u32 target;  // the address, as in the packet
  __u32 first;   // ports
  __u32 last;
};

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct what);
} dropping SEC(".maps");

SEC("tc")
int drop_syn(struct __sk_buff* skb) {
  __u32 zero = 0, target = 0;
  struct what* what = bpf_map_lookup_elem(&dropping, &zero);
  __u8 protocol = 0, flags = 0;
  __u16 port = 0;
  if (!what || skb->protocol != bpf_htons(ETH_P_IP)) return TC_ACT_OK;
  if (bpf_skb_load_bytes(skb, PROTOCOL_OFFSET, &protocol, 1) || protocol != TCP) return TC_ACT_OK;
  if (bpf_skb_load_bytes(skb, TARGET_OFFSET, &target, 4) || target != what->target) return TC_ACT_OK;
  if (bpf_skb_load_bytes(skb, FLAGS_OFFSET, &flags, 1) || (flags & (SYN | ACK)) != SYN) return TC_ACT_OK;
  if (bpf_skb_load_bytes(skb, PORT_OFFSET, &port, 2)) return TC_ACT_OK;
  port = bpf_ntohs(port);
  return port >= what->first && port <= what->last ? TC_ACT_SHOT : TC_ACT_OK;
}

char _license[] SEC("license") = "GPL";
