#include "io/control/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "io/os/random.h"

namespace mlt::io {

namespace {

constexpr std::string_view kKeyLabel = "mlt control";

void hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data, std::span<std::byte> out) {
  // An empty secret is a valid key, but HMAC() takes a null pointer for "as before".
  static constexpr unsigned char kNone = 0;
  unsigned int size = 0;
  const unsigned char* result = HMAC(EVP_sha256(), key.empty() ? &kNone : static_cast<const void*>(key.data()),
                                     static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(data.data()),
                                     data.size(), reinterpret_cast<unsigned char*>(out.data()), &size);
  MLT_CHECK(result != nullptr && size == kProofBytes);
}

}  // namespace

Nonce random_nonce() {
  Nonce nonce;
  for (std::size_t at = 0; at < nonce.size(); at += 8) base::store_le64(nonce.data() + at, random_u64());
  return nonce;
}

JobKey::JobKey(std::string_view secret, std::uint64_t job_id) {
  // PROTOCOL 3.8.3: The key of a job MUST be HMAC-SHA-256, under the job's secret, of the 11 bytes "mlt control" and
  //     the job id as 8 bytes; so a proof of one job is not valid in another with the same secret.
  std::array<std::byte, kKeyLabel.size() + 8> label;
  std::memcpy(label.data(), kKeyLabel.data(), kKeyLabel.size());
  base::store_le64(label.data() + kKeyLabel.size(), job_id);
  hmac_sha256(std::as_bytes(std::span(secret)), label, key_);
}

JobKey::~JobKey() { OPENSSL_cleanse(key_.data(), key_.size()); }

Proof JobKey::prove(ProofRole role, std::uint8_t type, std::span<const std::byte> transcript,
                    std::span<const std::byte> payload) const {
  // PROTOCOL 3.8.4: A proof MUST be HMAC-SHA-256, under the key of the job, of one byte for the role (1 connecting, 2
  //     listening), the frame's type, the first 40 bytes of the connecting side's opening, those of the listening
  //     side's, and the frame's payload before the proof; in an opening nothing stands for the payload.
  std::vector<std::byte> data;
  data.reserve(2 + transcript.size() + payload.size());
  data.push_back(static_cast<std::byte>(role));
  data.push_back(static_cast<std::byte>(type));
  data.insert(data.end(), transcript.begin(), transcript.end());
  data.insert(data.end(), payload.begin(), payload.end());
  Proof proof;
  hmac_sha256(key_, data, proof);
  return proof;
}

bool JobKey::verify(std::span<const std::byte> proof, ProofRole role, std::uint8_t type,
                    std::span<const std::byte> transcript, std::span<const std::byte> payload) const {
  if (proof.size() != kProofBytes) return false;
  const Proof expected = prove(role, type, transcript, payload);
  // PROTOCOL 3.8.5: A side MUST compare proofs in constant time.
  return CRYPTO_memcmp(expected.data(), proof.data(), kProofBytes) == 0;
}

}  // namespace mlt::io
