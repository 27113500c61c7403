#include <terrace/comm/connections/run_secret.h>

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/comm/identity/launcher_claim.h>

namespace terrace {
namespace {

constexpr std::string_view kPurpose = "Terrace: rank of a run, 3";

Error no_proof(std::string what, Reason reason) {
  return Error(ErrorKind::io,
               {"cannot prove to other ranks that this is one of them", std::move(what), std::move(reason),
                "mend the installation of OpenSSL (libcrypto), or of the system's random numbers"});
}

void draw(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = getrandom(bytes.data(), bytes.size(), 0);
    if (count < 0 && errno != EINTR) throw no_proof("getrandom", system_reason(errno));
    if (count > 0) bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

RankProof hash_with(std::string_view key, std::span<const std::byte> bytes) {
  RankProof hash{};
  unsigned int count = 0;
  const auto* const data = reinterpret_cast<const unsigned char*>(bytes.data());
  auto* const result = reinterpret_cast<unsigned char*>(hash.data());
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), data, bytes.size(), result, &count) ==
          nullptr ||
      count != hash.size())
    throw no_proof("HMAC", "the library gives no keyed hash");
  return hash;
}

std::string hex_of(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte one : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(one));
  return text;
}

}  // namespace

RankNonce new_nonce() {
  RankNonce nonce;
  draw(nonce);
  return nonce;
}

std::string new_secret_text() {
  return hex_of(new_nonce());
}

RankProof RunSecret::proof(ProvingSide side, std::span<const std::byte> said) const {
  const auto purpose = std::as_bytes(std::span(kPurpose));
  std::vector<std::byte> bytes(purpose.begin(), purpose.end());
  bytes.push_back(static_cast<std::byte>(side));
  bytes.insert(bytes.end(), said.begin(), said.end());
  return hash_with(text_, bytes);
}

bool RunSecret::proves(ProvingSide side, std::span<const std::byte> said, const RankProof& proof) const {
  const RankProof expected = this->proof(side, said);
  return CRYPTO_memcmp(expected.data(), proof.data(), expected.size()) == 0;
}

RunSecret RunSecret::with(const RankNonce& told) const {
  return RunSecret(hex_of(hash_with(text_, told)));
}

std::string secret_text_in(const Environment& variables) {
  const std::string* const text = variable_text(variables, kSecretVariable);
  if (text == nullptr) return {};
  if (text->size() < RunSecret::kLeastBytes)
    throw Error(
        ErrorKind::config,
        {"cannot use the secret of the run", kSecretVariable,
         fmt::format("it has {} bytes, and at least {} are needed", text->size(), RunSecret::kLeastBytes),
         "set it to a random text, as `openssl rand -hex 32` prints one, on all ranks"});
  return *text;
}

RunSecret secret_of(const Environment& variables) {
  return RunSecret(secret_text_in(variables));
}

}  // namespace terrace
