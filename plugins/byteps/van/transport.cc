#include "transport.h"

#include <algorithm>
#include <utility>

namespace mlt::van {

namespace {

constexpr int kAcceptLookMs = 100;
constexpr std::size_t kMaxComingUp = 1'024;  // connections that did not prove the job's secret yet
constexpr std::chrono::nanoseconds kReceiveLook{500'000'000};
constexpr std::int32_t kScheduler = 1;  // ps-lite's id, which no other node takes over

std::string name_of(std::int32_t id) {
  return id == kScheduler ? "the scheduler" : id < kScheduler ? "a node without an id" : "node " + std::to_string(id);
}

}  // namespace

Transport::Transport(Calls calls) : settings_(read_settings()), calls_(std::move(calls)) {}

Transport::~Transport() { close(); }

std::uint16_t Transport::listen(const std::string& host, std::uint16_t port, bool may_change) {
  try {
    listener_ = listen_at(host, port);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPortInUse || !may_change) throw;
    listener_ = listen_at(host, 0);
  }
  accepting_ = std::thread([this] { accept_all(); });
  return local_port(listener_);
}

void Transport::accept_all() {
  while (!is_closing_) {
    io::UniqueFd socket = accept_from(listener_, kAcceptLookMs);
    std::vector<std::unique_ptr<Incoming>> over;
    const std::lock_guard lock(mutex_);
    const auto ended = std::partition(incoming_.begin(), incoming_.end(), [](auto& one) { return !one->is_over(); });
    std::move(ended, incoming_.end(), std::back_inserter(over));
    incoming_.erase(ended, incoming_.end());
    if (!socket) continue;
    const auto coming_up = std::count_if(incoming_.begin(), incoming_.end(), [](auto& one) { return !one->is_up(); });
    if (static_cast<std::size_t>(coming_up) >= kMaxComingUp) {
      calls_.warn("a connection was closed: " + std::to_string(kMaxComingUp) + " others have not come up yet");
      continue;
    }
    Incoming::Calls calls;
    calls.place = calls_.place;
    calls.deliver = [this](Message message) { deliver(std::move(message)); };
    calls.count = [this](std::uint64_t bytes, std::uint64_t missing) {
      lossy_bytes_ += bytes;
      lost_bytes_ += missing;
    };
    calls.fail = [this](std::int32_t sender, const std::string& text) { on_failure(sender, text); };
    incoming_.push_back(std::make_unique<Incoming>(settings_, std::move(socket), pool_, std::move(calls)));
  }
}

void Transport::connect(std::int32_t id, const std::string& host, std::uint16_t port, std::int32_t sender) {
  const std::string name = name_of(id) + " (" + host + ":" + std::to_string(port) + ")";
  std::shared_ptr<Outgoing> before;
  {
    const std::lock_guard lock(mutex_);
    before = std::exchange(outgoing_[id], nullptr);
    lost_.erase(id);
  }
  before.reset();
  std::shared_ptr<Outgoing> made;
  try {
    made = std::make_shared<Outgoing>(settings_, name, host, port, sender, is_closing_,
                                      [this, id](const std::string& text) { on_failure(id, text); });
  } catch (const Error& error) {
    if (settings_.recovery_timeout_ns == 0 || id == kScheduler) throw;
    return on_failure(id, error.what());
  }
  const std::lock_guard lock(mutex_);
  outgoing_[id] = std::move(made);
}

Transport::Sent Transport::send(std::int32_t id, const Message& message) {
  std::shared_ptr<Outgoing> outgoing;
  {
    const std::lock_guard lock(mutex_);
    if (lost_.contains(id)) return Sent::kNodeLost;
    if (const auto found = outgoing_.find(id); found != outgoing_.end()) outgoing = found->second;
  }
  if (!outgoing) return Sent::kFailed;
  if (outgoing->send(message)) return Sent::kDone;
  if (outgoing->has_left()) return Sent::kNodeLeft;
  const std::lock_guard lock(mutex_);
  return lost_.contains(id) ? Sent::kNodeLost : Sent::kFailed;
}

void Transport::deliver(Message message) {
  {
    const std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
  }
  arrived_.notify_one();
}

// Each node has two connections, both of which may report its failure.
void Transport::on_failure(std::int32_t id, const std::string& text) {
  if (is_closing_) return;
  const std::string failure = name_of(id) + " failed: " + text;
  const std::lock_guard lock(mutex_);
  if (settings_.recovery_timeout_ns > 0 && id > kScheduler) {
    if (!lost_.emplace(id, std::pair(std::chrono::steady_clock::now(), failure)).second) return;
    calls_.warn(failure + "; it is waited for until another process takes its id");
    return;
  }
  if (failure_.empty()) failure_ = failure;
  arrived_.notify_one();
}

std::string Transport::expired() const {
  const std::chrono::nanoseconds limit(settings_.recovery_timeout_ns);
  for (const auto& [id, lost] : lost_) {
    if (std::chrono::steady_clock::now() - lost.first > limit) return lost.second + "; no process has replaced it";
  }
  return "";
}

Transport::Received Transport::receive(std::chrono::nanoseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  std::unique_lock lock(mutex_);
  while (true) {
    if (!messages_.empty()) {
      Message message = std::move(messages_.front());
      messages_.pop_front();
      return {std::move(message), ""};
    }
    if (failure_.empty()) failure_ = expired();
    if (!failure_.empty()) return {std::nullopt, failure_};
    const std::chrono::nanoseconds left = end - std::chrono::steady_clock::now();
    if (left.count() <= 0) return {};
    arrived_.wait_for(lock, std::min(left, kReceiveLook));
  }
}

void Transport::close() {
  if (is_closing_.exchange(true)) return;
  std::map<std::int32_t, std::shared_ptr<Outgoing>> outgoing;
  {
    const std::lock_guard lock(mutex_);
    outgoing.swap(outgoing_);
  }
  outgoing.clear();
  if (accepting_.joinable()) accepting_.join();
  incoming_.clear();
  listener_ = io::UniqueFd();
}

}  // namespace mlt::van
