// SPDX-License-Identifier: GPL-2.0
// What networks do to packets that nobody asked them to: rewrite the TOS byte of UDP, or drop what carries data over
// one protocol. For tests of mlt doctor, of blocked UDP and of goodbyes that are late.
#include "ipv4.bpf.h"

struct what {
  __u32 keep;  // bits of the TOS byte that stay
  __u32 set;
  __u32 drop;  // an IP protocol; 0: none
};

ONE_ENTRY(tampering)

// Whether a TCP packet is more than an acknowledgement or a reset.
static __always_inline int carries_data(struct __sk_buff* skb) {
  __u16 length = 0;
  __u8 header = 0;
  if (bpf_skb_load_bytes(skb, LENGTH_OFFSET, &length, 2)) return 0;
  if (bpf_skb_load_bytes(skb, TCP_HEADER_OFFSET, &header, 1)) return 0;
  return bpf_ntohs(length) > IP_HEADER + (header >> 4) * 4;
}

SEC("tc")
int tamper(struct __sk_buff* skb) {
  struct what* what = entry_of_tampering();
  __u8 protocol = protocol_of(skb), before = 0;
  if (!what || !protocol) return TC_ACT_OK;
  if (protocol == what->drop && (protocol != TCP || carries_data(skb))) {
    return TC_ACT_STOLEN;  // TC_ACT_SHOT tells the sender's TCP, which then does not wait for its timeout
  }
  if (protocol != UDP) return TC_ACT_OK;
  if (bpf_skb_load_bytes(skb, TOS_OFFSET, &before, 1)) return TC_ACT_OK;
  __u8 after = (before & what->keep) | what->set;
  if (after == before) return TC_ACT_OK;
  bpf_l3_csum_replace(skb, CHECKSUM_OFFSET, bpf_htons(before), bpf_htons(after), 2);
  bpf_skb_store_bytes(skb, TOS_OFFSET, &after, 1, 0);
  return TC_ACT_OK;
}
