// SPDX-License-Identifier: GPL-2.0
// A firewall that drops new TCP connections to a range of ports, and nothing else. For tests of mlt's start.
#include "ipv4.bpf.h"

#define SYN 0x02
#define ACK 0x10

struct what {
  __u32 target;  // the address, as in the packet
  __u32 first;   // ports
  __u32 last;
};

ONE_ENTRY(dropping)

SEC("tc")
int drop_syn(struct __sk_buff* skb) {
  struct what* what = entry_of_dropping();
  __u32 target = 0;
  __u8 flags = 0;
  __u16 port = 0;
  if (!what || protocol_of(skb) != TCP) return TC_ACT_OK;
  if (bpf_skb_load_bytes(skb, TARGET_OFFSET, &target, 4) || target != what->target) return TC_ACT_OK;
  if (bpf_skb_load_bytes(skb, TCP_FLAGS_OFFSET, &flags, 1) || (flags & (SYN | ACK)) != SYN) return TC_ACT_OK;
  if (bpf_skb_load_bytes(skb, TARGET_PORT_OFFSET, &port, 2)) return TC_ACT_OK;
  port = bpf_ntohs(port);
  return port >= what->first && port <= what->last ? TC_ACT_SHOT : TC_ACT_OK;
}
