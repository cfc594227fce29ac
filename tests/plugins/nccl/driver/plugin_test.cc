// The NCCL plugin, driven as NCCL drives it: docs/nccl.md. MLT_NCCL_PLUGIN and MLT_NCCL_TCP_PLUGIN are the libraries.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <regex>
#include <thread>

#include "children.h"
#include "net.h"
#include "plugins/nccl/connection.h"

using namespace driver;
using mlt::nccl::kInvalidArgument;
using mlt::nccl::kInvalidUsage;
using mlt::nccl::kRemoteError;

namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
// ThreadSanitizer forbids them after a fork of a process that has some; AddressSanitizer's allocator (GCC 12) stays
// locked for good if one of those was in it.
constexpr bool kForkMayHaveThreads = false;
#else
constexpr bool kForkMayHaveThreads = true;
#endif

bool logged(const std::string& part) { return log_text().find(part) != std::string::npos; }

// Sends and receives of one connection, several at a time, of sizes from 0 on; every byte is checked.
void exchange(Net& net, void* sender, void* receiver, int count, std::size_t max_size, std::uint64_t seed) {
  constexpr int kAtOnce = mlt::nccl::kMaxRequests;
  constexpr std::size_t kExcess = 1'000;
  std::vector<std::vector<char>> sent, got;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t number = seed * 1'000 + static_cast<std::uint64_t>(i);
    sent.push_back(pattern(i % 7 == 3 ? 0 : number * 7'919 % (max_size + 1), number));
    got.emplace_back(sent.back().size() + kExcess, '\x55');
  }
  for (int first = 0; first < count; first += kAtOnce) {
    const int last = std::min(count, first + kAtOnce);
    std::vector<Pending> sends, receives;
    for (int i = first; i < last; ++i) {
      auto& into = got[static_cast<std::size_t>(i)];
      receives.push_back(receive(net, receiver, into.data(), into.size()));
    }
    for (int i = first; i < last; ++i) {
      const auto& from = sent[static_cast<std::size_t>(i)];
      sends.push_back(send(net, sender, from.data(), from.size()));
    }
    // Newest first: NCCL asks in its own order.
    for (int i = last - 1; i >= first; --i) {
      const auto at = static_cast<std::size_t>(i - first);
      const std::vector<char>& from = sent[static_cast<std::size_t>(i)];
      const std::vector<char>& into = got[static_cast<std::size_t>(i)];
      finish(net, receives[at]);
      finish(net, sends[at]);
      MUST(receives[at].size == from.size() && sends[at].size == from.size());
      MUST(std::equal(from.begin(), from.end(), into.begin()));
      MUST(std::all_of(into.begin() + static_cast<std::ptrdiff_t>(from.size()), into.end(),
                       [](char one) { return one == '\x55'; }));
    }
  }
}

// A process that is connected to itself; closes both ends after `body`.
bool run_connected(int version, const Environment& environment,
                   const std::function<void(Net&, void* sender, void* receiver)>& body) {
  return run(environment, [&] {
    Net net(MLT_NCCL_PLUGIN, version);
    OK(net.init());
    void *sender = nullptr, *receiver = nullptr;
    connect_pair(net, &sender, &receiver);
    body(net, sender, receiver);
    OK(net.close_send(sender));
    OK(net.close_receive(receiver));
  });
}

// A receiver in one process and a sender in another; the bodies get the connection and the channel between them.
using End = std::function<void(Net&, void*, Channel&)>;
std::pair<pid_t, pid_t> start_pair(Channel& channel, const Environment& environment, const End& receiver,
                                   const End& sender) {
  const pid_t first = start(environment, [&] {
    channel.use(0);
    Net net(MLT_NCCL_PLUGIN, 8);
    OK(net.init());
    Handle handle;
    void* listener = nullptr;
    OK(net.listen(handle, &listener));
    channel.write(handle);
    void* connection = accept_until_up(net, listener);
    OK(net.close_listener(listener));
    receiver(net, connection, channel);
  });
  const pid_t second = start(environment, [&] {
    channel.use(1);
    Net net(MLT_NCCL_PLUGIN, 8);
    OK(net.init());
    sender(net, connect_until_up(net, channel.read(mlt::nccl::kHandleBytes)), channel);
  });
  return {first, second};
}

}  // namespace

TEST_CASE("exports__are_the_two_tables_and_nothing_else") {
  FILE* pipe = ::popen(MLT_NM " -D --defined-only " MLT_NCCL_PLUGIN, "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  char line[512];
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    const std::string one = line;
    text += one.substr(one.rfind(' ') + 1);
  }
  CHECK(::pclose(pipe) == 0);
  CHECK(text == "ncclNetPlugin_v11\nncclNetPlugin_v8\n");
}

TEST_CASE("connection__of_a_process_to_itself_by_one_thread") {
  for (const int version : {8, 11}) {
    CAPTURE(version);
    CHECK(run_connected(
        version, {}, [](Net& net, void* sender, void* receiver) { exchange(net, sender, receiver, 100, 300'000, 1); }));
  }
}

// What mlt is compared with must do the same work.
TEST_CASE("tcp_plugin__passes_the_same_exchange") {
  CHECK(run({}, [] {
    Net net(MLT_NCCL_TCP_PLUGIN, 8);
    OK(net.init());
    void *sender = nullptr, *receiver = nullptr;
    connect_pair(net, &sender, &receiver);
    std::thread receives([&] {
      for (int i = 0; i < 40; ++i) {
        std::vector<char> got(400'000);
        Pending one = receive(net, receiver, got.data(), got.size());
        finish(net, one);
        const std::vector<char> wanted = pattern(static_cast<std::size_t>(i) * 9'000, 9);
        MUST(one.size == wanted.size() && std::equal(wanted.begin(), wanted.end(), got.begin()));
      }
    });
    for (int i = 0; i < 40; ++i) {
      const std::vector<char> data = pattern(static_cast<std::size_t>(i) * 9'000, 9);
      Pending one = send(net, sender, data.data(), data.size());
      finish(net, one);
    }
    receives.join();
    OK(net.close_send(sender));
    OK(net.close_receive(receiver));
  }));
}

TEST_CASE("library__is_unloaded_and_loaded_again") {
  CHECK(run({}, [] {
    for (int round = 0; round < 3; ++round) {
      Net net(MLT_NCCL_PLUGIN, 11);
      OK(net.init());
      void *sender = nullptr, *receiver = nullptr;
      connect_pair(net, &sender, &receiver);
      exchange(net, sender, receiver, 10, 10'000, 2);
      OK(net.close_receive(receiver));
      OK(net.close_send(sender));
    }
    MUST(::dlopen(MLT_NCCL_PLUGIN, RTLD_NOW | RTLD_NOLOAD) == nullptr);
    MUST(run({}, [] {}));  // nothing of it is called at a fork
  }));
}

TEST_CASE("properties__say_what_the_plugin_does") {
  CHECK(run({{"MLT_NCCL_LINE_RATE_GBPS", "25"}}, [] {
    Net net(MLT_NCCL_PLUGIN, 11);
    OK(net.init());
    int count = 0;
    OK(net.v11.devices(&count));
    MUST(count == 1);
    mlt::nccl::PropertiesV11 found{};
    OK(net.v11.properties(0, &found));
    MUST(std::string(found.name) == "mlt" && found.pci_path == nullptr);
    MUST(found.pointer_types == mlt::nccl::kHostMemory && found.max_grouped_receives == 1);
    MUST(found.speed_mbps == 25'000 && found.max_connections >= 1);
    MUST(found.merged.count == 1 && found.merged.devices[0] == 0 && found.max_p2p_bytes >= 1U << 20);
    MUST(net.v11.properties(1, &found) == kInvalidArgument && logged("device 1 does not exist"));
  }));
}

TEST_CASE("requests__beyond_the_limit_are_refused_without_an_error") {
  CHECK(run_connected(8, {}, [](Net& net, void* sender, void* receiver) {
    std::vector<Pending> receives;
    std::array<char, 8> got{};
    for (void* request = nullptr;; receives.push_back({request})) {
      OK(net.receive(receiver, got.data(), got.size(), &request));
      if (request == nullptr) break;
    }
    MUST(receives.size() >= static_cast<std::size_t>(mlt::nccl::kMaxRequests));
    for (Pending& one : receives) {
      Pending sent = send(net, sender, "12345678", 8);
      finish(net, one);
      finish(net, sent);
    }
    exchange(net, sender, receiver, 40, 1'000, 3);  // its requests are free again
  }));
}

TEST_CASE("connections__many_between_two_processes_both_ways_from_two_threads") {
  constexpr int kConnections = 12;
  Channel channel;
  const auto process = [&](int end) {
    return start({{"MLT_DATAPATH", "udp"}}, [&channel, end] {
      channel.use(end);
      Net net(MLT_NCCL_PLUGIN, 8);
      OK(net.init());
      std::vector<void*> listeners(kConnections), senders(kConnections), receivers(kConnections);
      for (void*& listener : listeners) {
        Handle handle;
        OK(net.listen(handle, &listener));
        channel.write(handle);
      }
      std::vector<Handle> handles;
      for (int i = 0; i < kConnections; ++i) handles.push_back(channel.read(mlt::nccl::kHandleBytes));
      const Deadline deadline;
      for (std::size_t up = 0; up < 2 * kConnections;) {
        up = 0;
        for (std::size_t i = 0; i < kConnections; ++i) {
          if (senders[i] == nullptr) OK(net.connect(handles[i], &senders[i]));
          if (receivers[i] == nullptr) OK(net.accept(listeners[i], &receivers[i]));
          up += (senders[i] != nullptr ? 1U : 0U) + (receivers[i] != nullptr ? 1U : 0U);
        }
        MUST(!deadline.passed());
      }
      for (void* listener : listeners) OK(net.close_listener(listener));
      std::thread receives([&] {
        std::vector<std::vector<char>> got(kConnections, std::vector<char>(400'000));
        for (int round = 0; round < 6; ++round) {
          std::vector<Pending> pending;
          for (std::size_t i = 0; i < kConnections; ++i) {
            pending.push_back(receive(net, receivers[i], got[i].data(), got[i].size()));
          }
          for (std::size_t i = kConnections; i-- > 0;) {
            finish(net, pending[i]);
            const std::vector<char> wanted = pattern(i * 20'000, static_cast<std::uint64_t>(round));
            MUST(pending[i].size == wanted.size() && std::equal(wanted.begin(), wanted.end(), got[i].begin()));
          }
        }
      });
      std::thread sends([&] {
        for (int round = 0; round < 6; ++round) {
          std::vector<std::vector<char>> data;
          std::vector<Pending> pending;
          for (std::size_t i = 0; i < kConnections; ++i) {
            data.push_back(pattern(i * 20'000, static_cast<std::uint64_t>(round)));
          }
          for (std::size_t i = 0; i < kConnections; ++i) {
            pending.push_back(send(net, senders[i], data[i].data(), data[i].size()));
          }
          for (Pending& one : pending) finish(net, one);
        }
      });
      sends.join();
      receives.join();
      for (void* one : senders) OK(net.close_send(one));
      for (void* one : receivers) OK(net.close_receive(one));
    });
  };
  const pid_t first = process(0), second = process(1);
  CHECK(succeeded(first));
  CHECK(succeeded(second));
}

TEST_CASE("loss__is_repaired_over_two_paths") {
  CHECK(run({{"MLT_NCCL_FAULTS", "drop=1%,seed=5"}, {"MLT_PATHS", "2"}}, [] {
    Net net(MLT_NCCL_PLUGIN, 8);
    OK(net.init());
    void *sender = nullptr, *receiver = nullptr;
    connect_pair(net, &sender, &receiver);
    exchange(net, sender, receiver, 64, 600'000, 4);
    OK(net.close_send(sender));
    OK(net.close_receive(receiver));
    std::smatch found;
    const std::string text = log_text();
    MUST(std::regex_search(text, found,
                           std::regex("sent to 127.0.0.1 .*: 64 transfers, [0-9]+ bytes, ([0-9]+) segments "
                                      "sent again, packets by path: ([0-9]+) ([0-9]+)")));
    MUST(std::stoi(found[1]) > 0 && std::stoi(found[2]) > 0 && std::stoi(found[3]) > 0);
  }));
}

TEST_CASE("close__of_the_receiver_right_after_its_receives_leaves_the_sends_complete") {
  CHECK(run({{"MLT_NCCL_FAULTS", "drop=10%"}}, [] {
    Net net(MLT_NCCL_PLUGIN, 8);
    OK(net.init());
    for (int round = 0; round < 10; ++round) {
      void *sender = nullptr, *receiver = nullptr;
      connect_pair(net, &sender, &receiver);
      const std::vector<char> data = pattern(20'000, 6);
      std::vector<char> got(data.size());
      Pending received = receive(net, receiver, got.data(), got.size());
      Pending sent = send(net, sender, data.data(), data.size());
      finish(net, received);
      MUST(got == data);
      OK(net.close_receive(receiver));
      finish(net, sent);
      OK(net.close_send(sender));
    }
  }));
}

TEST_CASE("close__of_the_sender_right_after_its_sends_leaves_the_receives_complete") {
  CHECK(run({{"MLT_NCCL_FAULTS", "drop=10%"}}, [] {
    Net net(MLT_NCCL_PLUGIN, 8);
    OK(net.init());
    for (int round = 0; round < 10; ++round) {
      void *sender = nullptr, *receiver = nullptr;
      connect_pair(net, &sender, &receiver);
      const std::vector<char> data = pattern(20'000, 16);
      std::vector<char> got(data.size());
      Pending received = receive(net, receiver, got.data(), got.size());
      Pending sent = send(net, sender, data.data(), data.size());
      finish(net, sent);
      OK(net.close_send(sender));
      finish(net, received);
      MUST(got == data);
      void* request = nullptr;
      Result result = net.receive(receiver, got.data(), got.size(), &request);
      if (result == mlt::nccl::kSuccess) result = finish_failing(net, request);
      MUST(result == kRemoteError);
      OK(net.close_receive(receiver));
    }
  }));
}

TEST_CASE("close__of_a_sender_that_sent_nothing_ends_the_accept") {
  CHECK(run({}, [] {
    Net net(MLT_NCCL_PLUGIN, 8);
    OK(net.init());
    for (int round = 0; round < 10; ++round) {
      Handle handle;
      void *listener = nullptr, *receiver = nullptr;
      OK(net.listen(handle, &listener));
      OK(net.close_send(connect_until_up(net, handle)));
      const Deadline deadline(10);
      Result result = mlt::nccl::kSuccess;
      while (result == mlt::nccl::kSuccess && receiver == nullptr) {
        result = net.accept(listener, &receiver);
        MUST(!deadline.passed());
      }
      if (receiver == nullptr) {
        MUST(result == kRemoteError && logged("accept from "));
        MUST(net.accept(listener, &receiver) == kRemoteError);  // again
      }
      OK(net.close_listener(listener));
      OK(net.close_receive(receiver));
    }
  }));
}

TEST_CASE("death__of_a_peer_is_an_error_that_names_it") {
  Channel channel;
  const auto [receiver, sender] = start_pair(
      channel, {},
      [](Net& net, void* connection, Channel& with) {
        static std::array<char, 1'000> got;
        Pending first = receive(net, connection, got.data(), got.size());
        Pending second = receive(net, connection, got.data(), got.size());
        with.signal();
        const double start = now_seconds();
        MUST(finish_failing(net, first.request) == kRemoteError);
        MUST(finish_failing(net, second.request) == kRemoteError);
        MUST(now_seconds() - start < 20);
        std::smatch found;
        const std::string text = log_text();
        MUST(std::regex_search(
            text, found,
            std::regex(
                "WARN NET/mlt: receive 1 from 127.0.0.1 \\(process [0-9]+\\), rank 1 of this connection: .*died")));
        void* request = nullptr;
        MUST(net.receive(connection, got.data(), got.size(), &request) == kRemoteError && request == nullptr);
        OK(net.close_receive(connection));
      },
      [](Net&, void*, Channel& with) {
        with.wait();
        ::raise(SIGKILL);
      });
  CHECK(succeeded(receiver));
  CHECK(!succeeded(sender));
}

// A data loader's process that was forked has its parent's descriptors, and may outlive it.
TEST_CASE("death__of_a_peer_whose_child_lives_on_is_noticed_at_once") {
  Channel channel;
  const auto [receiver, sender] = start_pair(
      channel, {},
      [](Net& net, void* connection, Channel& with) {
        static std::array<char, 1'000> got;
        const Pending received = receive(net, connection, got.data(), got.size());
        with.signal();
        const double start = now_seconds();
        MUST(finish_failing(net, received.request) == kRemoteError && logged("died"));
        MUST(now_seconds() - start < 20);
        OK(net.close_receive(connection));
      },
      [](Net&, void*, Channel& with) {
        with.wait();
        const pid_t child = ::fork();
        MUST(child >= 0);
        if (child == 0) {
          ::sleep(40);
          ::_exit(0);
        }
        ::raise(SIGKILL);
      });
  CHECK(succeeded(receiver));
  CHECK(!succeeded(sender));
}

TEST_CASE("close__with_requests_in_progress_is_an_error_at_the_peer_with_the_reason") {
  CHECK(run({}, [] {
    Net net(MLT_NCCL_PLUGIN, 8);
    OK(net.init());
    void *sender = nullptr, *receiver = nullptr;
    connect_pair(net, &sender, &receiver);
    std::array<char, 10> got{};
    Pending received = receive(net, receiver, got.data(), got.size());
    const Pending sent = send(net, sender, got.data(), 0);
    finish(net, received);
    received = receive(net, receiver, got.data(), got.size());
    MUST(sent.request != nullptr);  // and its end was not asked for
    OK(net.close_send(sender));
    MUST(finish_failing(net, received.request) == kRemoteError);
    MUST(logged("NCCL closed the connection with 1 requests in progress"));
    OK(net.close_receive(receiver));
  }));
}

TEST_CASE("receive__smaller_than_its_send_fails_at_both_ends") {
  CHECK(run_connected(8, {}, [](Net& net, void* sender, void* receiver) {
    std::array<char, 100> data{};
    Pending received = receive(net, receiver, data.data(), 50);
    Pending sent = send(net, sender, data.data(), 100);
    MUST(finish_failing(net, received.request) == kInvalidUsage);
    MUST(finish_failing(net, sent.request) == kInvalidUsage);
    MUST(logged("50") && logged("100"));
  }));
}

TEST_CASE("handle__of_another_program_or_plugin_is_rejected") {
  CHECK(run({{"MLT_CONNECT_TIMEOUT", "20s"}}, [] {
    Net net(MLT_NCCL_PLUGIN, 8);
    OK(net.init());
    void* connection = nullptr;
    MUST(net.connect(Handle(mlt::nccl::kHandleBytes, '\0'), &connection) == kRemoteError);
    MUST(logged("set NCCL_NET_PLUGIN=mlt for all"));
    Handle handle;
    void* listener = nullptr;
    OK(net.listen(handle, &listener));
    // Another secret: the listener must not take it for the sender, and still accept the right one.
    Handle wrong = handle;
    for (std::size_t i = 28; i < 60; ++i) wrong[i] = static_cast<char>(wrong[i] ^ 0x5a);
    const Deadline deadline;
    Result result = mlt::nccl::kSuccess;
    while (result == mlt::nccl::kSuccess && !deadline.passed()) {
      result = net.connect(wrong, &connection);
      MUST(connection == nullptr);
      void* accepted = nullptr;
      OK(net.accept(listener, &accepted));
      MUST(accepted == nullptr);
    }
    MUST(result == kRemoteError);
    void *sender = nullptr, *receiver = nullptr;
    while (sender == nullptr || receiver == nullptr) {
      if (sender == nullptr) OK(net.connect(handle, &sender));
      if (receiver == nullptr) OK(net.accept(listener, &receiver));
      MUST(!deadline.passed());
    }
    OK(net.close_listener(listener));
    exchange(net, sender, receiver, 5, 1'000, 7);
    OK(net.close_send(sender));
    OK(net.close_receive(receiver));
  }));
}

// More of them than the listener keeps: it is bounded, and its sender still gets in.
TEST_CASE("clients__that_send_nothing_do_not_block_senders") {
  CHECK(run({{"MLT_CONNECT_TIMEOUT", "20s"}}, [] {
    constexpr int kClients = 300;
    Net net(MLT_NCCL_PLUGIN, 8);
    OK(net.init());
    Handle handle;
    void *listener = nullptr, *sender = nullptr, *receiver = nullptr;
    OK(net.listen(handle, &listener));
    mlt::nccl::Handle known;
    std::memcpy(&known, handle.data(), sizeof known);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = ::htons(known.control_port);
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    std::vector<int> clients;
    for (int i = 0; i < kClients; ++i) {
      clients.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      MUST(::connect(clients.back(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    }
    const double start = now_seconds();
    while (sender == nullptr || receiver == nullptr) {
      if (sender == nullptr) OK(net.connect(handle, &sender));
      if (receiver == nullptr) OK(net.accept(listener, &receiver));
      MUST(now_seconds() - start < 20);
    }
    OK(net.close_listener(listener));
    exchange(net, sender, receiver, 5, 1'000, 13);
    OK(net.close_send(sender));
    OK(net.close_receive(receiver));
    for (const int client : clients) ::close(client);
  }));
}

TEST_CASE("secret__of_the_job_must_be_the_same") {
  Channel channel;
  const pid_t receiver = start({{"MLT_JOB_SECRET", "one secret of the job"}}, [&] {
    channel.use(0);
    Net net(MLT_NCCL_PLUGIN, 8);
    OK(net.init());
    Handle handle;
    void* listener = nullptr;
    OK(net.listen(handle, &listener));
    channel.write(handle);
    channel.wait();
    OK(net.close_listener(listener));
  });
  const pid_t sender = start({{"MLT_JOB_SECRET", "another secret of it"}, {"MLT_CONNECT_TIMEOUT", "20s"}}, [&] {
    channel.use(1);
    Net net(MLT_NCCL_PLUGIN, 8);
    OK(net.init());
    const Handle handle = channel.read(mlt::nccl::kHandleBytes);
    void* connection = nullptr;
    Result result = mlt::nccl::kSuccess;
    for (const Deadline deadline; result == mlt::nccl::kSuccess && !deadline.passed();) {
      result = net.connect(handle, &connection);
      MUST(connection == nullptr);
    }
    MUST(result == kRemoteError && logged("connect to 127.0.0.1 (process "));
    channel.signal();
  });
  CHECK(succeeded(sender));
  CHECK(succeeded(receiver));
}

TEST_CASE("close__in_any_order") {
  CHECK(run({}, [] {
    Net net(MLT_NCCL_PLUGIN, 11);
    OK(net.init());
    Handle handle;
    void *listener = nullptr, *connection = nullptr;
    OK(net.listen(handle, &listener));
    OK(net.close_listener(listener));  // nothing connected
    OK(net.listen(handle, &listener));
    OK(net.connect(handle, &connection));
    OK(net.close_listener(listener));  // while a sender connects, which finalize() ends
    void *sender = nullptr, *receiver = nullptr;
    connect_pair(net, &sender, &receiver);
    OK(net.close_receive(receiver));
    OK(net.close_send(sender));
  }));
}

TEST_CASE("finalize__of_one_communicator_leaves_the_others") {
  CHECK(run({}, [] {
    Net one(MLT_NCCL_PLUGIN, 11), other(MLT_NCCL_PLUGIN, 11);
    OK(one.init());
    OK(other.init());
    Handle handle;
    void *listener = nullptr, *sender = nullptr, *receiver = nullptr, *abandoned = nullptr;
    OK(one.listen(handle, &listener));
    OK(one.connect(handle, &sender));
    Handle unused;
    void* unused_listener = nullptr;
    OK(other.listen(unused, &unused_listener));
    OK(other.connect(unused, &abandoned));
    other.finalize();
    OK(other.close_listener(unused_listener));
    if (sender == nullptr) sender = connect_until_up(one, handle);
    receiver = accept_until_up(one, listener);
    OK(one.close_listener(listener));
    OK(other.init());
    exchange(one, sender, receiver, 5, 1'000, 14);
    one.finalize();  // NCCL closes connections first, but need not
    exchange(one, sender, receiver, 5, 1'000, 15);
    OK(one.close_send(sender));
    OK(one.close_receive(receiver));
  }));
}

TEST_CASE("use__beyond_what_the_plugin_says_is_rejected") {
  CHECK(run_connected(8, {}, [](Net& net, void* sender, void* receiver) {
    void *request = nullptr, *memory = nullptr;
    std::array<char, 8> data{};
    MUST(net.receive(receiver, data.data(), data.size(), &request, 2) == kInvalidArgument && logged("does not group"));
    constexpr int kGpuMemory = 2;
    MUST(net.v8.register_memory(sender, data.data(), data.size(), kGpuMemory, &memory) == kInvalidArgument);
    MUST(logged("only host memory"));
    Handle handle;
    void* listener = nullptr;
    MUST(net.listen(handle, &listener, 1) == kInvalidArgument && logged("device 1"));
  }));
}

// Every function answers each of these with an error, and the connection works on.
TEST_CASE("arguments__that_no_nccl_gives_are_rejected") {
  CHECK(run({}, [] {
    Net net(MLT_NCCL_PLUGIN, 11), net8(MLT_NCCL_PLUGIN, 8);
    OK(net.init());
    OK(net8.init());
    void *sender = nullptr, *receiver = nullptr, *request = nullptr, *other = nullptr;
    connect_pair(net, &sender, &receiver);
    const mlt::nccl::TableV11& v11 = net.v11;
    const mlt::nccl::TableV8& v8 = net8.v8;
    std::array<char, 8> data{'1', '2', '3', '4', '5', '6', '7', '8'};
    void* buffer = data.data();
    void* no_buffer = nullptr;
    std::size_t size = data.size();
    int negative = -1, whole = 8, done = 0;
    Handle handle(mlt::nccl::kHandleBytes, '\0');
    const std::vector<Result> rejected{
        v11.init(nullptr, 0, nullptr, nullptr, nullptr),
        v11.devices(nullptr),
        v11.properties(0, nullptr),
        v8.properties(-1, nullptr),
        v8.properties(0, nullptr),
        v11.listen(nullptr, 0, nullptr, &other),
        v11.listen(nullptr, 0, handle.data(), nullptr),
        v8.listen(-1, handle.data(), &other),
        v8.connect(0, nullptr, &other, nullptr),
        v8.connect(0, handle.data(), nullptr, nullptr),
        v11.connect(nullptr, 0, handle.data(), &other, nullptr),
        v11.accept(nullptr, &other, nullptr),
        v11.accept(sender, nullptr, nullptr),
        v11.register_memory(sender, buffer, size, mlt::nccl::kHostMemory, nullptr),
        v11.send(nullptr, buffer, size, 0, nullptr, nullptr, &request),
        v11.send(sender, nullptr, size, 0, nullptr, nullptr, &request),
        v11.send(sender, buffer, std::size_t{1} << 31, 0, nullptr, nullptr, &request),
        v11.send(sender, buffer, size, 0, nullptr, nullptr, nullptr),
        v8.send(sender, buffer, -1, 0, nullptr, &request),
        v11.receive(nullptr, 1, &buffer, &size, nullptr, nullptr, nullptr, &request),
        v11.receive(receiver, 1, nullptr, &size, nullptr, nullptr, nullptr, &request),
        v11.receive(receiver, 1, &no_buffer, &size, nullptr, nullptr, nullptr, &request),
        v11.receive(receiver, 1, &buffer, nullptr, nullptr, nullptr, nullptr, &request),
        v11.receive(receiver, 1, &buffer, &size, nullptr, nullptr, nullptr, nullptr),
        v11.receive(receiver, 0, &buffer, &size, nullptr, nullptr, nullptr, &request),
        v8.receive(receiver, 1, &buffer, &negative, nullptr, nullptr, &request),
        v11.flush(receiver, 1, &buffer, &whole, nullptr, nullptr),
        v11.test(nullptr, &done, nullptr),
    };
    for (std::size_t i = 0; i < rejected.size(); ++i) {
      if (rejected[i] != kInvalidArgument) failed(__FILE__, __LINE__, "call " + std::to_string(i));
    }
    // What has nothing to do does nothing.
    OK(v11.close_send(nullptr));
    OK(v11.close_receive(nullptr));
    OK(v11.close_listener(nullptr));
    OK(v11.flush(receiver, 1, &buffer, &whole, nullptr, &request));
    MUST(request == nullptr);  // host memory needs none

    // A tag says nothing, and no bytes need no buffer.
    OK(v8.receive(receiver, 1, &no_buffer, &done, nullptr, nullptr, &other));
    OK(v8.send(sender, nullptr, 0, -5, nullptr, &request));
    Pending received{other}, sent{request};
    finish(net, received);
    finish(net, sent);
    MUST(received.size == 0);
    MUST(v11.test(sent.request, &done, nullptr) == kInvalidArgument && logged("request that is complete"));
    exchange(net, sender, receiver, 40, 1'000, 9);
    OK(net.close_send(sender));
    OK(net.close_receive(receiver));
  }));
}

TEST_CASE("fork__leaves_the_connection_to_the_parent") {
  CHECK(run({}, [] {
    Net net(MLT_NCCL_PLUGIN, 11);
    OK(net.init());
    void *sender = nullptr, *receiver = nullptr, *connecting = nullptr, *listener = nullptr, *request = nullptr;
    Handle handle;
    connect_pair(net, &sender, &receiver);
    OK(net.listen(handle, &listener));
    OK(net.connect(handle, &connecting));
    std::array<char, 8> got{};
    Pending received = receive(net, receiver, got.data(), got.size());
    MUST(run({}, [&] {
      ::alarm(20);  // a join of the parent's threads would wait for ever
      bool done = false;
      std::size_t size = 0;
      MUST(net.send(sender, got.data(), got.size(), &request) == kInvalidUsage && request == nullptr);
      MUST(net.test(received.request, &done, &size) == kInvalidUsage && !done);
      MUST(net.accept(listener, &request) == kInvalidUsage && logged("belongs to the parent of this process"));
      OK(net.close_send(sender));
      OK(net.close_receive(receiver));
      OK(net.close_listener(listener));
      net.finalize();
      if (!kForkMayHaveThreads) return;
      OK(net.init());
      connect_pair(net, &sender, &receiver);
      exchange(net, sender, receiver, 5, 1'000, 10);
      OK(net.close_send(sender));
      OK(net.close_receive(receiver));
      net.finalize();
    }));
    Pending sent = send(net, sender, "12345678", 8);
    finish(net, received);
    finish(net, sent);
    MUST(std::string(got.data(), got.size()) == "12345678");
    exchange(net, sender, receiver, 40, 1'000, 11);
    OK(net.close_listener(listener));
    OK(net.close_send(sender));
    OK(net.close_receive(receiver));
  }));
}

// As NCCL does after an aborted communicator; version 8 has no finalize().
TEST_CASE("library__that_is_unloaded_with_connections_open_stays") {
  CHECK(run({}, [] {
    void *sender = nullptr, *receiver = nullptr, *listener = nullptr, *connecting = nullptr;
    {
      Net net(MLT_NCCL_PLUGIN, 8);
      OK(net.init());
      connect_pair(net, &sender, &receiver);
      Handle handle;
      OK(net.listen(handle, &listener));
      OK(net.connect(handle, &connecting));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the threads run on
    void* const again = ::dlopen(MLT_NCCL_PLUGIN, RTLD_NOW | RTLD_NOLOAD);
    MUST(again != nullptr);
    Net net(MLT_NCCL_PLUGIN, 8);
    OK(net.init());
    exchange(net, sender, receiver, 5, 1'000, 12);
    OK(net.close_send(sender));
    OK(net.close_receive(receiver));
    OK(net.close_listener(listener));
  }));
}

TEST_CASE("traffic_class__of_a_communicator_is_that_of_its_packets_or_rejected") {
  CHECK(run({}, [] {
    Net net(MLT_NCCL_PLUGIN, 11);
    OK(net.init(3));
    void *sender = nullptr, *receiver = nullptr;
    connect_pair(net, &sender, &receiver);
    exchange(net, sender, receiver, 10, 10'000, 8);
    OK(net.close_send(sender));
    OK(net.close_receive(receiver));
    net.finalize();
    MUST(net.init(200) == kInvalidArgument && logged("traffic class"));
  }));
}

TEST_CASE("variables__with_a_wrong_value_are_named") {
  const std::vector<std::pair<std::string, std::string>> wrong{
      {"MLT_PATHS", "0"},
      {"MLT_PATHS", "17"},
      {"MLT_PATHS", "paths.yaml"},
      {"MLT_QOS_POLICY", "policy.yaml"},
      {"MLT_IO_THREADS", "2"},
      {"MLT_HOST", "192.0.2.7"},
      {"MLT_PEER_TIMEOUT", "soon"},
      {"MLT_PEER_TIMEOUT", "0"},
      {"MLT_OPERATION_TIMEOUT", "-3s"},
      {"MLT_MAX_OPERATIONS", "64"},
      {"MLT_MAX_TAGS", "0x10"},
      {"MLT_SPIN_US", "2s"},
      {"MLT_INSECURE", "yes"},
      {"MLT_JOB_SECRET", "short"},
      {"MLT_JOB_SECRET_FILE", "/nonexistent"},
      {"MLT_NCCL_FAULTS", "drop=1"},
      {"MLT_NCCL_FAULTS", "lose=1%"},
      {"MLT_NCCL_LINE_RATE_GBPS", "fast"},
  };
  for (const auto& one : wrong) {
    CAPTURE(one.first);
    CAPTURE(one.second);
    CHECK(run({one}, [&] {
      std::freopen("/dev/null", "w", stderr);  // the plugin says there, too, that NCCL will use another network
      Net net(MLT_NCCL_PLUGIN, 8);
      MUST(net.init() != mlt::nccl::kSuccess && logged(one.first));
    }));
  }
  // Without MLT_HOST the lists of interfaces count.
  for (const std::string name : {"MLT_INTERFACE", "NCCL_SOCKET_IFNAME"}) {
    CHECK(run({{"MLT_HOST", ""}, {name, "nosuch"}}, [&] {
      std::freopen("/dev/null", "w", stderr);
      Net net(MLT_NCCL_PLUGIN, 8);
      MUST(net.init() != mlt::nccl::kSuccess && logged(name) && logged("lo 127.0.0.1"));
    }));
    CHECK(run({{"MLT_HOST", ""}, {name, "=lo"}}, [&] {
      Net net(MLT_NCCL_PLUGIN, 8);
      OK(net.init());
      MUST(logged("interface lo, "));
    }));
  }
}
