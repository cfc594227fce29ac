// A model of a sender's duties by sections 6 (PROTOCOL) and R1.3 (RECOVERY), derived from what its host reads and
// sends: which segments of which transfers are due, what is in flight, how much early data was sent, when the next run
// may leave. Every run and probe is checked against it. The rules' numbers are the oracle's (sim/oracle.h):
//   10  no more in flight than the window (6.3)
//   11  no sooner than the rate allows, no longer run than 100 us of it, or 1 ms of two packets (6.2.2, R1.3)
//   12  in send order, within a transfer, among transfers, among peers and among kinds of datagrams (6.1)
//   13  no more early data than the peer offered (6.4)
//   15  what a datagram says of its transfer is true (4.4, 4.7, 6.5, 6.7)
//
// Where a clause permits several values, the model takes the largest: it must not fail a correct sender. It decodes
// datagrams with wire/ and knows nothing of core/ except its rate, which is tested separately (sim/rate_control).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/flow_table.h"
#include "sim/virtual_driver.h"

namespace mlt::sim {

// A send as the application posted it.
struct WatchedSend {
  core::OperationId operation = 0;
  std::uint64_t tag = 0;
  std::uint32_t generation = 0;
  std::uint32_t bytes = 0;
  wire::ElementType element = wire::ElementType::kUint8;
  std::uint32_t order = 0;
  std::vector<core::SegmentPriority> priorities;  // one per segment, or none: `uniform`
  core::SegmentPriority uniform;
  bool classified_late = false;  // receives its priorities while it sends
  bool is_fed = false;           // its segments become ready one after another
  base::TimeNs expires_ns = 0;   // by its host's clock
};

class SendWatch {
 public:
  explicit SendWatch(VirtualDriver& driver);

  void came_up(std::uint16_t rank, const core::PeerUp& up) { flows_.came_up(rank, up); }
  void went_down(std::uint16_t rank, std::uint16_t peer);
  void crashed(std::uint16_t rank);
  void posted(std::uint16_t rank, std::uint16_t peer, WatchedSend send);
  // A segment of a fed send is ready.
  void fed(std::uint16_t rank, std::uint16_t peer, core::OperationId operation, std::uint32_t segment);
  // Cancelled or completed, from the application's point of view.
  void ended(std::uint16_t rank, std::uint16_t peer, core::OperationId operation);
  void reads(std::uint16_t rank, base::TimeNs local, const wire::Prefix& prefix, std::span<const std::byte> bytes);
  void sends_run(std::uint16_t rank, base::TimeNs local, const core::Transmit& run);
  void sends(std::uint16_t rank, base::TimeNs local, const Packet& packet);
  void sends_message(std::uint16_t rank, base::TimeNs local, const core::ControlOutput& output);
  void turn_ended(std::uint16_t rank) { ++senders_[rank].turn; }

  // The send that the last read STOP ends; 0: none.
  core::OperationId stopped() const { return stopped_; }

 private:
  struct Burst {  // packets sent on a path at one time
    std::uint32_t last = 0;
    std::uint32_t packets = 0;
    std::uint32_t data = 0;  // DATA and PARITY packets among them; the rest are trailing probes
    base::TimeNs sent_ns = 0;
  };
  struct Path {
    std::uint32_t last = 0;
    std::uint32_t acknowledged = 0;
    std::uint32_t reported = 0;  // packets that the newest block reports as received
    std::vector<Burst> bursts;   // from `first` on: neither acknowledged nor declared lost
    std::size_t first = 0;
  };
  struct Sending {
    WatchedSend send;
    std::uint64_t number = 0;             // tie-breaker of the send order
    std::vector<std::uint32_t> in_order;  // segments in send order; empty: in index order
    std::vector<std::uint8_t> pending;
    std::uint32_t left = 0;
    std::uint32_t withheld = 0;  // not ready yet
    std::uint32_t cursor = 0;    // index into the send order: nothing before it is pending
    std::uint8_t round = 0;
    std::uint8_t requested_round = 0;  // of the newest bitmap that began a round; equal to `round`: none
    std::uint32_t rounds = 0;          // begun after the first
    std::uint32_t critical = 0;
    std::uint8_t last_class = 0;
    bool unconfirmed = false;  // begun before anything was read from the peer
    std::vector<bool> merged;  // chunks of that bitmap
    std::array<std::uint32_t, MLT_MAX_PATHS> newest{};
    bool ready = false;
    std::uint32_t early = 0;  // packets sent before it was ready
    bool may_wait = false;    // the early budget was exhausted at some time before it was ready
    bool over = false;        // STOP was read, or it was cancelled
    bool owes_probe = false;
    bool parity_follows = false;  // the round's segments have left, and its last packet has not
    bool are_segments_sent() const { return left == 0 && withheld == 0; }
    bool is_round_over() const { return are_segments_sent() && !parity_follows; }
    std::uint64_t data_turn = ~std::uint64_t{0};  // of its newest run
  };
  struct Flow {
    bool up = false;
    bool heard = false;
    core::PeerUp peer;
    std::vector<Path> paths;
    std::vector<std::unique_ptr<Sending>> open;  // by order, then number
    std::uint64_t posts = 0;
    std::uint64_t reported_packets = 0;   // over all paths
    base::TimeNs newest_arrived_ns = -1;  // send time of the newest packet known to have arrived
    // Between these the next run may leave, by how much credit its sender has: a send may have waited or not.
    base::TimeNs next_run_ns = 0;
    base::TimeNs sure_run_ns = 0;
    base::TimeNs last_data_ns = -base::kSecond;
    struct Probe {
      base::TimeNs sent_ns = 0;
      bool behind_stall = false;  // nothing was sent for long enough to declare the window lost (6.3.6)
    };
    std::vector<Probe> probes;
    // Early data of aborted sends counts until a reply to their ABORT arrives, or permanently (8.1.6, 8.1.7).
    struct Aborted {
      wire::TransferId transfer;
      std::uint32_t early = 0;
    };
    std::vector<Aborted> aborted;
  };
  struct Sender {
    std::uint64_t turn = 0;
    std::uint64_t data_turn = ~std::uint64_t{0};   // the last turn that sent data
    std::uint64_t other_turn = ~std::uint64_t{0};  // the last turn that sent anything but replies
    std::uint16_t run_peer = 0;                    // of the newest data run
    std::uint32_t owed_probes = 0;
  };

  Flow& flow(std::uint16_t rank, std::uint16_t peer) { return flows_.at(rank, peer); }
  std::vector<Path>& paths(std::uint16_t rank, Flow& of);
  Sending* find(Flow& of, const wire::TransferId& transfer);
  void fail(int rule, std::uint16_t rank, std::uint16_t peer, const std::string& text);
  void forget(Sender& sender, Sending& sending);
  static std::uint32_t segment_count(const Flow& of, const WatchedSend& send);
  static core::SegmentPriority priority_of(const WatchedSend& send, std::uint32_t segment);

  // Inputs.
  void take_block(Flow& of, std::uint8_t path, const wire::AckBlock& block);
  void take_answer(Flow& of, base::TimeNs local, std::uint32_t probe_timestamp_ns);
  void take_bitmap(Sender& sender, Flow& of, Sending& sending, const wire::BitmapMessage& bitmap);
  void become_ready(Sending& sending);

  // Outputs.
  void check_data_run(std::uint16_t rank, base::TimeNs local, const core::Transmit& run);
  bool owes_probe(std::uint16_t rank, base::TimeNs local);
  void check_turns(std::uint16_t rank, base::TimeNs local, std::uint16_t peer);
  void check_rivals(std::uint16_t rank, base::TimeNs local, std::uint16_t peer, Flow& of, const Sending& sending);
  void check_data(std::uint16_t rank, base::TimeNs local, const Packet& packet, const wire::Prefix& prefix);
  void check_parity(std::uint16_t rank, base::TimeNs local, const Packet& packet, const wire::Prefix& prefix);
  bool may_have_parity(std::uint16_t rank, const Flow& of, const Sending& sending) const;
  void check_window(std::uint16_t rank, std::uint16_t peer, Flow& of);
  void check_header(std::uint16_t rank, const Packet& packet, const wire::DataHeader& header, const Sending& sending,
                    std::uint32_t segment);
  void check_probe(std::uint16_t rank, base::TimeNs local, std::uint16_t peer, const wire::Prefix& prefix,
                   std::span<const std::byte> bytes, const Packet* packet);
  void add_to_flight(std::uint16_t rank, base::TimeNs local, std::uint16_t peer, Flow& of, std::uint8_t path,
                     std::uint32_t sequence, bool is_data);
  std::uint64_t in_flight(Flow& of) const;
  // Data sent for receives that are not known to be posted.
  struct EarlyOut {
    std::uint32_t segments = 0;
    std::uint32_t transfers = 0;
  };
  static EarlyOut early_out(const Flow& of);
  static bool is_exhausted(const Flow& of);
  static void release(Flow& of, const wire::TransferId& transfer);
  void count_early(std::uint16_t rank, std::uint16_t peer, Flow& of, Sending& sending);

  VirtualDriver& driver_;
  FlowTable<Flow> flows_;
  std::vector<Sender> senders_;
  std::uint32_t run_left_ = 0;  // datagrams of the run that is leaving
  core::OperationId stopped_ = 0;
};

}  // namespace mlt::sim
