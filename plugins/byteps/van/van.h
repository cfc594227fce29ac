// The van: what ps-lite sends and receives messages with. One source for three trees of ps-lite, which differ in what a
// van is given: dmlc's, that of BytePS's source package, and bytedance's. Selected as "mlt" by DMLC_PS_VAN_TYPE or, in
// the latter two, DMLC_ENABLE_RDMA (create.cc).
//
// Deliberately absent: GPU memory, and IPC of processes of one host, which mlt's shared memory replaces.
#pragma once

#include <ps/internal/van.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "push_bounds.h"
#include "transport.h"

namespace mlt::van {

// The trees by the functions of ps::Van that are public in each.
inline constexpr bool kIsDmlc = std::is_same_v<decltype(&ps::Van::Start), void (ps::Van::*)(int)>;
inline constexpr bool kHasOwner = !std::is_invocable_v<decltype(&ps::Van::Create), const std::string&>;

class MltVan : public ps::Van {
 public:
  using ToSend = std::conditional_t<kIsDmlc, const ps::Message&, ps::Message&>;
  using ToBind = std::conditional_t<kHasOwner, ps::Node&, const ps::Node&>;

  // Given bytedance's Postoffice, or nothing.
  template <typename... Owner>
  explicit MltVan(Owner*... owner) : ps::Van(owner...) {}
  ~MltVan() override;

  void Stop() override;
  void Connect(const ps::Node& node) override;
  int Bind(ToBind node, int max_retry) override;
  int RecvMsg(ps::Message* message) override;
  int SendMsg(ToSend message) override;

  // Not functions of every tree, so without `override`.
  std::string GetType() const { return "mlt"; }
  // What workers push of the message's key goes to its data.
  void RegisterRecvBuffer(ps::Message& message);
  // In [0, 1): how much of the values of this key's pushes may be lost, after the first push to each server. The least
  // bound of a push's keys counts. Without one, keys have that of MLT_VAN_LOSS_BOUND. Throws mlt::Error.
  void set_loss_bound(std::uint64_t key, double bound) { bounds_.set(key, bound); }
  // Any memory will do.
  void PinMemory(void* address, std::size_t length, bool gpu);

 private:
  // A pull that waits for its response: node, app, customer, timestamp.
  using Pull = std::tuple<int, int, int, int>;

  Transport& transport();
  // Where the values of a message belong, if it says so: a pull's own memory, or a registered buffer. `keys` is its
  // first part.
  ps::SArray<char> destination(const ps::Meta& meta, int sender, const char* keys, std::size_t keys_bytes);
  Part place(const Message& message, std::size_t index, std::uint64_t bytes);
  void remember_pull(const ps::Message& message);
  double loss_bound_of(const ps::Message& message);
  void unpack(const Message& message, ps::Meta* meta);
  // Whether the application that the message is for can take it.
  bool is_awaited(const ps::Meta& meta);
  // The next message for ps-lite; nothing if this process cannot continue, which is logged.
  std::optional<Message> next(ps::Meta* meta);
  int hand_over(const Message& arrived, ps::Message* message);

  const bool pulls_in_place_ = pulls_in_place();
  PushBounds bounds_;
  std::mutex mutex_;
  std::map<Pull, ps::SArray<char>> pulls_;
  std::map<std::pair<int, std::uint64_t>, ps::SArray<char>> registered_;  // by sender and key
  std::atomic<bool> has_registered_{false};
  std::unique_ptr<Transport> transport_;
  // Of ps-lite's receiving thread: messages whose application has not started, and those that have.
  struct Early {
    std::chrono::steady_clock::time_point since;
    ps::Meta meta;
    Message message;
  };
  std::deque<Early> early_;
  std::set<std::pair<int, int>> started_;
  std::map<std::pair<int, int>, std::chrono::steady_clock::time_point> seen_;  // since when it is registered

  static bool pulls_in_place();
};

// What Van::Create calls for the type "mlt".
template <typename... Owner>
ps::Van* make_van(Owner*... owner) {
  return new MltVan(owner...);
}

}  // namespace mlt::van
