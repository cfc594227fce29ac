#include "endpoint_world.h"

#include <bit>
#include <cstring>

#include "core/loss_bound.h"

namespace mlt::fuzz {

namespace {

constexpr std::byte kCanary{0xC7};
constexpr std::byte kOld{0x5A};  // what a receive buffer holds before
constexpr std::uint32_t kMaxSegmentBytes = 64;
constexpr std::uint32_t kSlots = 6;
constexpr std::size_t kMaxOperations = 40;
constexpr std::size_t kMaxInbound = 48;
// More turns of one poll loop than all operations together could need at one moment.
constexpr int kEndlessPolls = 4'000;
constexpr base::DurationNs kTimeoutNs = base::kSecond;

core::EndpointConfig config_of(std::uint16_t rank, Input& input) {
  core::EndpointConfig config;
  config.rank = rank;
  config.peers = 2;
  config.paths = static_cast<std::uint8_t>(1 + input.below(3));
  config.max_sends = kSlots;
  config.max_receives = kSlots;
  config.max_tags = 8;
  config.bitmap_words = 16 * kSlots;
  config.max_segment_bytes = kMaxSegmentBytes;
  config.early_segments = 12;
  config.early_transfers = 4;
  config.finished_log = 3;
  config.reply_queue = 5;
  config.packets_per_ack = 1 + input.below(10);
  config.operation_timeout_ns = kTimeoutNs;
  config.timely.line_rate_bytes_per_second = input.flag() ? 1e9 : 1e6;
  return config;
}

std::byte pattern(core::OperationId operation, std::size_t at) {
  return static_cast<std::byte>(1 + (operation * 131 + at * 7 + at / 251) % 255);  // never zero: a filled gap shows
}

}  // namespace

Guarded::Guarded(std::size_t size, std::byte fill) : storage_(size + 2 * kGuard, kCanary) {
  std::fill(bytes().begin(), bytes().end(), fill);
}

bool Guarded::intact() const {
  const auto is_canary = [](std::byte b) { return b == kCanary; };
  return std::all_of(storage_.begin(), storage_.begin() + kGuard, is_canary) &&
         std::all_of(storage_.end() - kGuard, storage_.end(), is_canary);
}

World::World(Input& input) {
  constexpr std::array<base::TimeNs, 4> starts = {1, base::kSecond, 0xFFFF'F000, 0x7FFF'FFFF'0000};
  now_ = starts[input.below(4)];
  segment_bytes_ = 8 * (1 + input.below(kMaxSegmentBytes / 8));
  constexpr std::array<std::uint32_t, 4> windows = {1, 200, 2'000, 1U << 20};
  window_bytes_ = windows[input.below(4)];
  early_segments_ = input.below(16);
  constexpr std::array<std::uint32_t, 4> run_segments = {64, 1, 2, 7};
  capabilities_.max_run_segments = run_segments[input.below(4)];
  if (input.flag()) capabilities_.max_run_bytes = 300;
  for (std::uint16_t side = 0; side < 2; ++side) {
    sides_[side].endpoint = std::make_unique<core::Endpoint>(config_of(side, input));
  }
  reconnect();
}

// ---- commands ------------------------------------------------------------------------------------------------------

Operation* World::post(std::uint16_t side, core::CompletionKind kind, Input& input) {
  if (operations_.size() >= kMaxOperations) return nullptr;
  auto operation = std::make_unique<Operation>();
  operation->id = 100 + operations_.size();
  operation->kind = kind;
  operation->side = side;
  operation->tag = input.below(10);
  operation->epoch = sides_[side].epoch;
  operation->element = input.below(8) == 0 ? static_cast<wire::ElementType>(input.below(wire::kElementTypeCount))
                                           : wire::ElementType::kFloat32;
  const std::size_t size = input.u8() * (input.below(4) == 0 ? 4U : 1U) / 4U * 4U;
  operation->buffer = std::make_unique<Guarded>(size, kOld);
  operations_.push_back(std::move(operation));
  return operations_.back().get();
}

void World::posted(Operation& operation, core::PostStatus status, base::DurationNs timeout_ns) {
  if (status != core::PostStatus::kPosted) {
    operation.ended = true;
    const std::span<const std::byte> bytes = operation.buffer->bytes();
    operation.snapshot.assign(bytes.begin(), bytes.end());
    return;
  }
  Side& side = sides_[operation.side];
  FUZZ_CHECK(side.up);
  auto& generations = operation.kind == core::CompletionKind::kSend ? side.send_generation : side.receive_generation;
  operation.generation = generations[operation.tag]++;
  operation.expires_ns = now_ + (timeout_ns > 0 ? timeout_ns : kTimeoutNs);
}

void World::post_send(std::uint16_t side, Input& input) {
  Operation* operation = post(side, core::CompletionKind::kSend, input);
  if (operation == nullptr) return;
  const std::span<std::byte> bytes = operation->buffer->bytes();
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern(operation->id, i);
  operation->snapshot.assign(bytes.begin(), bytes.end());
  core::SendRequest request;
  request.operation = operation->id;
  request.peer = static_cast<std::uint16_t>(1 - side);
  request.tag = operation->tag;
  request.data = bytes;
  request.element = operation->element;
  request.order = input.below(4);
  request.uniform_priority = {static_cast<std::uint8_t>(input.u8() & core::SegmentPriority::kAllBits)};
  operation->priorities.assign(sides_[side].endpoint->segment_count(request.peer, bytes.size()),
                               request.uniform_priority);
  if (input.flag()) {
    for (core::SegmentPriority& tag : operation->priorities) tag.bits = input.u8() & core::SegmentPriority::kAllBits;
    request.priorities = operation->priorities;
    if (std::none_of(operation->priorities.begin(), operation->priorities.end(),
                     [](auto tag) { return tag.is_critical(); })) {
      operation->later_priorities.assign(operation->priorities.size(), core::SegmentPriority{});
      operation->later_priorities.swap(operation->priorities);
      request.priorities = operation->priorities;
      request.classify = &World::classify;
      request.classify_context = operation;
    }
  }
  request.timeout_ns = base::DurationNs{input.u8()} * 4 * base::kMillisecond;
  posted(*operation, sides_[side].endpoint->post_send(now_, request), request.timeout_ns);
  check();
}

void World::classify(void* context, std::uint32_t first, std::uint32_t count) {
  auto& operation = *static_cast<Operation*>(context);
  MLT_CHECK(!operation.ended && first <= operation.priorities.size() && count <= operation.priorities.size() - first);
  std::copy_n(operation.later_priorities.begin() + first, count, operation.priorities.begin() + first);
}

void World::place(void* context, std::uint64_t offset_bytes, std::span<const std::byte> payload) {
  auto& operation = *static_cast<Operation*>(context);
  const std::span<std::byte> bytes = operation.buffer->bytes();
  FUZZ_CHECK(!operation.ended);
  FUZZ_CHECK(offset_bytes <= bytes.size() && payload.size() <= bytes.size() - offset_bytes);
  std::copy(payload.begin(), payload.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset_bytes));
}

void World::post_receive(std::uint16_t side, Input& input) {
  Operation* operation = post(side, core::CompletionKind::kReceive, input);
  if (operation == nullptr) return;
  constexpr std::array<double, 6> bounds = {0.0, 0.1, 0.5, 0.999, 1.0, -1.0};
  const std::uint32_t how = input.u8();
  operation->loss_bound = bounds[how % bounds.size()];
  operation->fill = (how & 0x10U) != 0 ? core::Fill::kKeep : core::Fill::kZero;
  operation->places = (how & 0x20U) != 0;
  core::ReceiveRequest request;
  request.operation = operation->id;
  request.peer = static_cast<std::uint16_t>(1 - side);
  request.tag = operation->tag;
  request.data = operation->buffer->bytes();
  request.element = operation->element;
  request.loss_bound = operation->loss_bound;
  request.stop = (how & 0x40U) != 0 ? core::StopPolicy::kEager : core::StopPolicy::kPatient;
  request.fill = operation->fill;
  if (operation->places) {
    request.place = &World::place;
    request.place_context = operation;
  }
  if ((how & 0x80U) != 0) request.deadline_ns = base::DurationNs{input.u8()} * 100 * base::kMicrosecond;
  request.timeout_ns = base::DurationNs{input.u8()} * 4 * base::kMillisecond;
  posted(*operation, sides_[side].endpoint->post_recv(now_, request), request.timeout_ns);
  check();
}

void World::cancel(std::uint16_t side, std::uint8_t which, core::CompletionKind kind) {
  sides_[side].endpoint->on_control(now_, core::Cancel{100U + which % kMaxOperations, kind});
  check();
}

// ---- the network ---------------------------------------------------------------------------------------------------

// The rules of a run (base/datagram.h), then its datagrams, cut as the kernel cuts them.
void World::capture(std::uint16_t from, const core::Transmit& run) {
  FUZZ_CHECK(run.peer == 1 - from);
  FUZZ_CHECK(run.datagram_count >= 1 && run.datagram_count <= base::kMaxRunSegments);
  FUZZ_CHECK(run.datagram_count <= capabilities_.max_run_segments);
  FUZZ_CHECK(run.datagram_count == 1 || run.total_bytes <= capabilities_.max_run_bytes);
  FUZZ_CHECK(run.path < sides_[from].endpoint->config().paths && run.dscp < 64);
  FUZZ_CHECK(run.total_bytes <= std::uint64_t{run.datagram_count} * run.datagram_bytes);
  FUZZ_CHECK(run.total_bytes > std::uint64_t{run.datagram_count - 1} * run.datagram_bytes);
  std::vector<std::byte> all;
  for (std::uint32_t i = 0; i < run.slice_count; ++i) {
    FUZZ_CHECK(run.slices[i].size > 0);
    all.insert(all.end(), run.slices[i].data, run.slices[i].data + run.slices[i].size);
  }
  FUZZ_CHECK(all.size() == run.total_bytes);
  std::deque<Datagram>& to = sides_[1U - from].inbound;
  for (std::size_t at = 0; at < all.size(); at += run.datagram_bytes) {
    const std::size_t size = std::min<std::size_t>(run.datagram_bytes, all.size() - at);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(at);
    to.push_back({{begin, begin + static_cast<std::ptrdiff_t>(size)}, run.ecn});
    if (to.size() > kMaxInbound) to.pop_front();  // lost
  }
}

void World::transmit(std::uint16_t side, std::uint32_t runs) {
  for (std::uint32_t i = 0; i < runs; ++i) {
    if (!sides_[side].endpoint->poll_transmit(now_, capabilities_, run_)) break;
    capture(side, run_);
    check();
  }
}

void World::hand_in(std::uint16_t side, const Datagram& datagram, bool late) {
  // A copy of exactly its size: a sanitizer sees a read past its end.
  const std::vector<std::byte> bytes(datagram.bytes);
  sides_[side].endpoint->on_datagram(now_, bytes, datagram.ecn, late ? now_ - 50'000 : base::kNever);
  check();
}

void World::deliver(std::uint16_t side, std::uint8_t which, Input& input) {
  std::deque<Datagram>& inbound = sides_[side].inbound;
  if (inbound.empty()) return;
  const std::uint8_t how = input.u8();
  const auto at = inbound.begin() + which % static_cast<std::ptrdiff_t>(inbound.size());
  Datagram datagram = *at;
  if ((how & 1U) == 0) inbound.erase(at);
  if ((how & 2U) != 0 && datagram.ecn != base::Ecn::kNotEct) datagram.ecn = base::Ecn::kCe;
  hand_in(side, datagram, (how & 4U) != 0);
}

namespace {

// As the owner of `cookie` would have sealed it.
void mend(std::vector<std::byte>& bytes, std::uint64_t cookie) {
  if (bytes.size() < MLT_PREFIX_BYTES) return;
  base::store_le64(bytes.data() + MLT_OFFSET_COOKIE, cookie);
  const bool is_data = wire::has_payload(static_cast<wire::PacketType>(static_cast<std::uint8_t>(bytes[0]) & 0x0F));
  wire::seal(
      std::span(bytes).first(is_data ? std::min<std::size_t>(bytes.size(), MLT_DATA_HEADER_BYTES) : bytes.size()));
}

}  // namespace

void World::deliver_damaged(std::uint16_t side, std::uint8_t which, Input& input) {
  Side& to = sides_[side];
  if (to.inbound.empty()) return;
  Datagram datagram = to.inbound[which % to.inbound.size()];
  const std::uint8_t how = input.u8();
  const std::size_t at = input.u16() % datagram.bytes.size();
  const std::uint32_t value = input.u32();
  for (std::size_t i = 0; i < 4 && at + i < datagram.bytes.size(); ++i) {
    const auto byte = static_cast<std::byte>((value >> (8 * i)) & 0xFFU);
    datagram.bytes[at + i] = (how & 1U) != 0 ? byte : datagram.bytes[at + i] ^ byte;
  }
  if ((how & 2U) != 0) datagram.bytes.resize(input.u16() % (datagram.bytes.size() + 8));
  // A payload is what UDP's checksum covers: damage there is noticed below us.
  const bool is_data =
      !datagram.bytes.empty() &&
      wire::has_payload(static_cast<wire::PacketType>(static_cast<std::uint8_t>(datagram.bytes[0]) & 0x0F));
  if ((how & 4U) != 0) mend(datagram.bytes, to.local_cookie);
  if ((how & 4U) != 0 || is_data) honest_ = false;
  if ((how & 8U) != 0) {
    to.endpoint->on_control(now_, core::PeerMessage{static_cast<std::uint16_t>(1 - side), datagram.bytes});
    return check();
  }
  hand_in(side, datagram, false);
}

void World::deliver_made_up(std::uint16_t side, Input& input) {
  Side& to = sides_[side];
  Datagram datagram;
  const std::uint8_t how = input.u8();
  datagram.bytes = input.take(MLT_PREFIX_BYTES + input.below(128));
  if (datagram.bytes.size() < MLT_PREFIX_BYTES) return;
  const std::uint32_t type = (how & 7U) != 0      ? how & 7U
                             : (how & 48U) == 48U ? MLT_TYPE_PARITY
                             : (how & 16U) != 0   ? MLT_TYPE_RETIRE
                                                  : MLT_TYPE_MTU_REPLY;
  datagram.bytes[0] = static_cast<std::byte>((MLT_DATAGRAM_VERSION << 4) | type);
  // Near what is really under way: a made-up transfer alone would only ever meet the early buffer.
  if ((how & 8U) != 0 && !operations_.empty()) {
    const Operation& about = *operations_[(how >> 4) % operations_.size()];
    const bool has_block = type == MLT_TYPE_ACK || type == MLT_TYPE_BITMAP || type == MLT_TYPE_STOP;
    const std::size_t at = MLT_PREFIX_BYTES + (has_block ? wire::kAckBlockBytes : 0);
    if (datagram.bytes.size() >= at + wire::kTransferIdBytes) {
      base::store_le64(datagram.bytes.data() + at, about.tag);
      base::store_le32(datagram.bytes.data() + at + 8, about.generation);
    }
  }
  mend(datagram.bytes, to.local_cookie);
  honest_ = false;
  if ((how & 0x80U) != 0) {
    to.endpoint->on_control(now_, core::PeerMessage{static_cast<std::uint16_t>(1 - side), datagram.bytes});
    return check();
  }
  hand_in(side, datagram, false);
}

void World::lose(std::uint16_t side, std::uint8_t which) {
  std::deque<Datagram>& inbound = sides_[side].inbound;
  if (inbound.empty()) return;
  inbound.erase(inbound.begin() + which % static_cast<std::ptrdiff_t>(inbound.size()));
}

void World::exchange(std::uint32_t rounds) {
  for (std::uint32_t round = 0; round < rounds; ++round) {
    for (std::uint16_t side = 0; side < 2; ++side) {
      int polls = 0;
      while (sides_[side].endpoint->poll_transmit(now_, capabilities_, run_)) {
        capture(side, run_);
        FUZZ_CHECK(++polls < kEndlessPolls);
      }
      check();
    }
    now_ += 10 * base::kMicrosecond;
    for (std::uint16_t side = 0; side < 2; ++side) {
      std::deque<Datagram> inbound;
      inbound.swap(sides_[side].inbound);
      for (const Datagram& datagram : inbound) hand_in(side, datagram, false);
    }
    pass(0);
  }
}

void World::poll_messages(std::uint16_t side, bool deliver) {
  int polls = 0;
  while (sides_[side].endpoint->poll_control(now_, message_)) {
    FUZZ_CHECK(++polls < kEndlessPolls);
    FUZZ_CHECK(message_.peer == 1 - side && message_.size <= sizeof message_.bytes);
    check();
    Side& to = sides_[1U - side];
    if (!deliver || !to.up || !sides_[side].up || to.epoch != sides_[side].epoch) continue;
    to.endpoint->on_control(now_, core::PeerMessage{side, std::span(message_.bytes).first(message_.size)});
    check();
  }
}

// ---- time, connection, completions ---------------------------------------------------------------------------------

void World::pass(base::DurationNs duration) {
  now_ += duration;
  for (Side& side : sides_) {
    side.endpoint->on_timeout(now_);
    FUZZ_CHECK(side.endpoint->next_timeout() > now_);
  }
  check();
}

void World::leave(std::uint16_t side) {
  Side& leaver = sides_[side];
  leaver.endpoint->on_control(now_, core::Closing{});
  check();
  poll_messages(side, true);
  leaver.endpoint->on_control(now_, core::PeerDown{static_cast<std::uint16_t>(1 - side)});
  leaver.up = false;
  check();
}

void World::reconnect() {
  ++connections_;
  for (std::uint16_t rank = 0; rank < 2; ++rank) {
    Side& side = sides_[rank];
    const auto other = static_cast<std::uint16_t>(1 - rank);
    if (side.up) side.endpoint->on_control(now_, core::PeerDown{other});
    core::PeerUp up;
    up.peer = other;
    up.local_cookie = (std::uint64_t{connections_} << 32) | 0xAB0000U | other;
    up.remote_cookie = (std::uint64_t{connections_} << 32) | 0xAB0000U | rank;
    up.segment_bytes = segment_bytes_;
    up.window_bytes = window_bytes_;
    up.early_segments = early_segments_;
    side.endpoint->on_control(now_, up);
    side.up = true;
    side.epoch = connections_;
    side.local_cookie = up.local_cookie;
    side.send_generation.fill(0);
    side.receive_generation.fill(0);
  }
  check();
}

void World::poll_completions(std::uint16_t side) {
  core::Completion completion;
  int polls = 0;
  while (sides_[side].endpoint->poll_completion(completion)) {
    FUZZ_CHECK(++polls < kEndlessPolls);
    take_completion(side, completion);
    check();
  }
}

void World::take_completion(std::uint16_t side, const core::Completion& completion) {
  FUZZ_CHECK(completion.operation >= 100 && completion.operation - 100 < operations_.size());
  Operation& operation = *operations_[completion.operation - 100];
  FUZZ_CHECK(!operation.ended);
  FUZZ_CHECK(operation.side == side && operation.kind == completion.kind);
  FUZZ_CHECK(completion.peer == 1 - side && completion.tag == operation.tag);
  FUZZ_CHECK(completion.total_bytes == operation.buffer->bytes().size());
  // Of a send that failed, the receiver tells what was missing of its own size.
  if (operation.kind == core::CompletionKind::kReceive || !core::is_failure(completion.status)) {
    FUZZ_CHECK(completion.missing_bytes <= completion.total_bytes);
  }
  FUZZ_CHECK(completion.status != core::CompletionStatus::kComplete || completion.missing_bytes == 0);
  FUZZ_CHECK(completion.elapsed_ns >= 0);
  operation.ended = true;
  if (operation.kind == core::CompletionKind::kSend) return;
  check_received(operation, completion);
  const std::span<const std::byte> bytes = operation.buffer->bytes();
  operation.snapshot.assign(bytes.begin(), bytes.end());
}

void World::check_received(const Operation& receive, const core::Completion& completion) const {
  const std::uint32_t element = wire::element_bytes(receive.element);
  const std::uint64_t allowed = core::allowed_missing(completion.total_bytes / element, receive.loss_bound) * element;
  FUZZ_CHECK(completion.allowed_missing_bytes == allowed);
  FUZZ_CHECK(completion.status != core::CompletionStatus::kWithinBound || completion.missing_bytes <= allowed);
  FUZZ_CHECK(completion.received_bitmap.empty() == (completion.missing_bytes == 0));
  std::uint64_t missing = 0;
  const std::span<const std::byte> bytes = receive.buffer->bytes();
  for (std::uint32_t segment = 0; segment < completion.segment_count && completion.missing_bytes > 0; ++segment) {
    if (((completion.received_bitmap[segment / 64] >> (segment % 64)) & 1U) != 0) continue;
    const std::size_t begin = std::size_t{segment} * completion.segment_bytes;
    const std::size_t end = std::min<std::size_t>(bytes.size(), begin + completion.segment_bytes);
    missing += end - begin;
    const bool zero = !core::is_failure(completion.status) && receive.fill == core::Fill::kZero && !receive.places;
    for (std::size_t i = begin; i < end; ++i) FUZZ_CHECK(bytes[i] == (zero ? std::byte{0} : kOld));
  }
  FUZZ_CHECK(missing == completion.missing_bytes);
  if (honest_) check_arrived(receive, completion);
}

void World::check_arrived(const Operation& receive, const core::Completion& completion) const {
  const Operation* send = nullptr;
  for (const auto& other : operations_) {
    if (other->kind == core::CompletionKind::kSend && other->side != receive.side && other->epoch == receive.epoch &&
        other->tag == receive.tag && other->generation == receive.generation && other->expires_ns != 0) {
      send = other.get();
    }
  }
  const std::span<const std::byte> bytes = receive.buffer->bytes();
  const bool mismatch = completion.status == core::CompletionStatus::kSizeMismatch ||
                        completion.status == core::CompletionStatus::kTypeMismatch;
  if (send == nullptr) {
    FUZZ_CHECK(completion.missing_bytes == completion.total_bytes && !mismatch);
    return;
  }
  const bool agrees = send->element == receive.element && send->buffer->bytes().size() == bytes.size();
  FUZZ_CHECK(!mismatch || !agrees);
  if (!agrees) {
    FUZZ_CHECK(completion.missing_bytes == completion.total_bytes);
    return;
  }
  for (std::uint32_t segment = 0; segment < completion.segment_count; ++segment) {
    const bool arrived =
        completion.received_bitmap.empty() || ((completion.received_bitmap[segment / 64] >> (segment % 64)) & 1U) != 0;
    const std::size_t begin = std::size_t{segment} * completion.segment_bytes;
    const std::size_t end = std::min<std::size_t>(bytes.size(), begin + completion.segment_bytes);
    for (std::size_t i = begin; arrived && i < end; ++i) FUZZ_CHECK(bytes[i] == pattern(send->id, i));
    const bool critical = segment < send->priorities.size() && send->priorities[segment].is_critical();
    FUZZ_CHECK(arrived || !critical || completion.status != core::CompletionStatus::kWithinBound);
  }
}

// ---- what must hold ------------------------------------------------------------------------------------------------

void World::check() {
  for (const auto& operation : operations_) {
    FUZZ_CHECK(operation->buffer->intact());
    if (operation->kind == core::CompletionKind::kReceive && !operation->ended) continue;
    const std::span<const std::byte> bytes = operation->buffer->bytes();
    FUZZ_CHECK(bytes.empty() || std::memcmp(bytes.data(), operation->snapshot.data(), bytes.size()) == 0);
  }
}

void World::everything_ends() {
  base::TimeNs last = now_;
  for (const auto& operation : operations_) last = std::max(last, operation->expires_ns);
  pass(last - now_);
  for (std::uint16_t side = 0; side < 2; ++side) poll_completions(side);
  for (const auto& operation : operations_) FUZZ_CHECK(operation->ended);
}

// As many operations as there are slots can be posted again: nothing has leaked.
void World::everything_is_free() {
  reconnect();
  for (std::uint16_t side = 0; side < 2; ++side) {
    std::uint64_t tag = 0;
    for (const auto& operation : operations_) {
      if (operation->side == side && operation->expires_ns != 0) tag = operation->tag;  // has its place in the table
    }
    for (std::uint32_t i = 0; i < kSlots; ++i) {
      core::SendRequest send;
      send.peer = static_cast<std::uint16_t>(1 - side);
      send.tag = tag;
      FUZZ_CHECK(sides_[side].endpoint->post_send(now_, send) == core::PostStatus::kPosted);
      core::ReceiveRequest receive;
      receive.peer = send.peer;
      receive.tag = tag;
      FUZZ_CHECK(sides_[side].endpoint->post_recv(now_, receive) == core::PostStatus::kPosted);
    }
    sides_[side].inbound.clear();
  }
}

void World::finish() {
  exchange(4);
  everything_ends();
  everything_is_free();
}

}  // namespace mlt::fuzz
