#include "sim/first_use.h"

#include <algorithm>

namespace mlt::sim {

FirstUse::FirstUse(Simulator& simulator, const FirstUsePlan& plan, std::uint64_t seed)
    : simulator_(simulator), plan_(plan), prng_(seed ^ 0xF125705EULL) {
  if (!plan_.is_on) return;
  simulator_.on_coming_up = [this](std::uint16_t host, std::uint16_t peer) {
    // After the host's turn, in which its endpoint learns of the connection.
    simulator_.at(simulator_.now(), [this, host, peer] {
      if (simulator_.endpoint_connection(host, peer) != 0) release(host, peer);
    });
  };
}

FirstUse::~FirstUse() { simulator_.on_coming_up = nullptr; }

void FirstUse::post(std::uint16_t host, std::uint16_t peer, std::function<void()> action) {
  const bool has_line = !posts_[{host, peer}].empty();
  // A host that is not there posts nothing: the action finds that.
  const bool may_post = !simulator_.host(host).is_up() || simulator_.endpoint_connection(host, peer) != 0;
  if (!plan_.is_on || (may_post && !has_line)) return action();
  posts_[{host, peer}].push_back(std::move(action));
  ++waiting_;
  request(host, peer);
}

void FirstUse::request(std::uint16_t host, std::uint16_t peer) {
  const auto [a, b] = std::minmax(host, peer);
  if (is_connecting_[{a, b}]) return;
  is_connecting_[{a, b}] = true;
  try_to_connect(a, b, simulator_.now() + plan_.give_up_ns);
}

void FirstUse::try_to_connect(std::uint16_t a, std::uint16_t b, base::TimeNs give_up_at) {
  const auto after = static_cast<base::DurationNs>(1 + prng_.below(static_cast<std::uint64_t>(plan_.set_up_most_ns)));
  simulator_.at(simulator_.now() + after, [this, a, b, give_up_at] {
    // One that is set up already: a host may have lost it and not know that yet.
    if (simulator_.connection(a, b) == 0) simulator_.connect(a, b, plan_.spread_ns);
    const bool is_up = simulator_.endpoint_connection(a, b) != 0 && simulator_.endpoint_connection(b, a) != 0;
    const bool has_posts = !posts_[{a, b}].empty() || !posts_[{b, a}].empty();
    if (has_posts && !is_up && simulator_.now() < give_up_at) return try_to_connect(a, b, give_up_at);
    is_connecting_[{a, b}] = false;
    release(a, b);
    release(b, a);
  });
}

void FirstUse::release(std::uint16_t host, std::uint16_t peer) {
  std::deque<std::function<void()>>& posts = posts_[{host, peer}];
  while (!posts.empty()) {
    const std::function<void()> action = std::move(posts.front());
    posts.pop_front();
    --waiting_;
    action();
  }
}

}  // namespace mlt::sim
