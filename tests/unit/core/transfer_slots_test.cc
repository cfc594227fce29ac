#include "core/transfer_slots.h"

#include <doctest/doctest.h>

#include <map>
#include <tuple>
#include <vector>

#include "base/prng.h"

namespace {

using mlt::core::OperationId;

struct State {
  struct {
    OperationId operation = 0;
    std::uint16_t peer = 0;
    std::uint64_t tag = 0;
  } request;
  std::uint32_t generation = 0;
  bool in_use = false;

  bool is_free() const { return !in_use; }
  mlt::wire::TransferId transfer() const { return {request.tag, generation}; }
};
using Slots = mlt::core::TransferSlots<State>;

State& post(Slots& slots, OperationId operation, std::uint16_t peer, std::uint64_t tag, std::uint32_t generation) {
  State& state = slots.take();
  state.in_use = true;
  state.request = {operation, peer, tag};
  state.generation = generation;
  slots.list(state);
  return state;
}

bool any(const State&) { return true; }

TEST_CASE("transfer_slots__agree_with_a_map") {
  constexpr std::uint32_t kSlots = 50;
  Slots slots(kSlots);
  using Key = std::tuple<std::uint16_t, std::uint64_t, std::uint32_t>;
  std::map<Key, std::uint32_t> listed;                 // to the slot
  std::map<OperationId, std::pair<Key, bool>> in_use;  // to the transfer, and whether it is listed
  mlt::base::Prng prng(1);
  OperationId operations = 0;
  bool was_full = false;
  for (int step = 0; step < 50'000; ++step) {
    const Key key{static_cast<std::uint16_t>(prng.below(3)), prng.below(5), static_cast<std::uint32_t>(prng.below(20))};
    const auto [peer, tag, generation] = key;
    const auto known = listed.find(key);
    State* found = slots.find(peer, {tag, generation});
    REQUIRE((found != nullptr) == (known != listed.end()));
    if (found != nullptr) REQUIRE(slots.slot_of(*found) == known->second);
    REQUIRE(slots.used() == in_use.size());
    REQUIRE(slots.is_full() == (in_use.size() == kSlots));
    was_full = was_full || slots.is_full();
    if (found == nullptr && !slots.is_full()) {
      State& state = post(slots, ++operations, peer, tag, generation);
      listed[key] = slots.slot_of(state);
      in_use[operations] = {key, true};
    } else if (found != nullptr && prng.chance(0.5)) {
      in_use[found->request.operation].second = false;
      slots.unlist(*found);
      listed.erase(known);
    } else if (!in_use.empty()) {
      auto it = in_use.lower_bound(prng.below(operations));
      if (it == in_use.end()) it = in_use.begin();
      State* state = slots.find_operation(it->first, any);
      REQUIRE(state != nullptr);
      if (it->second.second) continue;
      state->in_use = false;
      slots.free(*state);
      REQUIRE(slots.find_operation(it->first, any) == nullptr);
      in_use.erase(it);
    }
  }
  CHECK(was_full);
}

TEST_CASE("find_operation__returns_the_newest_that_is_accepted") {
  Slots slots(4);
  State& older = post(slots, 7, 1, 1, 0);
  State& newer = post(slots, 7, 1, 1, 1);
  post(slots, 8, 1, 1, 2);
  CHECK(slots.find_operation(7, any) == &newer);
  CHECK(slots.find_operation(7, [&](const State& state) { return &state != &newer; }) == &older);
  CHECK(slots.find_operation(7, [](const State&) { return false; }) == nullptr);
  CHECK(slots.find_operation(9, any) == nullptr);
}

TEST_CASE("renumber__moves_the_transfer_and_keeps_its_slot") {
  Slots slots(4);
  State& state = post(slots, 7, 1, 5, 3);
  const std::uint32_t slot = slots.slot_of(state);
  slots.renumber(state, 900);
  CHECK(slots.find(1, {5, 3}) == nullptr);
  CHECK(slots.find(1, {5, 900}) == &slots[slot]);
  CHECK(slots.find_operation(7, any) == &state);
}

TEST_CASE("take__returns_a_state_without_a_past") {
  Slots slots(1);
  State& first = post(slots, 7, 1, 5, 3);
  slots.unlist(first);
  first.in_use = false;
  slots.free(first);
  State& second = slots.take();
  CHECK(&second == &first);
  CHECK(second.request.operation == 0);
  CHECK(second.generation == 0);
  CHECK(slots.is_full());
}

}  // namespace
