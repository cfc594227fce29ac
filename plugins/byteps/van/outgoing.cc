#include "outgoing.h"

#include <array>
#include <chrono>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "offer.h"
#include "sockets.h"

namespace mlt::van {

namespace {

constexpr std::chrono::milliseconds kRetryPause{50};
constexpr std::chrono::seconds kFlushTime{10};
constexpr std::int64_t kLookNs = 200'000'000;  // how soon an idle connection is known to be gone

struct Offered {
  Offer offer;
  std::string local_host;
  std::string remote_host;
};

// What the node offers; nothing if its listener closed the connection, as one that stops does.
bool ask(const std::string& name, const std::string& host, std::uint16_t port, std::int32_t sender, Offered& offered) {
  const io::UniqueFd socket = connect_to(host, port);
  const Greeting greeting{.protocol = protocol_version(), .sender = sender};
  if (!write_all(socket, &greeting, sizeof greeting)) return false;
  if (!read_all(socket, &offered.offer, sizeof offered.offer)) return false;
  if (offered.offer.mark != kMark) {
    throw Error(ErrorCode::kPeerMismatch, name + " has another van: select mlt's for all nodes");
  }
  if (offered.offer.protocol != protocol_version()) {
    throw Error(ErrorCode::kPeerMismatch, name + " speaks version " + std::to_string(offered.offer.protocol) +
                                              " of mlt's protocol, and this process version " +
                                              std::to_string(protocol_version()) +
                                              ": build all nodes with the same mlt");
  }
  offered.local_host = local_host(socket);
  offered.remote_host = remote_host(socket);
  return true;
}

}  // namespace

Outgoing::Outgoing(const Settings& settings, const std::string& name, const std::string& host, std::uint16_t port,
                   std::int32_t sender, const std::atomic<bool>& stopping, OnFailure on_failure)
    : name_(name), on_failure_(std::move(on_failure)) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(settings.connect_timeout_ns);
  const auto check_time = [&](const std::string& cause) {
    if (stopping.load()) throw Error(ErrorCode::kClosed, "the van stops");
    if (std::chrono::steady_clock::now() < end) return;
    throw Error(ErrorCode::kRendezvous, name + " did not come up in time: " + cause);
  };
  Offered offered;
  while (true) {
    std::string cause = "it closed the connection";
    try {
      if (ask(name, host, port, sender, offered)) break;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kRendezvous) throw;
      cause = error.what();
    }
    check_time(cause);
    std::this_thread::sleep_for(kRetryPause);
  }
  Options options = settings.options;
  options.rank = kSender;
  options.job = offered.offer.job;
  options.host = offered.local_host;
  engine_ = std::make_unique<Engine>(options);
  const PeerAddress address{kReceiver, offered.remote_host, offered.offer.control_port};
  engine_->connect(std::span(&address, 1), settings.connect_timeout_ns);
  thread_ = std::thread([this] { take_completions(); });
}

Outgoing::~Outgoing() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kFlushTime, [&] { return in_progress_ == 0 || is_over(); });
  }
  is_closing_ = true;
  try {
    engine_->close();
  } catch (const std::exception&) {  // it is gone in any case
  }
  thread_.join();
}

void Outgoing::post(std::uint64_t tag, std::span<const std::byte> data, std::shared_ptr<void> owner, Element element) {
  SendOptions options;
  options.to = kReceiver;
  options.tag = tag;
  options.data = data;
  options.element = element;
  options.lent = std::move(owner);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return in_progress_ < kMaxInProgress || is_over(); });
    ++in_progress_;
  }
  try {
    engine_->post_send(options);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    --in_progress_;
    throw;
  }
}

bool Outgoing::send(const Message& message) {
  const std::lock_guard order(order_);
  if (is_over()) return false;
  try {
    auto head = std::make_shared<std::vector<std::byte>>(encode_head(message));
    const std::optional<Head> decoded = decode_head(*head);
    post(kHeadTag, *head, head);
    for (std::size_t i = 0; i < message.parts.size(); ++i) {
      const Part& part = message.parts[i];
      if (decoded->is_inline[i]) continue;
      post(kPartTag, {part.data, part.bytes}, part.owner, element_of(message.loss_bound, i, part.bytes));
    }
    return true;
  } catch (const Error& error) {
    if (engine_->has_peer_left(kReceiver))
      has_left_ = true;
    else
      fail(error.what());
    return false;
  }
}

void Outgoing::fail(const std::string& text) {
  if (has_failed_.exchange(true)) return;
  changed_.notify_all();
  if (!is_closing_) on_failure_(text);
}

void Outgoing::take_completions() {
  std::array<Completion, 64> completions;
  while (true) {
    std::size_t taken = 0;
    std::string failure;
    try {
      taken = engine_->poll(completions, kLookNs);
      if (taken == 0 && !engine_->is_peer_up(kReceiver)) failure = engine_->peer_failure(kReceiver);
    } catch (const Error& error) {
      failure = error.what();
    }
    const bool has_left = engine_->has_peer_left(kReceiver);
    for (std::size_t i = 0; i < taken; ++i) {
      if (completions[i].failed()) failure = completions[i].error;
      completions[i] = Completion();  // its buffers are free
    }
    {
      const std::lock_guard lock(mutex_);
      in_progress_ -= taken;
      if (has_left) has_left_ = true;
    }
    changed_.notify_all();
    if (has_left || is_closing_) return;
    if (failure.empty()) continue;
    const std::string cause = engine_->peer_failure(kReceiver);
    return fail(cause.empty() ? failure : cause);
  }
}

}  // namespace mlt::van
