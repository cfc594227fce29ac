#include "van.h"

#include <ps/ps.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

namespace mlt::van {

namespace {

// ps-lite counts bytes in int.
int counted(std::size_t bytes) {
  return static_cast<int>(std::min<std::size_t>(bytes, std::numeric_limits<int>::max()));
}

bool is_data(const ps::Meta& meta) { return meta.control.empty() && !meta.simple_app; }

std::size_t value_bytes(ps::DataType type) {
  switch (type) {
    case ps::INT16:
    case ps::UINT16:
      return 2;
    case ps::INT32:
    case ps::UINT32:
    case ps::FLOAT:
      return 4;
    case ps::INT64:
    case ps::UINT64:
    case ps::DOUBLE:
      return 8;
    default:
      return 1;
  }
}

bool is_integer(ps::DataType type) {
  return type != ps::FLOAT && type != ps::DOUBLE && type != ps::OTHER && value_bytes(type) > 1;
}

// Where a pull wants its values, if it says so; not in dmlc's tree. `kept`: the values of its message, which are empty,
// but keep the caller's memory.
template <typename Meta>
ps::SArray<char> pull_memory(const Meta& meta, const ps::SArray<char>& kept) {
  ps::SArray<char> memory;
  if constexpr (requires { meta.addr; }) {
    if (meta.addr == 0 || meta.val_len <= 0 || meta.data_type.size() < 2) return memory;
    const std::size_t bytes = static_cast<std::size_t>(meta.val_len) * value_bytes(meta.data_type[1]);
    memory.reset(reinterpret_cast<char*>(meta.addr), bytes, [kept](char*) {});
  }
  return memory;
}

Part share(const ps::SArray<char>& array) {
  auto owner = std::make_shared<ps::SArray<char>>(array);
  return {reinterpret_cast<std::byte*>(owner->data()), owner->size(), owner};
}

ps::SArray<char> as_array(const Part& part) {
  ps::SArray<char> array;
  if (part.bytes != 0) {
    array.reset(reinterpret_cast<char*>(part.data), part.bytes, [owner = part.owner](char*) {});
  }
  return array;
}

}  // namespace

// KVWorker of BytePS's ps-lite leaves the values of a pull to every van that this variable selects, except ZMQ's.
bool MltVan::pulls_in_place() {
  const char* type = std::getenv("DMLC_ENABLE_RDMA");
  return !kIsDmlc && type != nullptr && std::string_view(type) == "mlt";
}

MltVan::~MltVan() = default;

Transport& MltVan::transport() {
  if (!transport_) {
    Transport::Calls calls;
    calls.place = [this](const Message& message, std::size_t index, std::uint64_t bytes) {
      return place(message, index, bytes);
    };
    calls.warn = [](const std::string& text) { LOG(WARNING) << "mlt van: " << text; };
    transport_ = std::make_unique<Transport>(std::move(calls));
    bounds_.set_default(transport_->push_loss_bound());
  }
  return *transport_;
}

int MltVan::Bind(ToBind node, int max_retry) {
  try {
    return transport().listen(node.hostname, static_cast<std::uint16_t>(node.port), max_retry > 0);
  } catch (const Error& error) {
    LOG(ERROR) << "mlt van: " << error.what();
    return -1;
  }
}

void MltVan::Connect(const ps::Node& node) {
  CHECK_NE(node.id, ps::Node::kEmpty);
  CHECK_NE(node.port, ps::Node::kEmpty);
  // Nodes of one role have nothing to say to each other, and a node delivers to itself.
  bounds_.forget(node.id);
  if (node.id == my_node_.id || (node.role == my_node_.role && my_node_.role != ps::Node::SCHEDULER)) return;
  try {
    transport().connect(node.id, node.hostname, static_cast<std::uint16_t>(node.port), my_node_.id);
  } catch (const Error& error) {
    LOG(FATAL) << "mlt van: " << error.what();
  }
}

void MltVan::Stop() {
  ps::Van::Stop();
  if (transport_ && transport_->lossy_bytes() != 0) {
    LOG(INFO) << "mlt van: " << transport_->lost_bytes() << " of " << transport_->lossy_bytes()
              << " bytes that were pushed within loss bounds did not arrive and count as 0";
  }
  transport_.reset();
  const std::lock_guard lock(mutex_);
  pulls_.clear();
  early_.clear();
  started_.clear();
  seen_.clear();
}

void MltVan::remember_pull(const ps::Message& message) {
  const ps::Meta& meta = message.meta;
  if (!pulls_in_place_ || !is_data(meta) || !meta.request || meta.push || message.data.size() < 2) return;
  const ps::SArray<char> memory = pull_memory(meta, message.data[1]);
  if (memory.size() == 0) return;
  const std::lock_guard lock(mutex_);
  pulls_[{meta.recver, meta.app_id, meta.customer_id, meta.timestamp}] = memory;
}

double MltVan::loss_bound_of(const ps::Message& message) {
  const ps::Meta& meta = message.meta;
  // Integers are exact, but for bytes, as which BytePS sends values of every type.
  if (meta.data_type.size() > 1 && is_integer(meta.data_type[1])) return 0;
  if (!is_data(meta) || !meta.request || !meta.push || message.data.size() <= kLossyPart - 1) return 0;
  std::vector<std::uint64_t> keys(message.data[0].size() / sizeof(std::uint64_t));
  if (!keys.empty()) std::memcpy(keys.data(), message.data[0].data(), keys.size() * sizeof(std::uint64_t));
  return bounds_.of_push(meta.recver, keys);
}

int MltVan::SendMsg(ToSend message) {
  char* packed = nullptr;
  int packed_bytes = 0;
  PackMeta(message.meta, &packed, &packed_bytes);
  const std::shared_ptr<char[]> meta(packed);
  Message sent;
  sent.sender = my_node_.id;
  sent.parts.push_back({reinterpret_cast<std::byte*>(packed), static_cast<std::size_t>(packed_bytes), meta});
  std::size_t bytes = sent.parts[0].bytes;
  for (const ps::SArray<char>& data : message.data) {
    sent.parts.push_back(share(data));
    bytes += data.size();
  }
  const int to = message.meta.recver;
  if (to == my_node_.id) {
    transport().deliver(std::move(sent));
    return counted(bytes);
  }
  if (sent.parts.size() > kMaxParts) {
    LOG(ERROR) << "mlt van: a message has " << message.data.size() << " arrays; " << kMaxParts - 1 << " are possible";
    return -1;
  }
  remember_pull(message);
  sent.loss_bound = loss_bound_of(message);
  switch (transport().send(to, sent)) {
    case Transport::Sent::kDone:
      return counted(bytes);
    case Transport::Sent::kNodeLost:
      LOG(WARNING) << "mlt van: a message to node " << to
                   << ", which failed, is dropped (PS_RESEND=1 sends it again): " << message.meta.DebugString();
      return counted(bytes);
    case Transport::Sent::kNodeLeft:
      // Heartbeats and acknowledgements may cross with a goodbye.
      if (message.meta.control.empty()) break;
      LOG(WARNING) << "mlt van: node " << to << " left before a message to it: " << message.meta.DebugString();
      return counted(bytes);
    case Transport::Sent::kFailed:
      break;
  }
  LOG(ERROR) << "mlt van: no message can be sent to node " << to << ", which failed, left, or is of the same role";
  return -1;
}

void MltVan::unpack(const Message& message, ps::Meta* meta) {
  UnpackMeta(reinterpret_cast<const char*>(message.parts[0].data), counted(message.parts[0].bytes), meta);
}

ps::SArray<char> MltVan::destination(const ps::Meta& meta, int sender, const char* keys, std::size_t keys_bytes) {
  if (!is_data(meta)) return {};
  const std::lock_guard lock(mutex_);
  if (!meta.request && !meta.push && pulls_in_place_) {
    const auto found = pulls_.find({sender, meta.app_id, meta.customer_id, meta.timestamp});
    if (found != pulls_.end()) return found->second;
  }
  std::uint64_t key = 0;
  if (meta.request && meta.push && has_registered_ && keys != nullptr && keys_bytes >= sizeof key) {
    std::memcpy(&key, keys, sizeof key);
    const auto found = registered_.find({sender, key});
    if (found != registered_.end()) return found->second;
  }
  return {};
}

Part MltVan::place(const Message& message, std::size_t index, std::uint64_t bytes) {
  if (index != 2 || message.parts[0].data == nullptr || (!pulls_in_place_ && !has_registered_)) return {};
  ps::Meta meta;
  unpack(message, &meta);
  const Part& keys = message.parts[1];
  const ps::SArray<char> found =
      destination(meta, message.sender, reinterpret_cast<const char*>(keys.data), keys.data ? keys.bytes : 0);
  if (found.size() < bytes) return {};
  Part part = share(found);
  part.bytes = bytes;
  return part;
}

bool MltVan::is_awaited(const ps::Meta& meta) {
  ps::Postoffice* const office = []<typename Van>(Van* van) {
    if constexpr (kHasOwner)
      return van->postoffice_;
    else
      return ps::Postoffice::Get();
  }(this);
  const std::pair customer(meta.app_id, office->is_worker() ? meta.customer_id : meta.app_id);
  // A KVServer registers before it is given its handler: the time between is not seen from here.
  constexpr std::chrono::milliseconds kSetUp{10};
  if (started_.contains(customer)) return true;
  if (office->GetCustomer(customer.first, customer.second, 0) == nullptr) return false;
  const auto now = std::chrono::steady_clock::now();
  if (now - seen_.try_emplace(customer, now).first->second < kSetUp) return false;
  started_.insert(customer);
  return true;
}

// ps-lite's receiving thread waits for an application that has not started, which may itself wait in the barrier of its
// start for what that thread receives next: a faster worker's first push then ends the job after 5 s. So data waits
// here, and control continues.
std::optional<Message> MltVan::next(ps::Meta* meta) {
  constexpr std::chrono::seconds kPatience{60};  // then ps-lite gets it, and reports its error
  constexpr std::chrono::nanoseconds kLook = std::chrono::milliseconds(1);
  constexpr std::chrono::nanoseconds kLong = std::chrono::hours(24);
  while (true) {
    if (!early_.empty() &&
        (is_awaited(early_.front().meta) || std::chrono::steady_clock::now() - early_.front().since > kPatience)) {
      Early first = std::move(early_.front());
      early_.pop_front();
      *meta = std::move(first.meta);
      return std::move(first.message);
    }
    Transport::Received received = transport().receive(early_.empty() ? kLong : kLook);
    if (!received.failure.empty()) {
      LOG(ERROR) << "mlt van: " << received.failure;
      return std::nullopt;
    }
    if (!received.message) continue;
    ps::Meta arrived;
    unpack(*received.message, &arrived);
    if (!arrived.control.empty() || (early_.empty() && is_awaited(arrived))) {
      *meta = std::move(arrived);
      return std::move(received.message);
    }
    early_.push_back({std::chrono::steady_clock::now(), std::move(arrived), *std::move(received.message)});
  }
}

int MltVan::RecvMsg(ps::Message* message) {
  message->data.clear();
  const std::optional<Message> arrived = next(&message->meta);
  return arrived ? hand_over(*arrived, message) : -1;
}

int MltVan::hand_over(const Message& arrived, ps::Message* message) {
  std::size_t bytes = 0;
  for (const Part& part : arrived.parts) bytes += part.bytes;
  message->meta.sender = arrived.sender;
  message->meta.recver = my_node_.id;
  for (std::size_t i = 1; i < arrived.parts.size(); ++i) message->data.push_back(as_array(arrived.parts[i]));
  if (arrived.parts.size() > 2 && arrived.sender != my_node_.id && (pulls_in_place_ || has_registered_)) {
    ps::SArray<char>& values = message->data[1];
    const ps::SArray<char> wanted =
        destination(message->meta, arrived.sender, message->data[0].data(), message->data[0].size());
    if (wanted.size() != 0 && wanted.size() < values.size()) {
      LOG(ERROR) << "mlt van: node " << arrived.sender << " sent " << values.size() << " bytes into memory of "
                 << wanted.size() << ": " << message->meta.DebugString();
      return -1;
    }
    if (wanted.size() != 0 && values.size() != 0 && wanted.data() != values.data()) {
      std::memcpy(wanted.data(), values.data(), values.size());
      ps::SArray<char> in_place;
      in_place.reset(wanted.data(), values.size(), [wanted](char*) {});
      values = in_place;
    }
  }
  if (pulls_in_place_ && is_data(message->meta) && !message->meta.request && !message->meta.push) {
    const std::lock_guard lock(mutex_);
    pulls_.erase({arrived.sender, message->meta.app_id, message->meta.customer_id, message->meta.timestamp});
  }
  return counted(bytes);
}

void MltVan::RegisterRecvBuffer(ps::Message& message) {
  CHECK_GE(message.data.size(), 2U);
  CHECK_GE(message.data[0].size(), sizeof(std::uint64_t)) << "a buffer is registered for a key";
  std::uint64_t key = 0;
  std::memcpy(&key, message.data[0].data(), sizeof key);
  const std::lock_guard lock(mutex_);
  registered_[{message.meta.sender, key}] = message.data[1];
  has_registered_ = true;
}

void MltVan::PinMemory(void* address, std::size_t length, bool gpu) {
  static_cast<void>(address);
  static_cast<void>(length);
  CHECK(!gpu) << "mlt van: GPU memory is not supported";
}

}  // namespace mlt::van
