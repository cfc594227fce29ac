// Accounts for every datagram: sent + duplicated = delivered + dropped + in flight.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace mlt::sim {

#define MLT_SIM_FATES(X)                                                                 \
  X(sent)                  /* handed to the network by an endpoint */                    \
  X(duplicated)            /* further copies that a link made */                         \
  X(delivered)             /* handed to an endpoint */                                   \
  X(dropped_loss)          /* a link's random loss */                                    \
  X(dropped_checksum)      /* payload damaged: the receiver's UDP checksum rejects it */ \
  X(dropped_link_down)     /* the link is broken */                                      \
  X(dropped_too_long)      /* the link carries shorter datagrams only */                 \
  X(dropped_filter)        /* rejected by Network::drop_if */                            \
  X(dropped_partition)     /* the two hosts are cut off from each other */               \
  X(dropped_selective)     /* not ECN-capable, queue above its threshold */              \
  X(dropped_queue_limit)   /* the queue is full */                                       \
  X(dropped_shared_buffer) /* the switch's memory is full */                             \
  X(dropped_no_route)      /* the graph has no route */                                  \
  X(dropped_socket_buffer) /* the host did not read in time */                           \
  X(dropped_host_down)     /* the host is down */

enum class Fate : std::size_t {
#define MLT_X(name) k_##name,
  MLT_SIM_FATES(MLT_X)
#undef MLT_X
      kCount
};
inline constexpr std::size_t kFates = static_cast<std::size_t>(Fate::kCount);

inline constexpr std::array<const char*, kFates> kFateNames = {
#define MLT_X(name) #name,
    MLT_SIM_FATES(MLT_X)
#undef MLT_X
};

struct Tally {
  std::uint64_t packets = 0;
  std::uint64_t bytes = 0;  // of datagrams
};

class Ledger {
 public:
  void add(Fate fate, bool is_data, std::uint32_t bytes) {
    Tally& tally = tallies_[is_data ? 1 : 0][static_cast<std::size_t>(fate)];
    ++tally.packets;
    tally.bytes += bytes;
  }
  const Tally& of(Fate fate, bool is_data) const { return tallies_[is_data ? 1 : 0][static_cast<std::size_t>(fate)]; }
  std::uint64_t packets(Fate fate) const { return of(fate, false).packets + of(fate, true).packets; }

  // Sum of everything dropped, of data or of control datagrams.
  Tally dropped(bool is_data) const {
    Tally sum;
    for (std::size_t fate = static_cast<std::size_t>(Fate::k_dropped_loss); fate < kFates; ++fate) {
      sum.packets += tallies_[is_data ? 1 : 0][fate].packets;
      sum.bytes += tallies_[is_data ? 1 : 0][fate].bytes;
    }
    return sum;
  }
  // Sent, and neither delivered nor dropped.
  Tally in_flight(bool is_data) const {
    const Tally lost = dropped(is_data);
    const Tally& sent = of(Fate::k_sent, is_data);
    const Tally& copies = of(Fate::k_duplicated, is_data);
    const Tally& delivered = of(Fate::k_delivered, is_data);
    return {sent.packets + copies.packets - delivered.packets - lost.packets,
            sent.bytes + copies.bytes - delivered.bytes - lost.bytes};
  }

 private:
  std::array<std::array<Tally, kFates>, 2> tallies_{};
};

}  // namespace mlt::sim
