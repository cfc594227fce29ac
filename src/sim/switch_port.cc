#include "sim/switch_port.h"

#include <algorithm>
#include <bit>

namespace mlt::sim {

std::array<std::uint8_t, 64> queue_map(const core::DscpMap& dscp) {
  std::array<std::uint8_t, 64> map;
  map.fill(kQueues - 1);
  for (std::uint32_t i = dscp.data_classes; i-- > 0;) {
    map[dscp.data[i]] = static_cast<std::uint8_t>(1 + i * (kQueues - 1) / dscp.data_classes);
  }
  map[dscp.control] = 0;
  return map;
}

PortConfig uniform_port(const core::DscpMap& dscp, std::uint64_t limit_bytes, std::uint64_t threshold_bytes) {
  PortConfig config;
  config.queue_of = queue_map(dscp);
  for (std::uint32_t queue = 0; queue < kQueues; ++queue) {
    config.queues[queue].limit_bytes = limit_bytes;
    if (queue == 0) continue;
    config.queues[queue].red_min_bytes = config.queues[queue].red_max_bytes = threshold_bytes;
  }
  return config;
}

bool SwitchPort::enqueue(base::TimeNs now, PacketPool& pool, std::uint32_t index, SharedBuffer& buffer,
                         base::Prng& prng, Fate& fate) {
  Packet& packet = pool[index];
  const std::uint32_t number = config_.queue_of[packet.dscp & 63U];
  const Queue& queue = config_.queues[number];
  State& state = states_[number];
  const std::uint32_t bytes = packet.wire_bytes();
  const std::size_t ect = packet.is_ect() ? 1 : 0;
  ++state.counters.offered[ect];
  if (state.bytes > queue.red_min_bytes) {
    bool early = state.bytes > queue.red_max_bytes;
    if (!early) {
      const auto above = static_cast<double>(state.bytes - queue.red_min_bytes);
      const auto span = static_cast<double>(queue.red_max_bytes - queue.red_min_bytes);
      early = prng.chance(queue.red_probability * above / span);
    }
    if (early && ect == 0) {
      ++state.counters.dropped[ect];
      fate = Fate::k_dropped_selective;
      return false;
    }
    if (early) {
      packet.ecn = base::Ecn::kCe;
      ++state.counters.marked;
    }
  }
  if (bytes > queue.limit_bytes || state.bytes > queue.limit_bytes - bytes) {
    ++state.counters.dropped[ect];
    fate = Fate::k_dropped_queue_limit;
    return false;
  }
  if (bytes > buffer.limit_bytes || buffer.used_bytes > buffer.limit_bytes - bytes) {
    ++state.counters.dropped[ect];
    fate = Fate::k_dropped_shared_buffer;
    return false;
  }
  buffer.used_bytes += bytes;
  state.bytes += bytes;
  queued_bytes_ += bytes;
  state.counters.max_queued_bytes = std::max(state.counters.max_queued_bytes, state.bytes);
  packet.next = kNoPacket;
  packet.queued_ns = now;
  (state.tail == kNoPacket ? state.head : pool[state.tail].next) = index;
  state.tail = index;
  occupied_ |= 1U << number;
  return true;
}

std::uint32_t SwitchPort::dequeue(PacketPool& pool, SharedBuffer& buffer) {
  if (empty()) return kNoPacket;
  const auto number = static_cast<std::uint32_t>(std::countr_zero(occupied_ & ~paused_));
  State& state = states_[number];
  const std::uint32_t index = state.head;
  const Packet& packet = pool[index];
  const std::uint32_t bytes = packet.wire_bytes();
  state.head = packet.next;
  if (state.head == kNoPacket) {
    state.tail = kNoPacket;
    occupied_ &= ~(1U << number);
  }
  state.bytes -= bytes;
  queued_bytes_ -= bytes;
  buffer.used_bytes -= bytes;
  ++state.counters.sent_packets;
  state.counters.sent_bytes += bytes;
  return index;
}

}  // namespace mlt::sim
