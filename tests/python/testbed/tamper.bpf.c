// SPDX-License-Identifier: GPL-2.0
// What networks do to packets that nobody asked them to: rewrite the TOS byte of UDP, or drop what carries data over
// one protocol. For tests of mlt doctor, of blocked UDP and of goodbyes that are late.
//
// Runs at clsact egress. Only IPv4 is touched. GPL is what the kernel asks of a program that uses these helpers.
// clang-format off: libbpf's headers use types that this one defines.
#include <linux/bpf.h>
// clang-format on

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

#define TOS_OFFSET (ETH_HLEN + 1)
#define PROTOCOL_OFFSET (ETH_HLEN + 9)
#define CHECKSUM_OFFSET (ETH_HLEN + 10)
#define LENGTH_OFFSET (ETH_HLEN + 2)
#define TCP_HEADER_OFFSET (ETH_HLEN + 32)
#define IP_HEADER 20
#define TCP 6
#define UDP 17

struct what {
  __u32 keep;  // bits of the TOS byte that stay
  __u32 set;
  __u32 drop;  // an IP protocol; 0: none
};

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct what);
} tampering SEC(".maps");

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
  __u32 zero = 0;
  struct what* what = bpf_map_lookup_elem(&tampering, &zero);
  __u8 protocol = 0, before = 0;
  if (!what || skb->protocol != bpf_htons(ETH_P_IP)) return TC_ACT_OK;
  if (bpf_skb_load_bytes(skb, PROTOCOL_OFFSET, &protocol, 1)) return TC_ACT_OK;
  if (what->drop && protocol == what->drop && (protocol != TCP || carries_data(skb))) {
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

char _license[] SEC("license") = "GPL";
