// The control channel (io/control_channel) against unrelated clients: the input is what up to three connections send to
// a listening rank, in turns, with time that passes between. Two of them know the job's secret. Without proof of that,
// a valid hello and its confirm, no client becomes a peer; a peer goes up at most once and down at most once after it,
// messages come from peers only, and time alone clears every connection that does not behave. Uses real sockets on
// loopback and made-up time. Nonces are random, which no property depends on.
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
using fuzz::kJob;

constexpr std::uint16_t kWorld = 4;
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
  bool needs(std::uint16_t) const override { return false; }
  base::TimeNs datagram_at(std::uint16_t) const override { return 0; }
  void on_quiet(std::uint16_t) override {}
  bool all_down() const { return ups_ == downs_; }

 private:
  std::array<int, kWorld> ups_{};
  std::array<int, kWorld> downs_{};
};

// A hello that would be accepted, but for one byte changed where `damage` says (beyond its end: none).
std::vector<std::byte> hello_payload(std::uint16_t rank, bool knows, std::uint8_t damage, std::uint8_t value) {
  std::vector<std::byte> payload =
      fuzz::payload_of(fuzz::acceptable_hello(rank, kWorld, (knows ? 10U : kImpostor) + rank));
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
    fuzz::reset_on_close(fd_.get());
    ::connect(fd_.get(), to.raw(), to.raw_size());
    transcript_ = {};
  }
  void leave() { fd_ = io::UniqueFd(); }
  void say(std::span<const std::byte> bytes) { fuzz::say_if_open(fd_, bytes); }
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

class World final : public fuzz::ChannelWorld<Sink> {
 public:
  World() : ChannelWorld(fuzz::channel_options(0, kWorld, "known to two of three")) {}

 private:
  void act(fuzz::Input& input) override {
    const std::uint32_t which = input.below(kUnidentified);
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
        send(rank, type, input.u16() % 1'100);
        break;
      }
      case 7:
        client.open(input.u8() == 0 ? 2 : 1);
        break;
      case 8:
        client.say_proved(static_cast<std::uint8_t>(io::FrameType::kRefuse), input.take(input.u8()));
        break;
      default:
        wait(input);
    }
  }

  static constexpr std::uint32_t kUnidentified = 3;
  static constexpr std::uint32_t kImpostorClient = 2;

  void settled() override {
    for (Client& client : clients_) client.read();
  }

  std::array<Client, kUnidentified> clients_{Client(true), Client(true), Client(false)};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::run<World>(data, size);
  return 0;
}
