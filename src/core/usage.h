// What an endpoint holds now, each count beside its limit (core/config.h). Read only: for operators who size an
// endpoint, and for the simulator's oracle, which requires that nothing is left when every operation has ended.
#pragma once

#include <cstddef>

namespace mlt::core {

struct Held {
  std::size_t used = 0;
  std::size_t limit = 0;
};

struct Usage {
  Held sends;           // slots: in progress, or complete and not yet polled
  Held receives;        //
  Held bitmap_words;    // of all transfers in progress
  Held early_segments;  // buffered for receives that are not posted yet
  Held early_sent;      // segments and transfers of early data, without abandoned ones (8.1.7)
  Held parity_packets;  // kept until they restore segments
  Held replies;         // replies and ABORTs waiting to be sent, as datagrams or over TCP
  Held completions;     // not yet polled
};

}  // namespace mlt::core
