#include "io/control/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "io/os/random.h"

namespace mlt::io {

namespace {

constexpr std::string_view kKeyLabel = "mlt control";
constexpr std::string_view kRootLabel = "mlt secret";

void hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data, std::span<std::byte> out) {
  unsigned int size = 0;
  const unsigned char* result =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(data.data()),
           data.size(), reinterpret_cast<unsigned char*>(out.data()), &size);
  MLT_CHECK(result != nullptr && size == kProofBytes);
}

// PROTOCOL 3.8.12: The root key MUST be SHA-256 of the 10 bytes "mlt secret", the secret's length as 8 bytes, and the
//     secret.
void root_key(std::string_view secret, std::span<std::byte, kProofBytes> out) {
  std::vector<std::byte> data(kRootLabel.size() + 8 + secret.size());
  std::memcpy(data.data(), kRootLabel.data(), kRootLabel.size());
  base::store_le64(data.data() + kRootLabel.size(), secret.size());
  std::copy_n(reinterpret_cast<const std::byte*>(secret.data()), secret.size(), data.data() + kRootLabel.size() + 8);
  unsigned int size = 0;
  const int done =
      EVP_Digest(data.data(), data.size(), reinterpret_cast<unsigned char*>(out.data()), &size, EVP_sha256(), nullptr);
  OPENSSL_cleanse(data.data(), data.size());
  MLT_CHECK(done == 1 && size == kProofBytes);
}

}  // namespace

Nonce random_nonce() {
  Nonce nonce;
  for (std::size_t at = 0; at < nonce.size(); at += 8) base::store_le64(nonce.data() + at, random_u64());
  return nonce;
}

JobKey::JobKey(std::string_view secret, std::uint64_t job_id) {
  // PROTOCOL 3.8.3: The key of a job MUST be HMAC-SHA-256, under the root key (3.8.12), of the 11 bytes "mlt control"
  //     and the job id as 8 bytes; so a proof of one job is not valid in another with the same secret.
  std::array<std::byte, kKeyLabel.size() + 8> label;
  std::memcpy(label.data(), kKeyLabel.data(), kKeyLabel.size());
  base::store_le64(label.data() + kKeyLabel.size(), job_id);
  std::array<std::byte, kProofBytes> root;
  root_key(secret, root);
  hmac_sha256(root, label, key_);
  OPENSSL_cleanse(root.data(), root.size());
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
