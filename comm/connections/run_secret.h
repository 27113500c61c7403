// RunSecret: what the ranks of a run have and nobody else has. Two of them show each other that they have it
// without sending it: each draws a number for the occasion, and answers with a keyed hash (HMAC with SHA-256)
// of both numbers and of what was said. A number is drawn anew for every connection, so an answer that
// somebody has heard is worth nothing at another one. The secret is never sent, printed or written.
//
// Where nothing secret is given the same is done with an empty one, which proves nothing: see PeerUser.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <terrace/comm/identity/rank_identity.h>

namespace terrace {

// A text of at least RunSecret::kLeastBytes: the same for all ranks of a run, and for `terrace launch`.
inline constexpr const char* kSecretVariable = "TERRACE_SECRET";

using RankNonce = std::array<std::byte, 32>;
using RankProof = std::array<std::byte, 32>;

// Drawn by the system, for one connection.
RankNonce new_nonce();
// Drawn by the system: a text for kSecretVariable.
std::string new_secret_text();

// Who proves: neither side can send back to the other what that has sent.
enum class ProvingSide : unsigned char { comes = 'C', listens = 'L' };

// Thread-safe, as all that does not change.
class RunSecret {
 public:
  static constexpr size_t kLeastBytes = 16;

  RunSecret() = default;  // nothing is given
  explicit RunSecret(std::string text) : text_(std::move(text)) {}

  bool is_given() const { return !text_.empty(); }
  // What a side that has heard `said`, with the other side's number in it, answers to show that it has the
  // secret.
  RankProof proof(ProvingSide side, std::span<const std::byte> said) const;
  // Whether it is that. Takes as long wherever it differs.
  bool proves(ProvingSide side, std::span<const std::byte> said, const RankProof& proof) const;
  // A secret of those who have this one, if it is given, and have been told the number.
  RunSecret with(const RankNonce& told) const;

 private:
  std::string text_;
};

// That of the environment; empty, or not given, where there is none. Both throw Error(config) where it is too
// short; no error holds it.
std::string secret_text_in(const Environment& variables);
RunSecret secret_of(const Environment& variables);

}  // namespace terrace
