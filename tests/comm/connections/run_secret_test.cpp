#include <terrace/comm/connections/run_secret.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "support/expect_error.h"

namespace terrace::run_secret_test {
namespace {

using testing::expect_error;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string hex_of(const RankProof& proof) {
  std::string text;
  for (const std::byte one : proof) text += fmt::format("{:02x}", static_cast<unsigned>(one));
  return text;
}

// Of Python: hmac.new(b"0123456789abcdef", b"Terrace: rank of a run, 3" + b"C" + b"abc",
// "sha256").hexdigest()
TEST(RunSecret, ProvesByHmacWithSha256) {
  EXPECT_EQ(hex_of(RunSecret("0123456789abcdef").proof(ProvingSide::comes, bytes_of("abc"))),
            "3744fe4493c03bfa3db964a86cd82fdac11e54333542ae68c4d72b7af995b343");
}

TEST(RunSecret, IsProvedByWhoeverHasItAndByNobodyElse) {
  const RunSecret secret("0123456789abcdef"), other("0123456789abcdeg"), none;
  const RankProof proof = secret.proof(ProvingSide::comes, bytes_of("abc"));
  EXPECT_TRUE(RunSecret("0123456789abcdef").proves(ProvingSide::comes, bytes_of("abc"), proof));
  EXPECT_FALSE(secret.proves(ProvingSide::listens, bytes_of("abc"), proof));
  EXPECT_FALSE(secret.proves(ProvingSide::comes, bytes_of("abd"), proof));
  EXPECT_FALSE(other.proves(ProvingSide::comes, bytes_of("abc"), proof));
  EXPECT_FALSE(none.proves(ProvingSide::comes, bytes_of("abc"), proof));
  for (size_t i = 0; i < proof.size(); ++i) {
    RankProof wrong = proof;
    wrong[i] ^= std::byte{1};
    EXPECT_FALSE(secret.proves(ProvingSide::comes, bytes_of("abc"), wrong)) << i;
  }
  EXPECT_TRUE(
      none.proves(ProvingSide::comes, bytes_of("abc"), none.proof(ProvingSide::comes, bytes_of("abc"))));
}

TEST(RunSecret, MakesOneForThoseWhoHaveBeenToldANumber) {
  const RunSecret secret("0123456789abcdef"), none;
  const RankNonce told = new_nonce(), another = new_nonce();
  const auto proof = [](const RunSecret& one) { return one.proof(ProvingSide::comes, bytes_of("abc")); };
  EXPECT_EQ(proof(secret.with(told)), proof(secret.with(told)));
  EXPECT_NE(proof(secret.with(told)), proof(secret.with(another)));
  EXPECT_NE(proof(secret.with(told)), proof(none.with(told)));
  EXPECT_NE(proof(secret.with(told)), proof(secret));
  EXPECT_TRUE(none.with(told).is_given());
}

TEST(RunSecret, IsThatOfTheEnvironment) {
  EXPECT_FALSE(secret_of({}).is_given());
  EXPECT_FALSE(secret_of({{kSecretVariable, ""}}).is_given());
  EXPECT_TRUE(secret_of({{kSecretVariable, "0123456789abcdef"}}).is_given());
  EXPECT_EQ(secret_text_in({{kSecretVariable, "0123456789abcdef"}}), "0123456789abcdef");
}

TEST(RunSecret, ThatIsTooShortIsRefusedAndNotShown) {
  const Environment variables = {{kSecretVariable, "hunter2"}};
  expect_error(ErrorKind::config, {"TERRACE_SECRET", "7 bytes", "at least 16", "openssl rand"},
               [&] { secret_of(variables); });
  try {
    secret_of(variables);
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("hunter2"), std::string::npos);
  }
}

TEST(RunSecret, IsDrawnAnewEachTime) {
  EXPECT_NE(new_nonce(), new_nonce());
  EXPECT_NE(new_secret_text(), new_secret_text());
  EXPECT_EQ(new_secret_text().size(), 64u);
}

}  // namespace
}  // namespace terrace::run_secret_test
