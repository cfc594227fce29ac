// SPDX-License-Identifier: GPL-2.0
// Seeded random loss on one direction of a link, for mlt testbed.
//
// Runs at clsact ingress of the receiving end. Packet n of a link is lost if a hash of (seed, n) is below the
// threshold: the same seed loses the same packets, whatever the timing. Address resolution (ARP, ICMPv6) and
// multicast reports are neither counted nor lost, so that n depends on the traffic alone. Deliberately absent: bursts,
// corruption, delay. GPL is what the kernel asks of a program that uses these helpers.
// clang-format off: libbpf's headers use types that this one defines.
#include <linux/bpf.h>
// clang-format on

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

#define IPV6_NEXT_HEADER_OFFSET 6
#define NEXT_HEADER_HOP_BY_HOP 0  // multicast listener reports
#define NEXT_HEADER_ICMPV6 58

struct link {
  __u64 threshold;  // of 2^32
  __u64 seed;
};

struct link_counter {
  __u64 seen;
  __u64 lost;
};

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 1024);
  __type(key, __u32);
  __type(value, struct link);
} link_of_ifindex SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 1024);
  __type(key, __u32);
  __type(value, struct link_counter);
} link_counters SEC(".maps");

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
static __always_inline __u64 mix(__u64 z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

SEC("tc")
int mlt_link_loss(struct __sk_buff* skb) {
  if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
    __u8 next = 0;
    if (bpf_skb_load_bytes(skb, ETH_HLEN + IPV6_NEXT_HEADER_OFFSET, &next, 1)) return TC_ACT_OK;
    if (next == NEXT_HEADER_ICMPV6 || next == NEXT_HEADER_HOP_BY_HOP) return TC_ACT_OK;
  } else if (skb->protocol != bpf_htons(ETH_P_IP)) {
    return TC_ACT_OK;
  }
  __u32 ifindex = skb->ifindex;
  struct link* link = bpf_map_lookup_elem(&link_of_ifindex, &ifindex);
  struct link_counter* counter = bpf_map_lookup_elem(&link_counters, &ifindex);
  if (!link || !counter) return TC_ACT_OK;
  __u64 n = __sync_fetch_and_add(&counter->seen, 1);
  if ((mix(link->seed + (n + 1) * 0x9e3779b97f4a7c15ULL) >> 32) >= link->threshold) return TC_ACT_OK;
  __sync_fetch_and_add(&counter->lost, 1);
  return TC_ACT_SHOT;
}

char _license[] SEC("license") = "GPL";
