// Proofs that both ends of a control connection know the job's secret: HMAC-SHA-256 from OpenSSL's libcrypto under a
// key derived from the secret and the job's id. Section 3.8 of PROTOCOL.md.
//
// Absent on purpose: where a secret comes from, and encryption. A secret never appears in an error text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace mlt::io {

inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kProofBytes = 32;
using Nonce = std::array<std::byte, kNonceBytes>;
using Proof = std::array<std::byte, kProofBytes>;

// The end of a connection that makes the proof. A proof of one role is never valid for the other, so a proof cannot be
// reflected.
enum class ProofRole : std::uint8_t { kConnecting = 1, kListening = 2 };

// From the system's random source.
Nonce random_nonce();

// Immutable, hence usable from any thread. The destructor wipes the key from memory.
class JobKey {
 public:
  JobKey(std::string_view secret, std::uint64_t job_id);
  ~JobKey();
  JobKey(const JobKey&) = delete;
  JobKey& operator=(const JobKey&) = delete;

  // Covers a frame's type and payload on this connection only: `transcript` holds both openings, nonces included.
  Proof prove(ProofRole role, std::uint8_t type, std::span<const std::byte> transcript,
              std::span<const std::byte> payload) const;
  // Compares in constant time; false for a proof of another length.
  bool verify(std::span<const std::byte> proof, ProofRole role, std::uint8_t type,
              std::span<const std::byte> transcript, std::span<const std::byte> payload) const;

 private:
  std::array<std::byte, kProofBytes> key_;
};

}  // namespace mlt::io
