// A node of ps-lite, whose role the environment says. Workers run the scenario that the command line names:
//   exchange              pushes and pulls of many shapes, whose sums are compared
//   nothing               starts and ends
//   loop FILE             pushes until it is killed; creates FILE after the first
//   recover FILE GO       pushes, creates FILE, and pushes again once GO is there; then creates GO.done
// A server with MLT_TEST_RECOVERS takes the place of one that died, which is in the barrier at the end: it serves until
// GO.done is there.
//   registered            pushes keys whose buffers the server registered, and one whose buffer it did not
//   bounded               pushes a key whose values may be lost, and one whose values may not
//   speed BYTES KEYS S    pushes and pulls KEYS keys for S seconds each, and prints both rates
#include <ps/ps.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "byteps/van/van.h"

namespace {

using Clock = std::chrono::steady_clock;
using Values = ps::SArray<float>;
constexpr std::uint64_t kKeysPerShape = 1'000;

bool is_recovering() { return std::getenv("MLT_TEST_RECOVERS") != nullptr; }

constexpr int kReplaces = 1, kChecksBuffer = 2;  // commands of a push
constexpr std::size_t kRegisteredShapes = 2;
constexpr std::size_t kRegisteredValues[kRegisteredShapes] = {10, 1'000'000};  // with its message's head, and after it

// Adds what is pushed; the command kReplaces replaces it instead, and kChecksBuffer looks where it arrived.
class Server {
 public:
  void operator()(const ps::KVMeta& meta, const ps::KVPairs<float>& data, ps::KVServer<float>* server) {
    const std::lock_guard lock(mutex_);
    ps::KVPairs<float> result;
    if (meta.push && meta.cmd == kChecksBuffer)
      check_buffer(meta, data);
    else if (meta.push)
      push(meta, data);
    else
      result = pull(data);
    server->Response(meta, result);
  }

  // A buffer for each worker and key, as a server of bytedance's ps-lite registers them.
  void register_buffers(ps::Van* van, const std::vector<ps::Key>& keys) {
    auto* const mlt_van = dynamic_cast<mlt::van::MltVan*>(van);
    CHECK(mlt_van != nullptr);
    for (int worker = 0; worker < ps::NumWorkers(); ++worker) {
      for (std::size_t shape = 0; shape < kRegisteredShapes; ++shape) {
        Values& buffer = buffers_[{ps::Postoffice::WorkerRankToID(worker), keys[shape]}];
        buffer.resize(kRegisteredValues[shape], 0);
        const ps::SArray<ps::Key> key(1, keys[shape]);
        ps::Message message;
        message.meta.sender = ps::Postoffice::WorkerRankToID(worker);
        message.data = {ps::SArray<char>(key), ps::SArray<char>(buffer)};
        mlt_van->RegisterRecvBuffer(message);
      }
    }
  }

 private:
  void check_buffer(const ps::KVMeta& meta, const ps::KVPairs<float>& data) {
    const auto found = buffers_.find({meta.sender, data.keys[0]});
    for (std::size_t i = 0; i < data.vals.size(); ++i) CHECK_EQ(data.vals.data()[i], static_cast<float>(meta.sender));
    if (found == buffers_.end()) {
      for (const auto& [owner, buffer] : buffers_) CHECK_NE(data.vals.data(), buffer.data());
      std::cout << "elsewhere" << std::endl;
      return;
    }
    CHECK_EQ(data.vals.data(), found->second.data());
    std::cout << "in its buffer" << std::endl;
    std::fill(found->second.begin(), found->second.end(), 0.0F);
  }

  void push(const ps::KVMeta& meta, const ps::KVPairs<float>& data) {
    if (meta.cmd == kReplaces) {
      store_[data.keys[0]] = data.vals;  // keeps what arrived: no copy
      return;
    }
    std::size_t at = 0;
    for (std::size_t i = 0; i < data.keys.size(); ++i) {
      const std::size_t count =
          data.lens.empty() ? data.vals.size() / data.keys.size() : static_cast<std::size_t>(data.lens.data()[i]);
      Values& sum = store_[data.keys.data()[i]];
      if (sum.size() < count) sum.resize(count, 0);
      for (std::size_t k = 0; k < count; ++k) sum.data()[k] += data.vals.data()[at + k];
      at += count;
    }
    CHECK_EQ(at, data.vals.size());
  }

  ps::KVPairs<float> pull(const ps::KVPairs<float>& data) {
    ps::KVPairs<float> result;
    result.keys = data.keys;
    if (data.keys.size() == 1) {
      result.vals = store_[data.keys[0]];
    } else {
      for (const ps::Key key : data.keys) {
        for (const float value : store_[key]) result.vals.push_back(value);
      }
    }
    const auto count = static_cast<int>(result.vals.size() / data.keys.size());
    result.lens.resize(data.keys.size(), count);
    return result;
  }

  std::mutex mutex_;
  std::map<ps::Key, Values> store_;
  std::map<std::pair<int, ps::Key>, Values> buffers_;  // by sender and key
};

#ifdef MLT_PS_LITE_HAS_START_PS
void start(const std::string& role) {
  ps::StartPS(0,
              role == "scheduler" ? ps::Node::SCHEDULER
              : role == "server"  ? ps::Node::SERVER
                                  : ps::Node::WORKER,
              -1, !is_recovering(), "van_program");
}
ps::Postoffice* office_of_server() { return ps::Postoffice::GetServer(); }
ps::Postoffice* office() {
  return std::getenv("DMLC_ROLE") == std::string("server") ? office_of_server() : ps::Postoffice::GetWorker();
}
void finish(const std::string& role) {
  ps::Finalize(0,
               role == "scheduler" ? ps::Node::SCHEDULER
               : role == "server"  ? ps::Node::SERVER
                                   : ps::Node::WORKER,
               !is_recovering());
}
#else
void start(const std::string& role) {
  static_cast<void>(role);
  if (is_recovering())
    ps::StartAsync(0, "van_program");
  else
    ps::Start(0, "van_program");
}
ps::Postoffice* office() { return ps::Postoffice::Get(); }
ps::Postoffice* office_of_server() { return office(); }
void finish(const std::string&) { ps::Finalize(0, !is_recovering()); }
#endif

void barrier() { office()->Barrier(0, ps::kWorkerGroup); }

ps::SArray<ps::Key> keys_of(std::uint64_t shape, std::size_t count) {
  const auto& ranges = office()->GetServerKeyRanges();
  ps::SArray<ps::Key> keys(count);
  for (std::size_t i = 0; i < count; ++i) {
    // Neighbours in the list belong to one server; all servers have some.
    const auto& range = ranges[i * ranges.size() / count];
    keys.data()[i] = range.begin() + shape * kKeysPerShape + i;
  }
  return keys;
}

float value_of(std::size_t worker, std::size_t shape, std::size_t index) {
  return static_cast<float>((index * 7 + shape * 3 + worker * 5) % 1'024);
}

void check_shape(ps::KVWorker<float>& kv, std::size_t shape, std::size_t key_count, std::size_t values_per_key) {
  const auto workers = static_cast<std::size_t>(ps::NumWorkers());
  const auto rank = static_cast<std::size_t>(office()->my_rank());
  const ps::SArray<ps::Key> keys = keys_of(shape, key_count);
  const std::size_t count = key_count * values_per_key;
  Values values(count);
  for (std::size_t i = 0; i < count; ++i) values.data()[i] = value_of(rank, shape, i);
  const ps::SArray<int> lens(key_count, static_cast<int>(values_per_key));
  kv.Wait(kv.ZPush(keys, values, lens));
  barrier();
  Values sums(count);
  ps::SArray<int> sum_lens(key_count);
  kv.Wait(kv.ZPull(keys, &sums, &sum_lens));
  CHECK_EQ(sums.size(), count);
  for (std::size_t i = 0; i < count; ++i) {
    float wanted = 0;
    for (std::size_t worker = 0; worker < workers; ++worker) wanted += value_of(worker, shape, i);
    CHECK_EQ(sums.data()[i], wanted) << "shape " << shape << ", value " << i;
  }
}

void exchange() {
  ps::KVWorker<float> kv(0, 0);
  std::size_t shape = 0;
  for (const std::size_t keys : {std::size_t{1}, std::size_t{8}, std::size_t{100}}) {
    // Up to, at and above what is carried with the head; a large one last.
    for (const std::size_t values : {0UL, 1UL, 33UL, 4'000UL, 4'096UL, 4'097UL, 16'384UL, 50'000UL}) {
      if (keys * values <= 500'000) check_shape(kv, shape++, keys, values);
    }
  }
  check_shape(kv, shape++, 1, 10'000'000);
  check_shape(kv, shape++, 3, 1'024'000);
  // Many at once, which overtake each other if anything does.
  const ps::SArray<ps::Key> keys = keys_of(shape, 1);
  std::vector<int> pending;
  for (std::size_t i = 0; i < 300; ++i) {
    Values values(std::size_t{i % 3 == 0 ? 20'000U : 10U}, 1.0F);
    const ps::SArray<int> lens(1, static_cast<int>(values.size()));
    pending.push_back(kv.ZPush(keys, values, lens));
  }
  for (const int one : pending) kv.Wait(one);
  barrier();
  Values sums(20'000);
  kv.Wait(kv.ZPull(keys, &sums));
  CHECK_EQ(sums[0], static_cast<float>(300 * ps::NumWorkers()));
  CHECK_EQ(sums[19'999], static_cast<float>(100 * ps::NumWorkers()));
  std::cout << "exchanged " << shape << " shapes" << std::endl;
}

void touch(const char* file) { std::ofstream(file) << "1"; }

void loop(const char* file) {
  ps::KVWorker<float> kv(0, 0);
  const ps::SArray<ps::Key> keys = keys_of(0, 1);
  const Values values(100'000, 1.0F);
  while (true) {
    kv.Wait(kv.ZPush(keys, values, {}));
    touch(file);
  }
}

void wait_for(const std::string& file) {
  while (!std::ifstream(file)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

void recover(const char* file, const char* go) {
  ps::KVWorker<float> kv(0, 0);
  const ps::SArray<ps::Key> keys = keys_of(0, 1);
  const Values values(100'000, 1.0F);
  kv.Wait(kv.ZPush(keys, values, {}));
  touch(file);
  wait_for(go);
  kv.Wait(kv.ZPush(keys, values, {}));
  Values sums(100'000);
  kv.Wait(kv.ZPull(keys, &sums));
  std::cout << "after recovery " << sums[99'999] << std::endl;
  touch((std::string(go) + ".done").c_str());
}

// The keys of a scenario with registered buffers, and one more.
std::vector<ps::Key> registered_keys() {
  const ps::Key first = office()->GetServerKeyRanges()[0].begin();
  return {first, first + 1, first + 2};
}

void push_registered() {
  ps::KVWorker<float> kv(0, 0);
  const auto id = static_cast<float>(ps::Postoffice::WorkerRankToID(office()->my_rank()));
  const std::vector<ps::Key> keys = registered_keys();
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::size_t count = kRegisteredValues[i % kRegisteredShapes];
      const ps::SArray<int> lens(1, static_cast<int>(count));
      kv.Wait(kv.ZPush(ps::SArray<ps::Key>(1, keys[i]), Values(count, id), lens, kChecksBuffer));
    }
  }
}

// Each push of a key is of ones, so that the sum says how many of them arrived.
void push_bounded() {
  constexpr std::size_t kValues = 500'000, kPushes = 20;
  ps::KVWorker<float> kv(0, 0);
  const std::vector<ps::Key> keys = registered_keys();
  for (const ps::Key key : {keys[0], keys[1]}) {
    if (key == keys[1]) dynamic_cast<mlt::van::MltVan*>(office()->van())->set_loss_bound(key, 0);
    const ps::SArray<ps::Key> one(1, key);
    const ps::SArray<int> lens(1, static_cast<int>(kValues));
    for (std::size_t i = 0; i < kPushes; ++i) {
      kv.Wait(kv.ZPush(one, Values(kValues, 1.0F), lens));
      if (i == 0) barrier();
    }
    barrier();
    Values sums(kValues);
    ps::SArray<int> sum_lens(1);
    kv.Wait(kv.ZPull(one, &sums, &sum_lens));
    double total = 0, least = 1e9;
    for (const float sum : sums) {
      CHECK_EQ(sum, static_cast<float>(static_cast<int>(sum))) << "a value that is lost in part";
      total += static_cast<double>(sum);
      least = std::min(least, static_cast<double>(sum));
    }
    std::cout << "key " << key - keys[0] << ": " << total / (kValues * kPushes * static_cast<double>(ps::NumWorkers()))
              << " arrived, at least " << least << " pushes of each" << std::endl;
  }
}

void speed(std::size_t bytes, std::size_t key_count, double seconds) {
  ps::KVWorker<float> kv(0, 0);
  const std::size_t count = bytes / sizeof(float);
  std::vector<ps::SArray<ps::Key>> keys;
  std::vector<Values> values;
  ps::SArray<int> lens(1, static_cast<int>(count));
  const auto& ranges = office()->GetServerKeyRanges();
  for (std::size_t i = 0; i < key_count; ++i) {
    ps::SArray<ps::Key> key(1);
    key[0] = ranges[i % ranges.size()].begin() + i + static_cast<std::size_t>(office()->my_rank()) * kKeysPerShape;
    keys.push_back(key);
    values.emplace_back(count, 1.0F);
  }
  // All keys are under way at once, as in a step of BytePS.
  const auto run = [&](bool push) {
    const auto begin = Clock::now();
    std::size_t rounds = 0;
    double elapsed = 0;
    do {
      std::vector<int> pending;
      for (std::size_t i = 0; i < key_count; ++i) {
        pending.push_back(push ? kv.ZPush(keys[i], values[i], lens, kReplaces)
                               : kv.ZPull(keys[i], &values[i], &lens, 1));
      }
      for (const int one : pending) kv.Wait(one);
      ++rounds;
      elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
    } while (elapsed < seconds);
    return static_cast<double>(rounds * key_count * bytes) * 8e-9 / elapsed;
  };
  run(true);  // the first round makes the memory
  const double push = run(true);
  const double pull = run(false);
  std::cout << "push " << push << " pull " << pull << " Gbit/s" << std::endl;
}

void run_worker(int count, char** arguments) {
  const std::string_view scenario = count > 1 ? arguments[1] : "";
  if (scenario == "exchange")
    exchange();
  else if (scenario == "nothing")
    ps::KVWorker<float>(0, 0);
  else if (scenario == "loop" && count == 3)
    loop(arguments[2]);
  else if (scenario == "recover" && count == 4)
    recover(arguments[2], arguments[3]);
  else if (scenario == "registered")
    push_registered();
  else if (scenario == "bounded")
    push_bounded();
  else if (scenario == "speed" && count == 5)
    speed(std::stoul(arguments[2]), std::stoul(arguments[3]), std::stod(arguments[4]));
  else
    LOG(FATAL) << "no scenario";
}

}  // namespace

int main(int count, char** arguments) {
  const std::string role = std::getenv("DMLC_ROLE");
  ps::KVServer<float>* server = nullptr;
  start(role);
  if (role == "server") {
    auto* handler = new Server();
    if (count > 1 && std::string_view(arguments[1]) == "registered") {
      handler->register_buffers(office_of_server()->van(), registered_keys());
    }
    server = new ps::KVServer<float>(0);
    server->set_request_handle([handler](const ps::KVMeta& meta, const ps::KVPairs<float>& data,
                                         ps::KVServer<float>* one) { (*handler)(meta, data, one); });
  }
  if (role == "worker") run_worker(count, arguments);
  if (is_recovering()) wait_for(std::string(arguments[3]) + ".done");
  finish(role);
  delete server;
  return 0;
}
