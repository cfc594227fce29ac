// Sequences of endpoint calls: the input is a program that two endpoints, facing each other, are driven by. It posts,
// cancels, loses, repeats, delays and reorders what the two say, damages it with or without a mended check, makes up
// datagrams that carry the right cookie (a hostile peer), passes time, and breaks and renews the connection.
//
// What must hold after every call: nothing is written outside a posted buffer nor into one whose completion was polled;
// each operation completes at most once, and no success misses more than it allowed; every poll loop ends; no timer
// is left due. While nothing but the network has misbehaved ("honest"): what arrived is what was sent. At the end:
// every operation has ended once its timeout has passed, and every slot and bitmap is free again.
#include "endpoint_world.h"

namespace {

using namespace mlt;
using fuzz::World;

void step(World& world, fuzz::Input& input) {
  const auto side = static_cast<std::uint16_t>(input.below(2));
  switch (input.below(14)) {
    case 0:
      return world.post_send(side, input);
    case 1:
      return world.post_receive(side, input);
    case 2:
      return world.cancel(side, input.u8(),
                          input.flag() ? core::CompletionKind::kSend : core::CompletionKind::kReceive);
    case 3:
      return world.transmit(side, 1U + input.below(8));
    case 4:
      return world.deliver(side, input.u8(), input);
    case 5:
      return world.deliver_damaged(side, input.u8(), input);
    case 6:
      return world.deliver_made_up(side, input);
    case 7:
      return world.lose(side, input.u8());
    case 8:
      return world.exchange(1U + input.below(8));
    case 9:
      return world.pass(base::DurationNs{1} << input.below(31));
    case 10:
      return world.poll_completions(side);
    case 11:
      return world.poll_messages(side, input.flag());
    case 12:
      return input.below(4) == 0 ? world.leave(side) : world.poll_completions(side);
    default:
      return input.below(8) == 0 ? world.reconnect() : world.exchange(1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  World world(input);
  for (int steps = 0; !input.empty() && steps < 400; ++steps) step(world, input);
  world.finish();
  return 0;
}
