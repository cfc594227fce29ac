// The control channel (io/control_channel) against those that it connects to: the input is what two listeners say to a
// rank that looks for ranks 0 and 1 there, in turns, with time that passes between. One of them knows the job's secret.
// The other never hears more than an opening on a connection, and never becomes a peer; a peer goes up at most once, is
// whom it was taken for, and every rank that was looked for ends down, in time. Uses real sockets on loopback and
// made-up time. Nonces are random, which no property depends on.
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
using fuzz::kJob;

constexpr std::uint16_t kOwnRank = 2;
constexpr std::uint16_t kListeners = 2;
constexpr std::uint16_t kWorld = 3;
constexpr std::uint16_t kKnowing = 0;  // and rank 1's address is an unrelated server's
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
  void on_refused(const io::SocketAddress&, const std::string&) override { FUZZ_CHECK(false); }  // never called
  bool needs(std::uint16_t) const override { return false; }
  base::TimeNs datagram_at(std::uint16_t) const override { return 0; }
  void on_quiet(std::uint16_t) override {}
  bool all_down() const { return downs_ == std::array<int, kListeners>{1, 1}; }

 private:
  std::array<int, kListeners> ups_{};
  std::array<int, kListeners> downs_{};
};

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
      fuzz::reset_on_close(fd.get());
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
  void say(std::span<const std::byte> bytes) { fuzz::say_if_open(fd_, bytes); }
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
  io::Hello hello = fuzz::acceptable_hello(rank, kWorld, 10U + rank);
  hello.expected_rank = kOwnRank;
  std::vector<std::byte> payload = fuzz::payload_of(hello);
  if (damage < payload.size()) payload[damage] = static_cast<std::byte>(value);
  return payload;
}

class World final : public fuzz::ChannelWorld<Sink> {
 public:
  World() : ChannelWorld(fuzz::channel_options(kOwnRank, kWorld, "known to one of two")) {
    io::OsError error;
    for (std::uint16_t rank = 0; rank < kListeners; ++rank) {
      FUZZ_CHECK(channel_->connect_to(now_, rank, listeners_[rank].address(), now_ + 10 * base::kSecond, error));
    }
    service();
  }

 private:
  void act(fuzz::Input& input) override {
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
      case 7:
        send(rank, io::kFirstMessageType, input.u16() % 1'100);
        break;
      default:
        wait(input);
    }
  }

  void serviced() override {
    for (Listener& listener : listeners_) {
      listener.accept();
      listener.read();
    }
  }

  std::array<Listener, kListeners> listeners_{Listener(true), Listener(false)};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::run<World>(data, size);
  return 0;
}
