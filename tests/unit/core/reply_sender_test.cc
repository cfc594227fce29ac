#include "core/reply_sender.h"

#include <doctest/doctest.h>

#include <vector>

namespace {

using namespace mlt;
using core::Reply;
using core::ReplyKind;

constexpr std::uint32_t kRepliedSegment = 1'000;

struct ReplySenderWorld {
  ReplySenderWorld()
      : shared(config()), acks(shared.config.peers, shared.config.paths), replies(shared, acks, receives) {
    for (std::uint16_t peer = 0; peer < shared.config.peers; ++peer) {
      shared.peers[peer].up = true;
      shared.peers[peer].remote_cookie = 0x7700 + peer;
      shared.peers[peer].spray = core::PathSpray(shared.config.paths);
      acks.reset(peer, 2);
    }
  }
  static core::EndpointConfig config() {
    core::EndpointConfig config;
    config.peers = 3;
    config.paths = 4;
    config.reply_queue = 4;
    config.max_sends = config.max_receives = 4;
    return config;
  }

  core::ReceiveState& receive(std::uint32_t segments) {
    core::ReceiveState& state = receives.take();
    REQUIRE(state.machine.on(core::ReceiveEvent::k_post, shared.counters));
    state.request.peer = 1;
    state.request.tag = 5;
    words.assign(base::words_for_bits(segments), 0);
    state.placement = core::Placement(core::SegmentGrid(segments * kRepliedSegment, kRepliedSegment), words);
    receives.list(state);
    return state;
  }
  static void place(core::ReceiveState& state, std::uint32_t segment) {
    static const std::vector<std::byte> payload(kRepliedSegment);
    state.request.place = [](void*, std::uint64_t, std::span<const std::byte>) {};
    REQUIRE(state.placement.put(state.request, segment * kRepliedSegment, payload));
  }
  void arrive(std::uint8_t path, std::uint32_t sequence) {
    acks.count(1, 0, {path, sequence, 1, {5, 0}}, base::Ecn::kEct0, true, shared.counters);
  }
  static Reply reply(ReplyKind kind, std::uint16_t peer = 1) {
    Reply reply;
    reply.kind = kind;
    reply.peer = peer;
    reply.transfer = {5, 0};
    return reply;
  }
  bool fill() { return replies.fill(0, run); }
  std::span<const std::byte> bytes() const { return {run.slices[0].data, run.slices[0].size}; }
  wire::Prefix prefix() const {
    wire::Prefix prefix;
    REQUIRE(wire::decode_prefix(bytes(), prefix) == wire::DropReason::kNone);
    return prefix;
  }
  wire::BitmapMessage bitmap() const {
    wire::BitmapMessage bitmap;
    REQUIRE(wire::decode_bitmap(bytes(), prefix(), bitmap) == wire::DropReason::kNone);
    return bitmap;
  }

  core::Shared shared;
  core::AckLedger acks;
  core::TransferSlots<core::ReceiveState> receives{4};
  core::ReplySender replies;
  std::vector<std::uint64_t> words;
  base::DatagramRun run;
  core::ControlOutput output;
};

TEST_CASE("fill__replies_in_order_then_acks_then_nothing") {
  ReplySenderWorld world;
  CHECK_FALSE(world.fill());
  world.arrive(0, 1);
  world.arrive(0, 2);
  world.replies.push(ReplySenderWorld::reply(ReplyKind::kNotPosted), false);
  world.replies.push(ReplySenderWorld::reply(ReplyKind::kStop, 2), false);
  REQUIRE(world.fill());
  CHECK(world.prefix().type == wire::PacketType::kBitmap);
  CHECK((world.prefix().flags & MLT_BITMAP_FLAG_NOT_POSTED) != 0);
  CHECK(world.run.peer == 1);
  CHECK(world.prefix().cookie == 0x7701);
  REQUIRE(world.fill());
  CHECK(world.prefix().type == wire::PacketType::kStop);
  CHECK(world.run.peer == 2);
  CHECK_FALSE(world.fill());  // the block of the first reply reported both packets
  world.arrive(3, 1);
  world.arrive(3, 2);
  REQUIRE(world.fill());
  CHECK(world.prefix().type == wire::PacketType::kAck);
  CHECK(world.prefix().path == 3);
  CHECK_FALSE(world.fill());
}

TEST_CASE("fill__a_stop_requests_an_ack_of_the_other_paths") {
  ReplySenderWorld world;
  world.arrive(0, 1);
  world.arrive(1, 1);
  world.acks.withdraw(1);
  world.replies.push(ReplySenderWorld::reply(ReplyKind::kStop), false);
  REQUIRE(world.fill());
  CHECK(world.prefix().type == wire::PacketType::kStop);
  REQUIRE(world.fill());
  wire::Ack ack;
  REQUIRE(wire::decode_ack(world.bytes(), world.prefix(), ack) == wire::DropReason::kNone);
  CHECK(ack.other_count == 1);
  CHECK(ack.others[0].path == 0);
}

TEST_CASE("fill__a_bitmap_between_a_stop_and_its_ack_leaves_the_ack_due") {
  ReplySenderWorld world;
  for (std::uint8_t path = 0; path < 3; ++path) world.arrive(path, 1);
  world.acks.withdraw(1);
  world.replies.push(ReplySenderWorld::reply(ReplyKind::kStop), false);
  world.replies.push(ReplySenderWorld::reply(ReplyKind::kNotPosted), false);
  REQUIRE(world.fill());
  CHECK(world.prefix().type == wire::PacketType::kStop);
  world.arrive(1, 2);  // the BITMAP reports path 1, and leaves path 0 to the ACK
  REQUIRE(world.fill());
  CHECK(world.prefix().type == wire::PacketType::kBitmap);
  REQUIRE(world.fill());
  wire::Ack ack;
  REQUIRE(wire::decode_ack(world.bytes(), world.prefix(), ack) == wire::DropReason::kNone);
  REQUIRE(ack.other_count == 1);
  CHECK(ack.others[0].path == 0);
  CHECK_FALSE(world.fill());
}

TEST_CASE("push__counts_the_replies_that_a_full_queue_drops") {
  ReplySenderWorld world;
  for (std::uint32_t i = 0; i < world.shared.config.reply_queue; ++i) {
    world.replies.push(ReplySenderWorld::reply(ReplyKind::kReady), false);
  }
  CHECK(world.shared.counters.value(core::Counter::k_replies_dropped) == 0);
  world.replies.push(ReplySenderWorld::reply(ReplyKind::kStop), false);
  CHECK(world.shared.counters.value(core::Counter::k_replies_dropped) == 1);
  world.replies.push(ReplySenderWorld::reply(ReplyKind::kStop), true);  // the other queue has space
  CHECK(world.shared.counters.value(core::Counter::k_replies_dropped) == 1);
  std::uint32_t sent = 0;
  while (world.fill()) ++sent;
  CHECK(sent == world.shared.config.reply_queue);
}

TEST_CASE("fill__sends_what_a_sender_waits_for_twice_after_a_gap") {
  ReplySenderWorld world;
  const auto sent = [&](ReplyKind kind) {
    world.replies.push(ReplySenderWorld::reply(kind), false);
    std::uint32_t packets = 0;
    while (world.fill()) packets += world.prefix().type != wire::PacketType::kAck ? 1U : 0U;
    return packets;
  };
  world.arrive(0, 1);
  world.arrive(1, 1);
  for (const ReplyKind kind : {ReplyKind::kStop, ReplyKind::kReady, ReplyKind::kNotPosted}) CHECK(sent(kind) == 1);
  world.arrive(0, 3);
  CHECK(sent(ReplyKind::kStop) == 2);
  CHECK(sent(ReplyKind::kReady) == 2);
  CHECK(sent(ReplyKind::kNotPosted) == 1);
  CHECK(world.shared.counters.value(core::Counter::k_replies_repeated) == 2);
  for (std::uint32_t sequence = 4; sequence < 4'099; ++sequence) world.arrive(0, sequence);
  CHECK(sent(ReplyKind::kStop) == 2);
  world.arrive(0, 4'099);
  CHECK(sent(ReplyKind::kStop) == 1);
}

TEST_CASE("fill__repeats_nothing_while_half_of_the_queue_is_taken") {
  ReplySenderWorld world;
  world.arrive(0, 1);
  world.arrive(0, 3);
  const std::uint32_t capacity = world.shared.config.reply_queue;
  for (std::uint32_t i = 0; i < capacity; ++i) world.replies.push(ReplySenderWorld::reply(ReplyKind::kReady), false);
  for (std::uint32_t i = 0; i < capacity / 2; ++i) REQUIRE(world.fill());
  CHECK(world.shared.counters.value(core::Counter::k_replies_repeated) == 0);
  while (world.fill()) continue;
  CHECK(world.shared.counters.value(core::Counter::k_replies_repeated) == capacity / 2);
}

TEST_CASE("fill__takes_the_path_of_the_newest_probe") {
  ReplySenderWorld world;
  world.arrive(2, 1);
  world.replies.push(ReplySenderWorld::reply(ReplyKind::kReady), false);
  REQUIRE(world.fill());
  CHECK(world.run.path == 2);  // of the newest packet: no probe came yet
  world.replies.on_probe(1, 3);
  world.replies.push(ReplySenderWorld::reply(ReplyKind::kReady), false);
  REQUIRE(world.fill());
  CHECK(world.run.path == 3);
  CHECK(world.prefix().path == 2);  // of the block
  CHECK(wire::reply_path(world.prefix().sequence) == 3);
}

TEST_CASE("fill__says_when_the_reply_was_made") {
  ReplySenderWorld world;
  world.arrive(2, 1);
  world.replies.push(ReplySenderWorld::reply(ReplyKind::kReady), false);
  REQUIRE(world.replies.fill(0x1'2345'6789, world.run));
  CHECK(world.prefix().sequence == 0x2345'6702);
}

TEST_CASE("fill__a_bitmap_reports_what_has_arrived_when_it_leaves_in_chunks") {
  ReplySenderWorld world;
  core::ReceiveState& state = world.receive(3 * MLT_BITMAP_CHUNK_SEGMENTS);
  world.replies.push(ReplySenderWorld::reply(ReplyKind::kBitmap), false);
  for (std::uint32_t i = 0; i < 3 * MLT_BITMAP_CHUNK_SEGMENTS; ++i) {
    if (i != 5 && i != 2 * MLT_BITMAP_CHUNK_SEGMENTS + 9) ReplySenderWorld::place(state, i);
  }
  REQUIRE(world.fill());
  CHECK(world.bitmap().first_segment == 0);
  CHECK(world.bitmap().bits[0] == std::byte{0xDF});
  REQUIRE(world.fill());  // nothing is missing in the second chunk
  CHECK(world.bitmap().first_segment == 2 * MLT_BITMAP_CHUNK_SEGMENTS);
  CHECK_FALSE(world.fill());
  CHECK(world.shared.counters.value(core::Counter::k_bitmaps_sent) == 2);
}

TEST_CASE("fill__drops_a_bitmap_of_a_round_or_receive_that_is_over") {
  ReplySenderWorld world;
  core::ReceiveState& state = world.receive(10);
  world.replies.push(ReplySenderWorld::reply(ReplyKind::kBitmap), false);
  state.loss.begin_round(1, 0);
  CHECK_FALSE(world.fill());
  Reply reply = ReplySenderWorld::reply(ReplyKind::kBitmap);
  reply.round = 1;
  world.replies.push(reply, false);
  world.receives.unlist(state);
  CHECK_FALSE(world.fill());
}

TEST_CASE("fill_over_tcp__has_a_queue_of_its_own") {
  ReplySenderWorld world;
  world.replies.push(ReplySenderWorld::reply(ReplyKind::kAck), true);
  CHECK_FALSE(world.fill());
  REQUIRE(world.replies.fill_over_tcp(0, world.output));
  CHECK(world.output.peer == 1);
  wire::Prefix prefix;
  REQUIRE(wire::decode_prefix({world.output.bytes, world.output.size}, prefix) == wire::DropReason::kNone);
  CHECK(prefix.type == wire::PacketType::kAck);
  CHECK(prefix.sequence == wire::kNoReplyPath);
  CHECK_FALSE(world.replies.fill_over_tcp(0, world.output));
}

TEST_CASE("reset__forgets_the_replies_of_one_peer") {
  ReplySenderWorld world;
  world.replies.push(ReplySenderWorld::reply(ReplyKind::kStop, 1), false);
  world.replies.push(ReplySenderWorld::reply(ReplyKind::kStop, 2), false);
  world.replies.push(ReplySenderWorld::reply(ReplyKind::kStop, 1), true);
  core::Usage usage;
  world.replies.add_usage(usage);
  CHECK(usage.replies.used == 3);
  CHECK(usage.replies.limit == 8);
  world.replies.reset(1);
  REQUIRE(world.fill());
  CHECK(world.run.peer == 2);
  CHECK_FALSE(world.fill());
  CHECK_FALSE(world.replies.fill_over_tcp(0, world.output));
}

}  // namespace
