// SPDX-License-Identifier: GPL-2.0
// One egress port of a software switch: selective dropping and strict priority (MLT paper, sections 4.2.2 and 5.2).
//
// Runs at clsact egress, before the qdisc. Each class has a fluid queue that drains at link rate, highest class first;
// a packet that finds its queue above the limit L is dropped, above the threshold S it is marked if ECN-capable and
// dropped if not. The class also becomes skb->priority, by which htb below selects its leaf. The kernel requires the
// GPL for a program that uses these helpers. Deliberately absent: averaging, ramps, random loss. Units: bytes,
// nanoseconds.
// clang-format off: libbpf's headers use types that this one defines.
#include <linux/bpf.h>
// clang-format on

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

#define QUEUES 8
#define CONTROL_QUEUE (QUEUES - 1)
#define HTB_LEAF_BASE 16
#define ECN_MASK 3
#define NS_PER_SECOND 1000000000ULL

struct queue_config {
  __u64 threshold_bytes;  // S, 0 = none
  __u64 limit_bytes;      // L, 0 = none
};

struct port {
  struct bpf_spin_lock lock;
  __u32 unused;
  __u64 rate_bytes_per_second;
  __u64 drained_at_ns;
  __u64 backlog_bytes[QUEUES];
  struct queue_config queue[QUEUES];
};

struct counter_key {
  __u32 ifindex;
  __u32 queue;
};

struct counter {
  __u64 sent;
  __u64 marked;
  __u64 dropped_early;
  __u64 dropped_at_limit;
};

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 64);
  __type(key, __u32);
  __type(value, __u32);
} queue_of_dscp SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 256);
  __type(key, __u32);
  __type(value, struct port);
} port_of_ifindex SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_HASH);
  __uint(max_entries, 256 * QUEUES);
  __type(key, struct counter_key);
  __type(value, struct counter);
} counters SEC(".maps");

enum verdict { PASS, MARK, DROP_EARLY, DROP_AT_LIMIT };

// Returns the IPv4 TOS or IPv6 traffic class byte; -1 for other protocols.
static __always_inline int traffic_class(struct __sk_buff* skb) {
  __u8 head[2];
  if (skb->protocol == bpf_htons(ETH_P_IP)) {
    return bpf_skb_load_bytes(skb, ETH_HLEN, head, 2) ? -1 : head[1];
  }
  if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
    return bpf_skb_load_bytes(skb, ETH_HLEN, head, 2) ? -1 : ((head[0] & 15) << 4) | (head[1] >> 4);
  }
  return -1;
}

static __always_inline void drain(struct port* port, __u64 now) {
  // Read before the lock was taken: by now another CPU may have drained the port to a later time.
  if (now <= port->drained_at_ns) return;
  __u64 elapsed = now - port->drained_at_ns;
  if (elapsed > NS_PER_SECOND) elapsed = NS_PER_SECOND;  // keeps the product below 64 bits
  __u64 credit = port->rate_bytes_per_second * elapsed / NS_PER_SECOND;
  port->drained_at_ns = now;
  for (int i = QUEUES - 1; i >= 0; i--) {
    __u64 taken = port->backlog_bytes[i] < credit ? port->backlog_bytes[i] : credit;
    port->backlog_bytes[i] -= taken;
    credit -= taken;
  }
}

SEC("tc")
int mlt_switch_port(struct __sk_buff* skb) {
  __u32 ifindex = skb->ifindex;
  struct port* port = bpf_map_lookup_elem(&port_of_ifindex, &ifindex);
  if (!port) return TC_ACT_OK;

  int tos = traffic_class(skb);
  __u32 queue = CONTROL_QUEUE;  // address resolution uses the control class
  if (tos >= 0) {
    __u32 dscp = (tos >> 2) & 63;
    __u32* mapped = bpf_map_lookup_elem(&queue_of_dscp, &dscp);
    queue = mapped ? *mapped : 0;
  }
  queue &= QUEUES - 1;
  __u64 length = skb->len, now = bpf_ktime_get_ns();
  enum verdict verdict = PASS;

  bpf_spin_lock(&port->lock);
  drain(port, now);
  __u64 backlog = port->backlog_bytes[queue];
  struct queue_config config = port->queue[queue];
  if (config.limit_bytes && backlog + length > config.limit_bytes) {
    verdict = DROP_AT_LIMIT;
  } else if (config.threshold_bytes && backlog > config.threshold_bytes) {
    verdict = tos >= 0 && (tos & ECN_MASK) ? MARK : DROP_EARLY;
  }
  if (verdict == PASS || verdict == MARK) port->backlog_bytes[queue] = backlog + length;
  bpf_spin_unlock(&port->lock);

  struct counter_key key = {.ifindex = ifindex, .queue = queue};
  struct counter zero = {};
  struct counter* counter = bpf_map_lookup_elem(&counters, &key);
  if (!counter) {
    bpf_map_update_elem(&counters, &key, &zero, BPF_NOEXIST);
    counter = bpf_map_lookup_elem(&counters, &key);
  }
  if (counter) {
    counter->sent += verdict == PASS || verdict == MARK;
    counter->marked += verdict == MARK;
    counter->dropped_early += verdict == DROP_EARLY;
    counter->dropped_at_limit += verdict == DROP_AT_LIMIT;
  }
  if (verdict == DROP_EARLY || verdict == DROP_AT_LIMIT) return TC_ACT_SHOT;
  if (verdict == MARK) bpf_skb_ecn_set_ce(skb);
  skb->priority = (1 << 16) | (HTB_LEAF_BASE + queue);
  return TC_ACT_OK;
}

char _license[] SEC("license") = "GPL";
