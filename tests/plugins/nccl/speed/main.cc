// One end of a measurement of a NCCL network plugin (tools/nccl_speed.py):
//
//   nccl_speed LIBRARY receive|send FOLDER CONNECTIONS BYTES SECONDS
//
// The receiver writes its handles to FOLDER. Every connection has as many transfers in progress as NCCL has steps. The
// first second is not counted. Both print JSON: bytes, seconds, nanoseconds per test() of a receive in progress (the
// receiver only), and the median time of one way in a ping-pong of 8 bytes.
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/plugins/nccl/driver/net.h"

using namespace driver;

namespace {

constexpr std::size_t kSteps = 8;
constexpr std::size_t kLittle = 8;
constexpr std::size_t kMaxPings = 2'000;
constexpr double kMaxPingSeconds = 1;  // of a long network there are fewer pings

Handle read_handle(const std::filesystem::path& file) {
  const Deadline deadline;
  for (;;) {
    std::ifstream stream(file, std::ios::binary);
    Handle handle{std::istreambuf_iterator<char>(stream), {}};
    if (handle.size() == mlt::nccl::kHandleBytes) return handle;
    MUST(!deadline.passed());
  }
}

struct Ends {
  std::vector<void*> data;
  void* ping = nullptr;  // from the sender
  void* pong = nullptr;  // to the sender
};

void* listen_at(Net& net, const std::filesystem::path& file) {
  Handle handle;
  void* listener = nullptr;
  OK(net.listen(handle, &listener));
  const std::filesystem::path part = file.string() + ".part";
  std::ofstream(part, std::ios::binary).write(handle.data(), static_cast<std::streamsize>(handle.size()));
  std::filesystem::rename(part, file);
  return listener;
}

Ends connect_all(Net& net, bool receives, const std::filesystem::path& folder, std::size_t connections) {
  Ends ends;
  if (receives) {
    std::vector<void*> listeners;
    for (std::size_t i = 0; i < connections; ++i) listeners.push_back(listen_at(net, folder / std::to_string(i)));
    void* ping = listen_at(net, folder / "ping");
    for (void* one : listeners) ends.data.push_back(accept_until_up(net, one));
    ends.ping = accept_until_up(net, ping);
    ends.pong = connect_until_up(net, read_handle(folder / "pong"));
  } else {
    void* pong = listen_at(net, folder / "pong");
    for (std::size_t i = 0; i < connections; ++i) {
      ends.data.push_back(connect_until_up(net, read_handle(folder / std::to_string(i))));
    }
    ends.ping = connect_until_up(net, read_handle(folder / "ping"));
    ends.pong = accept_until_up(net, pong);
  }
  return ends;
}

// Microseconds of one way. The sender marks its last ping, so that both ends make the same number.
double ping_pong(Net& net, const Ends& ends, bool receives) {
  char bytes[kLittle] = {};
  std::vector<double> times;
  for (const double begin = now_seconds(); bytes[0] == 0;) {
    const double start = now_seconds();
    if (!receives) bytes[0] = times.size() + 1 == kMaxPings || start - begin > kMaxPingSeconds;
    for (const bool first : {true, false}) {
      Pending one = first == receives ? receive(net, first ? ends.ping : ends.pong, bytes, kLittle)
                                      : send(net, first ? ends.ping : ends.pong, bytes, kLittle);
      finish(net, one);
    }
    times.push_back((now_seconds() - start) / 2 * 1e6);
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// Nanoseconds of a test() of a receive that nothing is sent for yet.
double test_cost(Net& net, const Ends& ends, bool receives) {
  constexpr int kTests = 200'000;
  char byte = 0;
  double cost = 0;
  if (receives) {
    Pending one = receive(net, ends.ping, &byte, 1);
    const double start = now_seconds();
    for (int i = 0; i < kTests; ++i) {
      bool done = false;
      std::size_t size = 0;
      OK(net.test(one.request, &done, &size));
      MUST(!done);
    }
    cost = (now_seconds() - start) / kTests * 1e9;
    Pending ready = send(net, ends.pong, &byte, 1);
    finish(net, ready);
    finish(net, one);
  } else {
    Pending ready = receive(net, ends.pong, &byte, 1);
    finish(net, ready);
    Pending one = send(net, ends.ping, &byte, 1);
    finish(net, one);
  }
  return cost;
}

struct Moved {
  double bytes = 0, seconds = 0;
};

// The sender ends each connection with an empty transfer once the time is over.
Moved stream(Net& net, const Ends& ends, bool receives, std::size_t bytes, double seconds) {
  struct Lane {
    std::vector<std::vector<char>> buffers;
    std::vector<Pending> pending;
    std::size_t next = 0;
    bool ended = false;
  };
  static std::vector<Lane> lanes;  // the receiver's last receives stay in progress until the connections close
  lanes.resize(ends.data.size());
  const double begin = now_seconds();
  double counted_from = 0, total = 0, last = 0;
  std::size_t open = lanes.size();
  const auto post = [&](std::size_t lane, std::size_t step) {
    Lane& own = lanes[lane];
    const bool ends_now = !receives && now_seconds() - begin > seconds;
    if (ends_now) own.ended = true;
    own.pending[step] = receives ? receive(net, ends.data[lane], own.buffers[step].data(), bytes)
                                 : send(net, ends.data[lane], own.buffers[step].data(), ends_now ? 0 : bytes);
  };
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    lanes[lane].buffers.assign(kSteps, std::vector<char>(bytes));
    lanes[lane].pending.resize(kSteps);
    for (std::size_t step = 0; step < kSteps; ++step) post(lane, step);
  }
  std::vector<std::size_t> left(lanes.size(), kSteps);
  while (open > 0) {
    bool is_idle = true;
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      Lane& own = lanes[lane];
      if (left[lane] == 0) continue;
      Pending& head = own.pending[own.next];
      bool done = false;
      OK(net.test(head.request, &done, &head.size));
      if (!done) continue;
      is_idle = false;
      const double time = now_seconds();
      if (counted_from == 0 && time - begin > 1) {
        counted_from = time;
      } else if (counted_from > 0) {
        total += static_cast<double>(head.size);
        last = time;
      }
      if (receives && head.size == 0) {
        left[lane] = 0;  // the sender has ended; the receives behind stay open until the connection closes
      } else if (!receives && own.ended) {
        left[lane] -= 1;
      } else {
        post(lane, own.next);
      }
      if (left[lane] == 0) --open;
      own.next = (own.next + 1) % kSteps;
    }
    if (is_idle) ::sched_yield();  // as NCCL's proxy thread
  }
  return {total, last - counted_from};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "use: nccl_speed LIBRARY receive|send FOLDER CONNECTIONS BYTES SECONDS\n");
    return 2;
  }
  const bool receives = std::string(argv[2]) == "receive";
  Net net(argv[1], 8);
  OK(net.init());
  const Ends ends = connect_all(net, receives, argv[3], std::stoul(argv[4]));
  const double test_ns = test_cost(net, ends, receives);
  const double one_way_us = ping_pong(net, ends, receives);
  const Moved moved = stream(net, ends, receives, std::stoul(argv[5]), std::stod(argv[6]));
  std::printf("{\"bytes\": %.0f, \"seconds\": %.3f, \"test_ns\": %.0f, \"one_way_us\": %.1f}\n", moved.bytes,
              moved.seconds, test_ns, one_way_us);
  std::fflush(stdout);
  // The receiver closes when the sender has: its requests in progress are no error here.
  for (void* one : ends.data) receives ? OK(net.close_receive(one)) : OK(net.close_send(one));
  receives ? OK(net.close_receive(ends.ping)) : OK(net.close_send(ends.ping));
  receives ? OK(net.close_send(ends.pong)) : OK(net.close_receive(ends.pong));
}
