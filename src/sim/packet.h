// Datagrams in flight, and their pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/datagram.h"
#include "base/time.h"
#include "wire/codec.h"

namespace mlt::sim {

inline constexpr std::uint32_t kNoPacket = ~std::uint32_t{0};
inline constexpr std::uint32_t kNoRoute = ~std::uint32_t{0};
// Overhead of a datagram on the wire: UDP 8, IPv4 20, Ethernet 18, preamble and gap 20.
inline constexpr std::uint32_t kOverheadBytes = 66;

struct Packet {
  std::uint16_t from = 0;  // hosts
  std::uint16_t to = 0;
  std::uint8_t path = 0;
  std::uint8_t dscp = 0;
  base::Ecn ecn = base::Ecn::kNotEct;
  wire::PacketType type = wire::PacketType::kData;
  std::uint16_t flow = 0;                // 0: of endpoints; else of the traffic beside them (sim/cubic_flow.h)
  std::uint32_t size = 0;                // of the datagram, bytes
  std::uint32_t fan_out = 0;             // rest of the path number, for the next choice of a route
  std::uint32_t planned_hop = kNoRoute;  // index of its next edge among the planned ones (sim/route_table.h)
  std::uint32_t next = kNoPacket;        // in a queue
  base::TimeNs queued_ns = 0;            // when it joined its current queue
  std::byte* bytes = nullptr;

  bool is_data() const { return wire::has_payload(type); }
  bool is_ect() const { return ecn != base::Ecn::kNotEct; }
  std::uint32_t wire_bytes() const { return size + kOverheadBytes; }
  std::span<const std::byte> datagram() const { return {bytes, size}; }
};

// Packets by index, in blocks that never move. Grows with the packets in flight, which the ports' limits bound.
class PacketPool {
 public:
  explicit PacketPool(std::uint32_t datagram_bytes) : datagram_bytes_(datagram_bytes) {}

  std::uint32_t take() {
    if (free_.empty()) grow();
    const std::uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }
  void give(std::uint32_t index) { free_.push_back(index); }

  Packet& operator[](std::uint32_t index) { return blocks_[index / kBlock]->packets[index % kBlock]; }
  std::uint32_t datagram_bytes() const { return datagram_bytes_; }
  std::size_t in_use() const { return blocks_.size() * kBlock - free_.size(); }

 private:
  static constexpr std::uint32_t kBlock = 256;
  struct Block {
    std::vector<Packet> packets;
    std::vector<std::byte> bytes;
  };
  void grow() {
    auto block = std::make_unique<Block>();
    block->packets.resize(kBlock);
    block->bytes.resize(std::size_t{kBlock} * datagram_bytes_);
    const auto first = static_cast<std::uint32_t>(blocks_.size() * kBlock);
    for (std::uint32_t i = kBlock; i-- > 0;) {
      block->packets[i].bytes = block->bytes.data() + std::size_t{i} * datagram_bytes_;
      free_.push_back(first + i);
    }
    blocks_.push_back(std::move(block));
  }

  std::uint32_t datagram_bytes_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::uint32_t> free_;
};

}  // namespace mlt::sim
