// The control channel (io/control_channel) against those that it connects to: the input is what two listeners say to a
// rank that looks for ranks 0 and 1 there, in turns, with time that passes between. One of them knows the job's secret.
// The other never hears more than an opening on a connection, and never becomes a peer; a peer goes up at most once, is
// whom it was taken for, and every rank that was looked for ends down, in time. Uses real sockets on loopback and
// made-up time. Nonces are random, which no property depends on.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "control_channel.h"
#include "input.h"
#include "io/control/control_channel.h"
#include "io/control/proof.h"
#include "io/control/tcp_socket.h"

namespace {

using namespace mlt;
using fuzz::frame_of;

constexpr std::uint16_t kOwnRank = 2;
constexpr std::uint16_t kListeners = 2;
constexpr std::uint16_t kWorld = 3;
constexpr std::uint64_t kJob = 7;
constexpr std::uint16_t kKnowing = 0;  // and rank 1 is a stranger's address
constexpr std::size_t kOpeningFrame = io::kFrameHeaderBytes + io::kOpeningBytes;

class Sink final : public io::ControlSink {
 public:
  void on_peer_up(const io::PeerHello& peer) override {
    FUZZ_CHECK(peer.hello.rank == kKnowing && peer.hello.expected_rank == kOwnRank);
    FUZZ_CHECK(++ups_[peer.hello.rank] == 1 && downs_[peer.hello.rank] == 0);
  }
  void on_message(std::uint16_t rank, std::uint8_t type, std::span<const std::byte> payload) override {
    FUZZ_CHECK(ups_[rank] == 1 && downs_[rank] == 0);
    FUZZ_CHECK(type >= io::kFirstMessageType && payload.size() <= 1'024);
  }
  void on_peer_down(std::uint16_t rank, io::PeerDownCause, const std::string& text) override {
    FUZZ_CHECK(rank < kListeners && ++downs_[rank] == 1);
    FUZZ_CHECK(!text.empty());
  }
  void on_refused(const io::SocketAddress&, const std::string&) override { FUZZ_CHECK(false); }  // nobody calls
  bool all_down() const { return downs_ == std::array<int, kListeners>{1, 1}; }

 private:
  std::array<int, kListeners> ups_{};
  std::array<int, kListeners> downs_{};
};

io::ControlOptions options() {
  io::ControlOptions options;
  options.listen = io::SocketAddress::loopback(AF_INET, 0);
  options.rank = kOwnRank;
  options.world_size = kWorld;
  options.job_id = kJob;
  options.secret = "known to one of two";
  options.incarnation = 1;
  options.cookies.assign(kWorld, 0xC0);
  options.paths = {{.port = 9}};
  options.segment_bytes = 1'400;
  options.max_message_bytes = 1'024;
  options.outgoing_limit_bytes = 8'192;
  return options;
}

// One listener: its newest connection, and what it needs to answer and to prove there.
class Listener {
 public:
  explicit Listener(bool knows) : knows_(knows), key_(knows ? "known to one of two" : "another secret", kJob) {
    io::OsError error;
    auto fd = io::listen_tcp(io::SocketAddress::loopback(AF_INET, 0), 0, error);
    FUZZ_CHECK(fd.has_value());
    listener_ = std::move(*fd);
  }
  io::SocketAddress address() const { return io::SocketAddress::local_of(listener_.get()); }

  void accept() {
    int number = 0;
    for (io::UniqueFd fd; (fd = io::accept_tcp(listener_.get(), number));) {
      const linger reset{1, 0};  // thousands of runs a second: leave no TIME_WAIT behind
      ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
      fd_ = std::move(fd);
      heard_ = 0;
      transcript_ = {};
    }
  }
  // What the rank says: first its opening, whole. Without the secret it is all that there is to hear.
  void read() {
    std::array<std::byte, 4'096> bytes;
    const ssize_t got = fd_ ? ::recv(fd_.get(), bytes.data(), bytes.size(), 0) : 0;
    if (got <= 0) return;
    if (heard_ == 0) {
      FUZZ_CHECK(got >= static_cast<ssize_t>(kOpeningFrame));
      std::copy_n(bytes.begin() + io::kFrameHeaderBytes, io::kOpeningBytes, transcript_.begin());
    }
    heard_ += static_cast<std::size_t>(got);
    FUZZ_CHECK(knows_ || heard_ == kOpeningFrame);
  }
  void leave() { fd_ = io::UniqueFd(); }
  void say(std::span<const std::byte> bytes) {
    // Refused where the channel has closed the connection, which is its right.
    if (fd_) (void)::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void open(std::uint16_t version, bool proves) {
    const auto own = std::span(transcript_).last<io::kOpeningBytes>();
    io::encode_opening({version, {}}, own.data());
    std::vector<std::byte> payload(own.begin(), own.end());
    const auto type = static_cast<std::uint8_t>(io::FrameType::kOpen);
    if (proves) append(payload, key_.prove(io::ProofRole::kListening, type, transcript_, {}));
    say(frame_of(type, payload));
  }
  void say_proved(std::uint8_t type, std::vector<std::byte> payload) {
    append(payload, key_.prove(io::ProofRole::kListening, type, transcript_, payload));
    say(frame_of(type, payload));
  }

 private:
  static void append(std::vector<std::byte>& payload, const io::Proof& proof) {
    payload.insert(payload.end(), proof.begin(), proof.end());
  }

  bool knows_;
  io::JobKey key_;
  io::UniqueFd listener_;
  io::UniqueFd fd_;
  std::size_t heard_ = 0;
  std::array<std::byte, 2 * io::kOpeningBytes> transcript_{};
};

// A hello that would be accepted, but for one byte changed where `damage` says (beyond its end: none).
std::vector<std::byte> hello_payload(std::uint16_t rank, std::uint8_t damage, std::uint8_t value) {
  io::Hello hello;
  hello.version = 1;
  hello.rank = rank;
  hello.expected_rank = kOwnRank;
  hello.world_size = kWorld;
  hello.job_id = kJob;
  hello.incarnation = 10U + rank;
  hello.segment_bytes = 1'400;
  hello.path_count = 1;
  hello.paths[0].port = 9;
  std::vector<std::byte> payload(io::hello_bytes(1));
  io::encode_hello(hello, payload.data());
  if (damage < payload.size()) payload[damage] = static_cast<std::byte>(value);
  return payload;
}

class World {
 public:
  World() {
    io::OsError error;
    channel_ = io::ControlChannel::open(options(), error);
    FUZZ_CHECK(channel_ != nullptr);
    for (std::uint16_t rank = 0; rank < kListeners; ++rank) {
      FUZZ_CHECK(channel_->connect_to(now_, rank, listeners_[rank].address(), now_ + 10 * base::kSecond, error));
    }
    service();
  }

  void step(fuzz::Input& input) {
    const auto rank = static_cast<std::uint16_t>(input.below(kListeners));
    Listener& listener = listeners_[rank];
    switch (input.below(9)) {
      case 0:
        listener.leave();
        break;
      case 1:
        listener.open(input.u8() == 0 ? 2 : 1, input.u8() != 0);
        break;
      case 2: {
        const std::uint16_t as = input.u8() == 0 ? static_cast<std::uint16_t>(1 - rank) : rank;
        const std::uint8_t damage = input.u8();
        listener.say_proved(static_cast<std::uint8_t>(io::FrameType::kHello), hello_payload(as, damage, input.u8()));
        break;
      }
      case 3:
        listener.say_proved(static_cast<std::uint8_t>(io::FrameType::kRefuse), input.take(input.u8()));
        break;
      case 4: {  // a refusal without a proof, as versions below 4 say it
        std::vector<std::byte> refusal(io::kRefusalBytes);
        io::encode_refusal({static_cast<io::RefusalReason>(input.below(10)), 0, input.u16(), 1}, refusal.data());
        listener.say(frame_of(static_cast<std::uint8_t>(io::FrameType::kRefuse), refusal));
        break;
      }
      case 5: {
        const std::uint8_t type = input.u8();
        listener.say(frame_of(type, input.take(input.u8())));
        break;
      }
      case 6:
        listener.say(input.take(1U + input.below(64)));
        break;
      case 7: {
        const std::vector<std::byte> payload(input.u16() % 1'100);
        const io::ControlSendStatus sent = channel_->send(rank, io::kFirstMessageType, payload);
        FUZZ_CHECK((sent == io::ControlSendStatus::kQueued) <= channel_->is_up(rank));
        break;
      }
      default:
        now_ += base::DurationNs{input.u8()} * 20 * base::kMillisecond;
    }
    service();
  }

  // Left alone for longer than every limit, nobody is looked for any more.
  void finish() {
    for (int i = 0; i < 20; ++i) {
      now_ += base::kSecond;
      service();
    }
    FUZZ_CHECK(sink_.all_down());
    channel_->say_goodbye();
    service();
    FUZZ_CHECK(channel_->finished());
  }

 private:
  void service() {
    for (int turns = 0;; ++turns) {
      FUZZ_CHECK(turns < 100);  // else it keeps asking to be serviced
      channel_->service(now_, sink_);
      for (Listener& listener : listeners_) {
        listener.accept();
        listener.read();
      }
      pollfd ready{channel_->poll_fd(), POLLIN, 0};
      if (::poll(&ready, 1, 0) <= 0 && channel_->next_timeout() > now_) break;
    }
  }

  base::TimeNs now_ = base::kSecond;
  Sink sink_;
  std::array<Listener, kListeners> listeners_{Listener(true), Listener(false)};
  std::unique_ptr<io::ControlChannel> channel_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  World world;
  for (int steps = 0; !input.empty() && steps < 64; ++steps) world.step(input);
  world.finish();
  return 0;
}
