// All counters of the endpoint, with their names. Every dropped, repeated or ignored packet is counted here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/probe_table.h"
#include "core/receive_table.h"
#include "core/send_table.h"

namespace mlt::core {

// The wrong_state_* counters, one per event of the state tables, count events that the table excludes in the phase in
// which they occurred. wrong_state_send_cancel and wrong_state_receive_cancel count cancels after the end: harmless. A
// faulty peer causes the bitmap one. The others stay 0 unless mlt has a bug: report them.
#define MLT_CORE_COUNTERS(X)                                                                                \
  X(data_packets_sent)     /* first sends and repairs */                                                    \
  X(data_bytes_sent)       /* payload of these */                                                           \
  X(segments_repaired)     /* of these: sent in a later round than the first */                             \
  X(runs_sent)             /* batches of data */                                                            \
  X(data_packets_received) /* valid, for this connection */                                                 \
  X(data_bytes_received)   /* payload of these */                                                           \
  X(segments_placed)       /* arrived first and were written */                                             \
  X(segments_restored)     /* lost, and written as parity packets restored them */                          \
  X(parity_packets_sent)   /* behind the first round of a send, where loss is known and round trips long */ \
  X(parity_bytes_sent)     /* payload of these */                                                           \
  X(parity_packets_received)                                                                                \
  X(parity_packets_unused)  /* of these: of a block that had arrived, of a receive that adds, repeated */   \
  X(parity_packets_dropped) /* of these: no space to keep them */                                           \
  X(duplicate_segments)     /* arrived again; not written */                                                \
  X(stale_packets)          /* of a transfer that has ended; not written */                                 \
  X(early_segments_kept)    /* arrived before their receive was posted, and were buffered */                \
  X(early_segments_dropped) /* arrived before their receive was posted; no space */                         \
  X(ce_marks_received)      /* CE-marked data packets */                                                    \
  X(reordered_packets)      /* arrived after a later one of the same path */                                \
  X(acks_sent)                                                                                              \
  X(acks_received)                                                                                          \
  X(probes_sent)                                                                                            \
  X(probes_received)                                                                                        \
  X(bitmaps_sent)                                                                                           \
  X(bitmaps_received)                                                                                       \
  X(stops_sent)                                                                                             \
  X(stops_received)                                                                                         \
  X(aborts_sent) /* sent when a send fails here, over the control connection */                             \
  X(aborts_received)                                                                                        \
  X(aborts_dropped)   /* arrived before their receive was posted; no space to remember them */              \
  X(replies_dropped)  /* the queue of replies was full: the sender probes again */                          \
  X(replies_repeated) /* sent twice, where packets are lost */                                              \
  X(retirements_sent) /* frames that list the forgotten tags */                                             \
  X(retirements_received)                                                                                   \
  X(stale_control)             /* control-class packets for a transfer or round that has ended */           \
  X(control_resent)            /* probes repeated because no reply came in time */                          \
  X(tcp_fallback_packets_sent) /* control-class packets sent over the TCP fallback */                       \
  X(tcp_fallback_packets_received)                                                                          \
  X(window_stalls)              /* a peer's window stayed full for a whole retransmission timeout */        \
  X(rounds_lost)                /* more than half of a round was requested again; the rate may be halved */ \
  X(segments_lost_within_bound) /* missing at completion, allowed by the caller */                          \
  X(paths_suspended)            /* nothing arrived on a path while its siblings delivered */                \
  X(paths_resumed)              /* suspended paths that became active again after a reply */                \
  X(mtu_probes_sent)            /* padded probes that check whether a path carries full packets */          \
  X(mtu_probes_received)                                                                                    \
  X(mtu_replies_sent)                                                                                       \
  X(mtu_replies_received)                                                                                   \
  X(mtu_limits_found) /* paths found to carry only shorter packets */                                       \
  X(mtu_limits_gone)  /* of these paths: found to carry full packets again */                               \
  X(sends_completed)                                                                                        \
  X(receives_completed)                                                                                     \
  X(operations_failed)                                                                                      \
  X(buffer_overflows) /* reports of datagrams that this host dropped: its receive buffer was full */        \
  X(drop_too_short)   /* datagrams dropped by the codec, by reason */                                       \
  X(drop_bad_version)                                                                                       \
  X(drop_unknown_type)                                                                                      \
  X(drop_unknown_flags)                                                                                     \
  X(drop_unknown_element)                                                                                   \
  X(drop_bad_length)                                                                                        \
  X(drop_bad_cookie)  /* not of this connection: stray, forged, or of an earlier incarnation */             \
  X(drop_bad_path)    /* path number out of the agreed range */                                             \
  X(drop_bad_segment) /* not on the segment grid, or beyond the tensor */                                   \
  X(drop_mismatch)    /* size or element type differs from the posted operation */                          \
  MLT_SEND_EVENTS(X, wrong_state_send_)                                                                     \
  MLT_RECEIVE_EVENTS(X, wrong_state_receive_)                                                               \
  MLT_PROBE_EVENTS(X, wrong_state_probe_)                                                                   \
  MLT_WINDOW_EVENTS(X, wrong_state_window_)

enum class Counter : std::size_t {
#define MLT_X(name) k_##name,
  MLT_CORE_COUNTERS(MLT_X)
#undef MLT_X
      kCount
};

inline constexpr std::array<const char*, static_cast<std::size_t>(Counter::kCount)> kCounterNames = {
#define MLT_X(name) #name,
    MLT_CORE_COUNTERS(MLT_X)
#undef MLT_X
};

// Owned by the endpoint's thread.
class Counters {
 public:
  void add(Counter which, std::uint64_t amount = 1) { values_[static_cast<std::size_t>(which)] += amount; }
  std::uint64_t value(Counter which) const { return values_[static_cast<std::size_t>(which)]; }
  const std::array<std::uint64_t, static_cast<std::size_t>(Counter::kCount)>& values() const { return values_; }

 private:
  std::array<std::uint64_t, static_cast<std::size_t>(Counter::kCount)> values_{};
};

}  // namespace mlt::core
