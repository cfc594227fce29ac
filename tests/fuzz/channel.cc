// The control channel (io/control_channel) against strangers: the input is what up to three connections say to a
// listening rank, in turns, with time that passes between. Two of them know the job's secret. Nobody becomes a peer
// without the proof of that, a valid hello and its confirm,
// a peer goes up at most once and down at most once after it, messages come from peers only, and time alone clears
// every connection that does not behave. Uses real sockets on loopback and made-up time. Nonces are random, which no
// property depends on.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "control_channel.h"
#include "input.h"
#include "io/control/control_channel.h"
#include "io/control/proof.h"

namespace {

using namespace mlt;
using fuzz::frame_of;

constexpr std::uint16_t kWorld = 4;
constexpr std::uint64_t kJob = 7;
constexpr std::uint64_t kImpostor = 20;  // incarnations from here on are said without the secret

class Sink final : public io::ControlSink {
 public:
  void on_peer_up(const io::PeerHello& peer) override {
    FUZZ_CHECK(peer.hello.rank > 0 && peer.hello.rank < kWorld && peer.hello.world_size == kWorld);
    FUZZ_CHECK(peer.hello.incarnation < kImpostor);
    FUZZ_CHECK(++ups_[peer.hello.rank] == 1);
    FUZZ_CHECK(downs_[peer.hello.rank] == 0);
  }
  void on_message(std::uint16_t rank, std::uint8_t type, std::span<const std::byte> payload) override {
    FUZZ_CHECK(ups_[rank] == 1 && downs_[rank] == 0);
    FUZZ_CHECK(type >= io::kFirstMessageType && payload.size() <= 1'024);
  }
  void on_peer_down(std::uint16_t rank, io::PeerDownCause, const std::string& text) override {
    FUZZ_CHECK(ups_[rank] == 1 && ++downs_[rank] == 1);
    FUZZ_CHECK(!text.empty());
  }
  void on_refused(const io::SocketAddress&, const std::string& text) override { FUZZ_CHECK(!text.empty()); }
  bool all_down() const { return ups_ == downs_; }

 private:
  std::array<int, kWorld> ups_{};
  std::array<int, kWorld> downs_{};
};

io::ControlOptions options() {
  io::ControlOptions options;
  options.listen = io::SocketAddress::loopback(AF_INET, 0);
  options.world_size = kWorld;
  options.job_id = kJob;
  options.secret = "known to two of three";
  options.incarnation = 1;
  options.cookies.assign(kWorld, 0xC0);
  options.paths = {{.port = 9}};
  options.segment_bytes = 1'400;
  options.max_message_bytes = 1'024;
  options.outgoing_limit_bytes = 8'192;
  return options;
}

// A hello that would be accepted, but for one byte changed where `damage` says (beyond its end: none).
std::vector<std::byte> hello_payload(std::uint16_t rank, bool knows, std::uint8_t damage, std::uint8_t value) {
  io::Hello hello;
  hello.version = 1;
  hello.rank = rank;
  hello.world_size = kWorld;
  hello.job_id = kJob;
  hello.incarnation = (knows ? 10U : kImpostor) + rank;
  hello.segment_bytes = 1'400;
  hello.path_count = 1;
  hello.paths[0].port = 9;
  std::vector<std::byte> payload(io::hello_bytes(1));
  io::encode_hello(hello, payload.data());
  // The incarnation stays: it tells who spoke.
  if (damage < payload.size() && (damage < 24 || damage >= 32)) payload[damage] = static_cast<std::byte>(value);
  return payload;
}

// One client: what it needs to open and to prove.
class Client {
 public:
  explicit Client(bool knows) : key_(knows ? "known to two of three" : "another secret", kJob) {}

  void connect(const io::SocketAddress& to) {
    fd_ = io::UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const linger reset{1, 0};  // thousands of runs a second: leave no TIME_WAIT behind
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    ::connect(fd_.get(), to.raw(), to.raw_size());
    transcript_ = {};
  }
  void leave() { fd_ = io::UniqueFd(); }
  void say(std::span<const std::byte> bytes) {
    if (!fd_) return;
    // Refused where the channel has closed the connection, which is its right.
    (void)::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void open(std::uint16_t version) {
    io::encode_opening({version, {}}, transcript_.data());
    say(frame_of(static_cast<std::uint8_t>(io::FrameType::kOpen), std::span(transcript_).first(io::kOpeningBytes)));
  }
  // The first thing that the channel says on a connection is its opening, whole.
  void read() {
    std::array<std::byte, 4'096> bytes;
    const ssize_t got = fd_ ? ::recv(fd_.get(), bytes.data(), bytes.size(), 0) : 0;
    if (got < static_cast<ssize_t>(io::kFrameHeaderBytes + io::kOpeningBytes)) return;
    if (transcript_[io::kOpeningBytes] != std::byte{0}) return;
    std::copy_n(bytes.begin() + io::kFrameHeaderBytes, io::kOpeningBytes, transcript_.begin() + io::kOpeningBytes);
  }
  void say_proved(std::uint8_t type, std::span<const std::byte> payload) {
    std::vector<std::byte> proved(payload.begin(), payload.end());
    const io::Proof proof = key_.prove(io::ProofRole::kConnecting, type, transcript_, payload);
    proved.insert(proved.end(), proof.begin(), proof.end());
    say(frame_of(type, proved));
  }

 private:
  io::JobKey key_;
  io::UniqueFd fd_;
  std::array<std::byte, 2 * io::kOpeningBytes> transcript_{};
};

class World {
 public:
  World() {
    io::OsError error;
    channel_ = io::ControlChannel::open(options(), error);
    FUZZ_CHECK(channel_ != nullptr);
  }

  void step(fuzz::Input& input) {
    const std::uint32_t which = input.below(kStrangers);
    Client& client = clients_[which];
    switch (input.below(10)) {
      case 0:
        client.connect(channel_->listen_address());
        break;
      case 1:
        client.leave();
        break;
      case 2: {
        const auto rank = static_cast<std::uint16_t>(input.below(kWorld + 1));
        const std::uint8_t damage = input.u8();
        client.say_proved(static_cast<std::uint8_t>(io::FrameType::kHello),
                          hello_payload(rank, which != kImpostorClient, damage, input.u8()));
        break;
      }
      case 3:
        client.say(frame_of(static_cast<std::uint8_t>(io::FrameType::kConfirm), {}));
        break;
      case 4: {
        const std::uint8_t type = input.u8();
        client.say(frame_of(type, input.take(input.u8())));
        break;
      }
      case 5:
        client.say(input.take(1U + input.below(64)));
        break;
      case 6: {
        const auto rank = static_cast<std::uint16_t>(input.below(kWorld));
        const std::uint8_t type = static_cast<std::uint8_t>(io::kFirstMessageType + input.below(4));
        const std::vector<std::byte> payload(input.u16() % 1'100);
        const io::ControlSendStatus sent = channel_->send(rank, type, payload);
        FUZZ_CHECK((sent == io::ControlSendStatus::kQueued) <= channel_->is_up(rank));
        break;
      }
      case 7:
        client.open(input.u8() == 0 ? 2 : 1);
        break;
      case 8:
        client.say_proved(static_cast<std::uint8_t>(io::FrameType::kRefuse), input.take(input.u8()));
        break;
      default:
        now_ += base::DurationNs{input.u8()} * 20 * base::kMillisecond;
    }
    service();
  }

  // Left alone for longer than every limit, the channel has no peer and no connection left.
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
  static constexpr std::uint32_t kStrangers = 3;
  static constexpr std::uint32_t kImpostorClient = 2;

  void service() {
    for (int turns = 0;; ++turns) {
      FUZZ_CHECK(turns < 100);  // else it keeps asking to be serviced
      channel_->service(now_, sink_);
      pollfd ready{channel_->poll_fd(), POLLIN, 0};
      if (::poll(&ready, 1, 0) <= 0 && channel_->next_timeout() > now_) break;
    }
    for (Client& client : clients_) client.read();
  }

  base::TimeNs now_ = base::kSecond;
  Sink sink_;
  std::unique_ptr<io::ControlChannel> channel_;
  std::array<Client, kStrangers> clients_{Client(true), Client(true), Client(false)};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  World world;
  for (int steps = 0; !input.empty() && steps < 64; ++steps) world.step(input);
  world.finish();
  return 0;
}
