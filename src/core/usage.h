// What an endpoint holds at the moment, each beside its limit (core/config.h). Read only: for operators who size
// an endpoint, and for the simulator's oracle, which demands that nothing is left when everything has ended.
#pragma once

#include <cstddef>

namespace mlt::core {

struct Held {
  std::size_t used = 0;
  std::size_t limit = 0;
};

struct Usage {
  Held sends;           // slots: under way, or completed and not yet polled
  Held receives;        //
  Held bitmap_words;    // of all transfers under way
  Held early_segments;  // kept for receives that are not posted yet
  Held early_sent;      // segments and transfers for receives not known to be posted, but for abandoned ones (8.1.7)
  Held replies;         // answers and give-ups that wait to be sent, over both ways
  Held completions;     // not yet polled
};

}  // namespace mlt::core
