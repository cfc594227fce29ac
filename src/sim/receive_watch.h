// A model of a receiver's duties by PROTOCOL, sections 7 and 8, derived from what its host reads and sends:
//   13  early data within a peer's share is kept, and placed when the receive is posted (7.3)
//   14  an operation whose end is settled ends at once: all segments have arrived, the sender aborted it (before the
//   post
//       too), sizes or types differ (7.5.1, 8.1.2, 8.1.3, 7.1.1)
//   15  an acknowledgement block says what has arrived on its path (4.5, 7.2.1)
//
// Based only on what was read, and on nothing of core/.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/flow_table.h"
#include "sim/virtual_driver.h"

namespace mlt::sim {

struct WatchedReceive {
  core::OperationId operation = 0;
  std::uint64_t tag = 0;
  std::uint32_t generation = 0;
  std::uint32_t bytes = 0;
  wire::ElementType element = wire::ElementType::kUint8;
  bool up_to = false;  // `bytes` is a maximum, until the sender names the size
};

class ReceiveWatch {
 public:
  explicit ReceiveWatch(VirtualDriver& driver);

  void came_up(std::uint16_t rank, const core::PeerUp& up) { flows_.came_up(rank, up); }
  void went_down(std::uint16_t rank, std::uint16_t peer);
  void crashed(std::uint16_t rank) { flows_.crashed(rank); }
  // What is known of a newly posted receive.
  struct Early {
    std::vector<std::uint32_t> kept;  // offsets of segments that must be in its buffer now
    bool must_end = false;            // the sender has aborted it
  };
  Early posted(std::uint16_t rank, std::uint16_t peer, const WatchedReceive& receive);
  void ended(std::uint16_t rank, std::uint16_t peer, core::OperationId operation);
  // The receive that this datagram ends; 0: none.
  core::OperationId reads(std::uint16_t rank, base::TimeNs local, const wire::Prefix& prefix,
                          std::span<const std::byte> bytes, bool by_control);
  // `by_path`: its path, wire::kNoReplyPath over the control connection.
  void sends(std::uint16_t rank, base::TimeNs local, std::uint16_t to, std::span<const std::byte> bytes,
             std::uint32_t by_path);
  bool is_up(std::uint16_t rank, std::uint64_t cookie) const;

 private:
  struct Name {
    std::uint64_t tag = 0;
    std::uint32_t generation = 0;
    auto operator<=>(const Name&) const = default;
  };
  struct Receiving {
    WatchedReceive receive;
    std::vector<std::uint8_t> arrived;  // per segment, since the post
    std::uint32_t left = 0;
  };
  struct Waiting {
    std::vector<std::uint32_t> offsets;  // of buffered early segments, in order of arrival
    std::uint32_t bytes = 0;             // as they name it
    bool has_data = false;
    bool aborted = false;
  };
  struct PathIn {
    std::uint32_t highest = 0;
    std::uint32_t packets = 0;
    std::uint32_t timestamp_ns = 0;  // of the highest sequence number
    base::TimeNs read_ns = 0;        // when the host read it
    bool echoed = true;
  };
  struct Flow {
    bool up = false;
    core::PeerUp peer;
    std::vector<PathIn> paths;
    std::map<Name, Receiving> open;
    std::map<Name, Waiting> waiting;              // not posted yet
    std::map<std::uint64_t, std::uint32_t> next;  // per tag: generation of the next receive
    std::uint32_t kept = 0;
  };

  Flow& flow(std::uint16_t rank, std::uint16_t peer) { return flows_.at(rank, peer); }
  core::OperationId take_data(std::uint16_t rank, base::TimeNs local, Flow& of, const wire::Prefix& prefix,
                              std::span<const std::byte> bytes);
  core::OperationId take_parity(base::TimeNs local, Flow& of, const wire::Prefix& prefix,
                                std::span<const std::byte> bytes);
  core::OperationId take_probe(base::TimeNs local, Flow& of, const wire::Prefix& prefix,
                               std::span<const std::byte> bytes, bool by_control);
  core::OperationId take_abort(std::uint16_t rank, Flow& of, const wire::Prefix& prefix,
                               std::span<const std::byte> bytes);
  void take_early(std::uint16_t rank, Flow& of, const wire::DataHeader& header);
  static void set_size(const Flow& of, Receiving& receiving, std::uint32_t bytes);
  // Clauses 7.1.1 and 7.1.5: whether the receive is of this size and type.
  static bool matches(const Flow& of, Receiving& receiving, std::uint32_t bytes, wire::ElementType element);
  static bool is_over(const Flow& of, const Name& name);
  static void count(base::TimeNs local, Flow& of, const wire::Prefix& prefix, std::uint32_t timestamp_ns);
  void check_block(std::uint16_t rank, base::TimeNs local, std::uint16_t to, std::uint8_t path,
                   const wire::AckBlock& block, bool fresh);
  void fail(int rule, std::uint16_t rank, std::uint16_t peer, const std::string& text);

  VirtualDriver& driver_;
  FlowTable<Flow> flows_;
};

}  // namespace mlt::sim
