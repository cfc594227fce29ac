#include "collective/messages.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/bytes.h"

namespace mlt::collective {

namespace {

constexpr std::uint8_t kRegister = 1, kRegistered = 2, kRefused = 3, kAborted = 4, kReady = 5, kFailed = 6, kCalled = 7,
                       kGone = 8, kOverdue = 9, kMove = 10, kMoved = 11, kLost = 12, kExcluded = 13, kLoads = 14,
                       kChecksum = 15, kDamaged = 16;
constexpr std::uint8_t kHasChecksums = 128;  // of a registration's class
constexpr std::size_t kMaxText = 1'000;
constexpr std::size_t kMaxRanks = 65'536;
constexpr std::size_t kMaxCellBytes = 65'536;  // of 4 MiB in segments of 8 bytes

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& out) : out_(out) { out_.clear(); }
  void u8(std::uint8_t v) { out_.push_back(static_cast<std::byte>(v)); }
  void u32(std::uint32_t v) {
    out_.resize(out_.size() + 4);
    base::store_le32(out_.data() + out_.size() - 4, v);
  }
  void u64(std::uint64_t v) {
    out_.resize(out_.size() + 8);
    base::store_le64(out_.data() + out_.size() - 8, v);
  }
  void words(const std::vector<std::uint32_t>& all) {
    for (const std::uint32_t word : all) u32(word);
  }
  void text(const std::string& s) {
    const auto n = std::min(s.size(), kMaxText);
    u32(static_cast<std::uint32_t>(n));
    for (std::size_t i = 0; i < n; ++i) out_.push_back(static_cast<std::byte>(s[i]));
  }

 private:
  std::vector<std::byte>& out_;
};

// Reads past the end return zero and set an error flag.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}
  std::uint8_t u8() {
    const std::byte* at = take(1);
    return at == nullptr ? std::uint8_t{0} : static_cast<std::uint8_t>(*at);
  }
  std::uint32_t u32() {
    const std::byte* at = take(4);
    return at == nullptr ? 0 : base::load_le32(at);
  }
  // Of 32 bits, as a rank or a number of ranks.
  std::uint16_t u16() {
    const std::uint32_t v = u32();
    if (v > 65'535) ok_ = false;
    return static_cast<std::uint16_t>(v);
  }
  std::uint64_t u64() {
    const std::byte* at = take(8);
    return at == nullptr ? 0 : base::load_le64(at);
  }
  std::string text() {
    const std::uint32_t n = u32();
    if (n > kMaxText) ok_ = false;
    const std::byte* at = ok_ ? take(n) : nullptr;
    std::string text = at == nullptr ? std::string() : std::string(reinterpret_cast<const char*>(at), n);
    // The text ends up in an error that a terminal shows and Python decodes: replace all but printable ASCII.
    std::replace_if(text.begin(), text.end(), [](char c) { return c < 0x20 || c > 0x7E; }, '?');
    return text;
  }
  std::vector<std::byte> bytes() {
    const std::uint32_t n = u32();
    if (n > kMaxCellBytes) ok_ = false;
    const std::byte* at = ok_ ? take(n) : nullptr;
    return at == nullptr ? std::vector<std::byte>() : std::vector<std::byte>(at, at + n);
  }
  std::vector<std::uint32_t> words(std::uint32_t n) {
    std::vector<std::uint32_t> all;
    if (n > kMaxRanks || std::size_t{n} * 4 > in_.size()) ok_ = false;
    for (std::uint32_t i = 0; ok_ && i < n; ++i) all.push_back(u32());
    return all;
  }
  bool finished() const { return ok_ && in_.empty(); }

 private:
  const std::byte* take(std::size_t n) {
    if (n > in_.size()) {
      ok_ = false;
      return nullptr;
    }
    const std::byte* at = in_.data();
    in_ = in_.subspan(n);
    return at;
  }
  std::span<const std::byte> in_;
  bool ok_ = true;
};

void write_shape(Writer& w, const Register& m) {
  w.u64(m.key);
  w.u32(m.partition);
  w.u32(m.elements);
  w.u32(m.segment_bytes);
  w.u64(std::bit_cast<std::uint64_t>(m.loss_bound));
  w.u8(m.average ? 1 : 0);
  w.u32(m.order);
  w.u8(static_cast<std::uint8_t>((m.traffic_class & ~kHasChecksums) | (m.checksums ? kHasChecksums : 0)));
  w.u64(m.tensor_elements);
  w.u32(m.services);
  w.u32(m.max_dead_services);
}

// After key and partition.
Register read_shape(Reader& r, std::uint64_t key, std::uint32_t partition) {
  Register m;
  m.key = key;
  m.partition = partition;
  m.elements = r.u32();
  m.segment_bytes = r.u32();
  m.loss_bound = std::bit_cast<double>(r.u64());
  m.average = r.u8() != 0;
  m.order = r.u32();
  const std::uint8_t traffic_class = r.u8();
  m.traffic_class = static_cast<std::uint8_t>(traffic_class & ~kHasChecksums);
  m.checksums = (traffic_class & kHasChecksums) != 0;
  m.tensor_elements = r.u64();
  m.services = r.u32();
  m.max_dead_services = r.u16();
  return m;
}

constexpr std::uint8_t kOnDemand = 1, kTakesChecksums = 2;

// Of Registered and Moved.
template <typename Confirmation>
void write_options(Writer& w, const Confirmation& m) {
  w.u8(static_cast<std::uint8_t>((m.on_demand ? kOnDemand : 0) | (m.checksums ? kTakesChecksums : 0)));
}
template <typename Confirmation>
Confirmation read_options(Reader& r, Confirmation m) {
  const std::uint8_t options = r.u8();
  m.on_demand = (options & kOnDemand) != 0;
  m.checksums = (options & kTakesChecksums) != 0;
  return m;
}

}  // namespace

void encode(const Message& message, std::vector<std::byte>& out) {
  Writer w(out);
  std::visit(Overloaded{[&](const Register& m) {
                          w.u8(kRegister);
                          write_shape(w, m);
                        },
                        [&](const Registered& m) {
                          w.u8(kRegistered);
                          w.u64(m.key);
                          w.u32(m.partition);
                          write_options(w, m);
                        },
                        [&](const Refused& m) {
                          w.u8(kRefused);
                          w.u64(m.key);
                          w.u32(m.partition);
                          w.text(m.text);
                        },
                        [&](const Aborted& m) {
                          w.u8(kAborted);
                          w.u64(m.key);
                          w.u32(m.partition);
                          w.u32(m.failed_rank);
                        },
                        [&](const Ready& m) {
                          w.u8(kReady);
                          w.u64(m.key);
                          w.u32(m.partition);
                        },
                        [&](const Failed& m) {
                          w.u8(kFailed);
                          w.u64(m.group);
                          w.u32(m.sequence);
                          w.u32(static_cast<std::uint32_t>(m.failed_rank));
                          w.u8(m.status);
                          w.u32(m.epoch);
                          w.u32(m.next);
                          w.text(m.text);
                        },
                        [&](const Called& m) {
                          w.u8(kCalled);
                          w.u64(m.group);
                          w.u32(m.sequence);
                          for (const std::byte byte : m.shape) w.u8(static_cast<std::uint8_t>(byte));
                        },
                        [&](const Gone& m) {
                          w.u8(kGone);
                          w.u64(m.rank);
                          w.u32(m.max_dead_workers);
                        },
                        [&](const Overdue& m) {
                          w.u8(kOverdue);
                          w.u64(m.key);
                          w.u32(m.partition);
                          w.u32(m.rank);
                          w.text(m.text);
                        },
                        [&](const Move& m) {
                          w.u8(kMove);
                          write_shape(w, m.shape);
                          w.u64(m.rounds);
                          w.u32(static_cast<std::uint32_t>(m.cells.size()));
                          for (const std::byte byte : m.cells) w.u8(static_cast<std::uint8_t>(byte));
                        },
                        [&](const Moved& m) {
                          w.u8(kMoved);
                          w.u64(m.key);
                          w.u32(m.partition);
                          w.u64(m.rounds);
                          write_options(w, m);
                        },
                        [&](const Lost& m) {
                          w.u8(kLost);
                          w.u64(m.agreed);
                          w.u32(static_cast<std::uint32_t>(m.excluded.size()));
                          w.words(m.excluded);
                          w.u32(static_cast<std::uint32_t>(m.lost.size()));
                          w.words(m.lost);
                          w.u32(m.max_dead_services);
                        },
                        [&](const Excluded& m) {
                          w.u8(kExcluded);
                          w.u64(m.agreed);
                          w.u32(static_cast<std::uint32_t>(m.ranks.size()));
                          w.words(m.ranks);
                        },
                        [&](const Loads& m) {
                          w.u8(kLoads);
                          w.u64(0);
                          w.u32(static_cast<std::uint32_t>(m.units.size()));
                          w.words(m.units);
                        },
                        [&](const Checksum& m) {
                          w.u8(kChecksum);
                          w.u64(m.key);
                          w.u32(m.partition);
                          w.u64(m.checksum);
                        },
                        [&](const Damaged& m) {
                          w.u8(kDamaged);
                          w.u64(m.key);
                          w.u32(m.partition);
                          w.u32(m.rank);
                          w.text(m.text);
                        }},
             message);
}

std::optional<Message> decode(std::span<const std::byte> bytes) {
  Reader r(bytes);
  std::optional<Message> message;
  const std::uint8_t kind = r.u8();
  const std::uint64_t key = r.u64();
  const std::uint32_t partition = r.u32();
  switch (kind) {
    case kRegister:
      message = read_shape(r, key, partition);
      break;
    case kRegistered:
      message = read_options(r, Registered{key, partition});
      break;
    case kRefused:
      message = Refused{key, partition, r.text()};
      break;
    case kAborted:
      message = Aborted{key, partition, r.u16()};
      break;
    case kReady:
      message = Ready{key, partition};
      break;
    case kFailed: {
      Failed m;
      m.group = key;
      m.sequence = partition;
      m.failed_rank = static_cast<int>(r.u32());
      m.status = r.u8();
      m.epoch = r.u32();
      m.next = r.u32();
      m.text = r.text();
      message = m;
      break;
    }
    case kCalled: {
      Called m;
      m.group = key;
      m.sequence = partition;
      for (std::byte& byte : m.shape) byte = static_cast<std::byte>(r.u8());
      message = m;
      break;
    }
    case kGone:
      message = Gone{key, partition};
      break;
    case kOverdue: {
      Overdue m;
      m.key = key;
      m.partition = partition;
      m.rank = r.u16();
      m.text = r.text();
      message = m;
      break;
    }
    case kMove: {
      Move m;
      m.shape = read_shape(r, key, partition);
      m.rounds = r.u64();
      m.cells = r.bytes();
      message = std::move(m);
      break;
    }
    case kMoved:
      message = read_options(r, Moved{key, partition, r.u64()});
      break;
    case kLost: {
      Lost m;
      m.agreed = key;
      m.excluded = r.words(partition);
      m.lost = r.words(r.u32());
      m.max_dead_services = r.u16();
      message = std::move(m);
      break;
    }
    case kExcluded:
      message = Excluded{key, r.words(partition)};
      break;
    case kLoads:
      message = Loads{r.words(partition)};
      break;
    case kChecksum:
      message = Checksum{key, partition, r.u64()};
      break;
    case kDamaged: {
      Damaged m;
      m.key = key;
      m.partition = partition;
      m.rank = r.u16();
      m.text = r.text();
      message = std::move(m);
      break;
    }
    default:
      return std::nullopt;
  }
  // PROTOCOL 14.1.1: A message MUST be exactly as long as its kind says. A receiver MUST ignore any other.
  if (!r.finished()) return std::nullopt;
  return message;
}

}  // namespace mlt::collective
