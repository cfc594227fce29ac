// Connects the ranks of one process by memory: each has a bounded inbound queue to which all others send.
//
// For tests and for measuring the protocol without a kernel. A run is copied once, into the receiver's queue, and
// delivered from there. A full queue drops the whole run and counts it, as a switch port would. Single-threaded: one
// thread owns the network and all its endpoints, so that the same calls give the same outcome. The network must outlive
// its endpoints. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "io/counters.h"
#include "io/datapath.h"

namespace mlt::io {

struct MemoryOptions {
  std::uint16_t peer_count = 2;
  std::uint32_t queue_bytes = 4U << 20;  // per receiver, headers included; at least one full run
  std::uint32_t max_datagram_bytes = 1'472;
  std::uint32_t max_run_segments = base::kMaxRunSegments;
};

enum class MemoryCounter : std::size_t {
  kRunsSent,       // accepted; of these kRunsDropped were lost
  kRunsDropped,    // the receiver's queue was full
  kBytesDropped,   //
  kRunsReceived,   //
  kBytesReceived,  //
  kCount
};

class MemoryNetwork;

class MemoryDatapath final : public Datapath {
 public:
  const Capabilities& capabilities() const override { return capabilities_; }
  SendStatus send(base::TimeNs now, const base::DatagramRun& run) override;
  std::size_t receive(base::TimeNs now, std::size_t budget_runs, ReceiveSink& sink) override;
  int readable_fd() const override { return -1; }
  // Memory has no descriptor: there is work as soon as something is queued.
  base::TimeNs next_timeout() const override;
  std::span<const NamedCounter> counters() const override { return counters_.all(); }

  // DSCP of the last delivered run, which ReceivedRun does not carry.
  std::uint8_t last_received_dscp() const { return last_received_dscp_; }

 private:
  friend class MemoryNetwork;
  MemoryDatapath(MemoryNetwork& network, std::uint16_t rank);

  MemoryNetwork& network_;
  std::uint16_t rank_;
  std::uint8_t last_received_dscp_ = 0;
  Capabilities capabilities_;
  CounterTable<MemoryCounter> counters_;
};

class MemoryNetwork {
 public:
  explicit MemoryNetwork(const MemoryOptions& options);
  MemoryNetwork(const MemoryNetwork&) = delete;
  MemoryNetwork& operator=(const MemoryNetwork&) = delete;

  // Creates an endpoint for `rank`; several for one rank share its queue.
  std::unique_ptr<MemoryDatapath> endpoint(std::uint16_t rank);
  std::size_t queued_bytes(std::uint16_t rank) const;

 private:
  friend class MemoryDatapath;
  struct Record {
    std::uint32_t bytes;  // kSkip: the rest of the ring is unused, continue at its start
    std::uint32_t datagram_bytes;
    base::Ecn ecn;
    std::uint8_t dscp;
  };
  static constexpr std::uint32_t kSkip = ~std::uint32_t{0};
  static constexpr std::size_t kRecordBytes = 16;

  // A ring of records, each contiguous.
  struct Queue {
    std::vector<std::byte> ring;
    std::size_t head = 0;  // next to read
    std::size_t tail = 0;  // next to write
    std::size_t used = 0;

    bool push(const base::DatagramRun& run);
    bool front(Record& record, const std::byte*& bytes);
    void pop(const Record& record);

   private:
    void write(std::size_t at, const Record& record);
    Record read(std::size_t at) const;
  };
  static constexpr std::size_t footprint(std::uint32_t bytes) { return kRecordBytes + (bytes + 15U) / 16U * 16U; }

  MemoryOptions options_;
  std::vector<Queue> queues_;
};

}  // namespace mlt::io
