// The mutual proof of the job's secret at the two ends of a control connection, before either reveals anything about
// the job: section 3.8 of PROTOCOL.md.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "io/control/control_connection.h"

namespace mlt::io {

namespace {

// Earlier protocol versions refused another version without an opening.
constexpr std::uint16_t kFirstVersionWithOpening = 4;
constexpr std::string_view kSameRelease = ". Install the same mlt release on every host.";

}  // namespace

// Sends this side's opening. A client of another version receives neither nonce nor proof.
void ControlChannel::send_opening(Connection& connection, std::uint16_t answered_version) {
  const auto own = connection.outgoing ? connection.connecting_opening() : connection.listening_opening();
  Opening opening;
  opening.version = options_.version;
  const bool same_version = answered_version == options_.version;
  // PROTOCOL 3.8.1: The nonce of an opening MUST be 32 bytes from the system's random source, drawn for this
  //     connection.
  if (same_version) opening.nonce = random_nonce();
  encode_opening(opening, own.data());
  bool queued = false;
  if (connection.outgoing || !same_version) {
    queued = connection.stream.queue(static_cast<std::uint8_t>(FrameType::kOpen), own);
  } else {
    // PROTOCOL 3.8.1: A connection MUST start with an opening of 40 bytes from the connecting side, to which the
    //     listening side replies with its own and the proof of it.
    std::array<std::byte, kOpeningBytes + kProofBytes> bytes;
    const Proof proof = key_.prove(ProofRole::kListening, static_cast<std::uint8_t>(FrameType::kOpen),
                                   connection.handshake->transcript, {});
    std::copy(proof.begin(), proof.end(), std::copy(own.begin(), own.end(), bytes.begin()));
    queued = connection.stream.queue(static_cast<std::uint8_t>(FrameType::kOpen), bytes);
  }
  MLT_CHECK(queued);
  connection.stream.flush();
  watch(connection);
}

void ControlChannel::on_opening(Connection& connection, std::span<const std::byte> payload, base::TimeNs now,
                                ControlSink& sink) {
  Opening opening;
  switch (decode_opening(payload, connection.outgoing ? kProofBytes : 0, options_.version, opening)) {
    case OpeningError::kMalformed:
      return malformed(connection, "an invalid opening", now, sink);
    case OpeningError::kOtherVersion:
      return on_other_version(connection, opening.version, now, sink);
    case OpeningError::kNone:
      break;
  }
  if (!connection.outgoing) {
    std::copy_n(payload.begin(), kOpeningBytes, connection.connecting_opening().begin());
    connection.state = State::kAwaitHello;
    return send_opening(connection, opening.version);
  }
  std::copy_n(payload.begin(), kOpeningBytes, connection.listening_opening().begin());
  std::span<const std::byte> proof = payload.subspan(kOpeningBytes);
  // PROTOCOL 3.8.6: The connecting side MUST check the listening side's proof before it sends its hello, which holds a
  //     cookie.
  if (!check_proof(connection, FrameType::kOpen, proof, sink)) return;
  connection.state = State::kAwaitHello;
  send_hello(connection, *connection.rank);
}

// PROTOCOL 3.8.7: The listening side MUST reply to an opening of another version with its own opening, without a proof
//     and with a nonce of zeros, and end the connection.
void ControlChannel::on_other_version(Connection& connection, std::uint16_t version, base::TimeNs now,
                                      ControlSink& sink) {
  counters_.add(ControlCounter::kOtherVersion);
  if (is_overtaken(connection)) return close(connection);
  const std::string ours = std::to_string(options_.version);
  if (connection.outgoing) {
    const std::uint16_t rank = *connection.rank;
    return go_down(rank, PeerDownCause::kRefused,
                   "protocol version differs: rank " + std::to_string(rank) + " at " + connection.remote.format() +
                       " has " + std::to_string(version) + ", rank " + std::to_string(options_.rank) +
                       " (this process) has " + ours + std::string(kSameRelease),
                   sink);
  }
  const SocketAddress from = connection.remote;
  send_opening(connection, version);
  end_after_output(connection, now);
  reject_client(
      from, "has protocol version " + std::to_string(version) + ", this process " + ours + std::string(kSameRelease),
      sink);
}

// Before version 4 a listening side refused another version at once, without a proof.
void ControlChannel::on_unproved_refusal(Connection& connection, std::span<const std::byte> payload, base::TimeNs now,
                                         ControlSink& sink) {
  Refusal refusal;
  // PROTOCOL 3.8.8: In place of the listening side's opening, the connecting side MUST accept a refusal without a proof
  //     whose reason is 1, version, from versions below 4. It MUST treat any other refusal there as malformed.
  if (!decode_refusal(payload, refusal) || refusal.reason != RefusalReason::kVersion ||
      refusal.refuser_value >= kFirstVersionWithOpening || refusal.refuser_value == options_.version) {
    return malformed(connection, "a refusal without a proof", now, sink);
  }
  on_other_version(connection, static_cast<std::uint16_t>(refusal.refuser_value), now, sink);
}

// Queues a handshake frame that follows the openings, with its proof.
bool ControlChannel::queue_proved(Connection& connection, FrameType type, std::span<const std::byte> payload) {
  const ProofRole role = connection.outgoing ? ProofRole::kConnecting : ProofRole::kListening;
  const Proof proof = key_.prove(role, static_cast<std::uint8_t>(type), connection.handshake->transcript, payload);
  std::array<std::byte, kHelloMaxBytes + kProofBytes> bytes;
  MLT_CHECK(payload.size() <= kHelloMaxBytes);
  std::copy(proof.begin(), proof.end(), std::copy(payload.begin(), payload.end(), bytes.begin()));
  return connection.stream.queue(static_cast<std::uint8_t>(type), std::span(bytes).first(payload.size() + kProofBytes));
}

// Removes the proof from the end of `payload`. False, with the connection closed, if the proof is wrong.
bool ControlChannel::check_proof(Connection& connection, FrameType type, std::span<const std::byte>& payload,
                                 ControlSink& sink) {
  const std::size_t covered = payload.size() - std::min(payload.size(), kProofBytes);
  const ProofRole role = connection.outgoing ? ProofRole::kListening : ProofRole::kConnecting;
  const bool proved = key_.verify(payload.subspan(covered), role, static_cast<std::uint8_t>(type),
                                  connection.handshake->transcript, payload.first(covered));
  payload = payload.first(covered);
  if (proved) {
    if (connection.is_unproved()) unproved_.remove(connection.source);
    connection.proved = true;
    return true;
  }
  // PROTOCOL 3.8.9: A side that receives a wrong proof MUST close the connection without a reply, and count it in
  //     control_unproved.
  counters_.add(ControlCounter::kUnproved);
  const SocketAddress from = connection.remote;
  if (is_overtaken(connection)) {
    close(connection);
    return false;
  }
  if (connection.outgoing) {
    const std::uint16_t rank = *connection.rank;
    go_down(rank, PeerDownCause::kRefused,
            peer_text(rank, from) +
                " did not prove that it knows the job's secret: it has another secret or job name, or another program "
                "listens there. Give every process of the job the same MLT_JOB_SECRET and MLT_JOB.",
            sink);
    return false;
  }
  close(connection);
  reject_client(from, "did not prove that it knows the job's secret: it may have another secret or job name.", sink);
  return false;
}

// The remote end reads all that is queued; what it still sends is discarded, up to a limit.
void ControlChannel::end_after_output(Connection& connection, base::TimeNs now) {
  connection.state = State::kClosing;
  // PROTOCOL 3.4.1: It then discards at most 4,096 bytes of what still comes, for at most 1 s, and closes the
  //     connection (control_drains_cut).
  connection.closes_at = std::min(connection.closes_at, base::after(now, options_.drain_timeout_ns));
  call_at(connection.closes_at);
  connection.stream.end_output();
  watch(connection);
}

// False if there is none.
bool ControlChannel::evict_unproved() {
  std::size_t max_clients = 0;
  for (const auto& connection : connections_) {
    if (connection->is_unproved()) max_clients = std::max(max_clients, unproved_.clients_of(connection->source));
  }
  // PROTOCOL 3.5.5: A further one takes the place of one of the source address (IPv6: /64) that holds most: of the
  //     oldest that has not sent a valid opening, or of the oldest (control_too_many_pending).
  Connection* evicted = nullptr;
  // In order of arrival: new connections are appended.
  for (const auto& connection : connections_) {
    if (!connection->is_unproved() || unproved_.clients_of(connection->source) != max_clients) continue;
    const bool opened = connection->state == State::kAwaitHello;
    if (evicted == nullptr || !opened) evicted = connection.get();
    if (!opened) break;
  }
  if (evicted == nullptr) return false;
  counters_.add(ControlCounter::kTooManyPending);
  close(*evicted);
  return true;
}

}  // namespace mlt::io
