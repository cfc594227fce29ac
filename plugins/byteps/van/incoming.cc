#include "incoming.h"

#include <sys/random.h>

#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "offer.h"

namespace mlt::van {

namespace {

constexpr std::chrono::milliseconds kLook{1};
constexpr std::chrono::seconds kComeUpTime{30};  // between the offer and the sender's connection

std::uint64_t random_job() {
  std::uint64_t job = 0;
  if (::getrandom(&job, sizeof job, 0) == sizeof job) return job;
  throw Error(ErrorCode::kSystem, "no random bytes from the system");
}

}  // namespace

Incoming::Incoming(const Settings& settings, io::UniqueFd socket, std::shared_ptr<BufferPool> pool, Calls calls)
    : settings_(settings),
      socket_(std::move(socket)),
      pool_(std::move(pool)),
      calls_(std::move(calls)),
      thread_([this] { run(); }) {}

Incoming::~Incoming() {
  is_closing_ = true;
  thread_.join();
}

void Incoming::run() {
  try {
    if (answer() && wait_until_up()) {
      is_up_ = true;
      receive();
    }
  } catch (const std::exception& error) {
    // What is not up yet may be any program that found the port.
    if (is_up_ && !is_closing_) calls_.fail(sender_, error.what());
  }
  try {
    if (engine_) engine_->close();
  } catch (const std::exception&) {  // it is gone in any case
  }
  is_over_ = true;
}

bool Incoming::answer() {
  Greeting greeting;
  if (!read_all(socket_, &greeting, sizeof greeting) || greeting.mark != kMark) return false;
  sender_ = greeting.sender;
  Options options = settings_.options;
  options.rank = kReceiver;
  options.job = random_job();
  options.host = local_host(socket_);
  engine_ = std::make_unique<Engine>(options);
  engine_->start_connect({}, -1);
  const Offer offer{.protocol = protocol_version(), .control_port = engine_->control_port(), .job = options.job};
  return write_all(socket_, &offer, sizeof offer);
}

bool Incoming::wait_until_up() {
  socket_ = io::UniqueFd();
  const auto end = std::chrono::steady_clock::now() + kComeUpTime;
  while (!engine_->is_peer_up(kSender)) {
    if (is_closing_ || std::chrono::steady_clock::now() > end || !engine_->peer_failure(kSender).empty()) return false;
    std::this_thread::sleep_for(kLook);
  }
  return true;
}

void Incoming::post_head(std::size_t slot) {
  ReceiveOptions options;
  options.from = kSender;
  options.tag = kHeadTag;
  options.data = heads_[slot];
  options.up_to = true;
  try {
    operations_[engine_->post_recv(options)] = {true, slot};
  } catch (const Error&) {
    // A sender that says goodbye between poll() and here ends the loop once everything that arrived is delivered.
    if (!engine_->has_peer_left(kSender)) throw;
  }
}

void Incoming::receive() {
  constexpr std::int64_t kWaitNs = 100'000'000;  // how soon the end of the van is noticed
  heads_.resize(kHeads);
  for (std::size_t slot = 0; slot < kHeads; ++slot) post_head(slot);
  std::array<Completion, kHeads> completions;
  while (!is_closing_) {
    const bool had_left = engine_->has_peer_left(kSender);
    const std::size_t taken = engine_->poll(completions, kWaitNs);
    std::string failure;
    for (std::size_t i = 0; i < taken; ++i) {
      Completion& done = completions[i];
      const auto found = operations_.find(done.operation);
      const Target target = found->second;
      operations_.erase(found);
      if (done.failed())
        failure = done.error;
      else if (target.is_head)
        head_bytes_[target.number] = done.total_bytes;
      else
        on_part(target.number, done);
    }
    // What arrived is delivered even if the sender is gone: the last message comes with its goodbye.
    take_heads(failure.empty());
    deliver_complete();
    if (had_left && taken == 0) return;
    if (failure.empty()) continue;
    if (engine_->has_peer_left(kSender)) return;
    const std::string cause = engine_->peer_failure(kSender);
    throw Error(ErrorCode::kPeerFailed, cause.empty() ? failure : cause);
  }
}

// Heads may arrive in another order than that of their numbers, which is that of the messages.
void Incoming::take_heads(bool is_connected) {
  for (std::size_t slot = next_head_ % kHeads; head_bytes_[slot] != 0; slot = next_head_ % kHeads) {
    on_head(slot, head_bytes_[slot]);
    head_bytes_[slot] = 0;
    if (is_connected) post_head(slot);
    ++next_head_;
  }
}

void Incoming::on_head(std::size_t slot, std::size_t bytes) {
  const std::optional<Head> head = decode_head(std::span(heads_[slot]).first(bytes));
  if (!head) throw Error(ErrorCode::kPeerMismatch, "the sender's message has an invalid head");
  sender_ = head->sender;
  Waiting waiting;
  Message& message = waiting.message;
  message.sender = head->sender;
  message.parts.resize(head->sizes.size());
  const std::byte* content = head->content.data();
  for (std::size_t i = 0; i < head->sizes.size(); ++i) {
    if (!head->is_inline[i]) continue;
    const std::size_t size = head->sizes[i];
    message.parts[i] = pool_->take(size);
    if (size != 0) std::memcpy(message.parts[i].data, content, size);
    content += size;
  }
  const std::uint64_t number = next_message_ + waiting_.size();
  for (std::size_t i = 0; i < head->sizes.size(); ++i) {
    if (head->is_inline[i]) continue;
    Part part = calls_.place(message, i, head->sizes[i]);
    if (part.data == nullptr) part = pool_->take(head->sizes[i]);
    ReceiveOptions options;
    options.from = kSender;
    options.tag = kPartTag;
    options.data = {part.data, part.bytes};
    options.lent = part.owner;
    options.element = element_of(head->loss_bound, i, head->sizes[i]);
    if (options.element != Element::kUint8) options.loss_bound = head->loss_bound;
    message.parts[i] = std::move(part);
    operations_[engine_->post_recv(options)] = {false, number};
    ++waiting.missing;
  }
  waiting_.push_back(std::move(waiting));
}

void Incoming::on_part(std::uint64_t number, const Completion& done) {
  --waiting_[number - next_message_].missing;
  if (done.allowed_missing_bytes != 0) calls_.count(done.total_bytes, done.missing_bytes);
}

void Incoming::deliver_complete() {
  while (!waiting_.empty() && waiting_.front().missing == 0) {
    calls_.deliver(std::move(waiting_.front().message));
    waiting_.pop_front();
    ++next_message_;
  }
}

}  // namespace mlt::van
