#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <string>

#include <terrace/aio/engine.h>
#include <terrace/memory/space/eviction_policy.h>
#include <terrace/runtime/config/schema/schema.h>

namespace terrace::known_keys_test {
namespace {

// Every key that DeepSpeed 0.19 reads or documents, with the spellings that circulate, and the keys of our
// own, each with what becomes of it. Written down apart from the schema, so that a row that is lost there, or
// that changes its class, is missed here.
std::map<std::string, std::string> known_keys() {
  const std::filesystem::path path = std::filesystem::path(__FILE__).parent_path() / "known_keys.txt";
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::map<std::string, std::string> keys;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string key;
    words >> key >> std::ws;
    std::string effect;
    std::getline(words, effect);
    EXPECT_TRUE(keys.emplace(key, effect).second) << key << " has two classes";
  }
  return keys;
}

TEST(Schema, GivesEveryKeyThatPeopleUseItsOneClass) {
  const auto keys = known_keys();
  EXPECT_GT(keys.size(), 300u);
  for (const auto& [path, effect] : keys) {
    const SchemaKey* row = find_path(path);
    ASSERT_NE(row, nullptr) << path;
    EXPECT_EQ(name_of(row->effect), effect) << path;
  }
}

TEST(Schema, HasNoKeyThatTheListOfThisTestLacks) {
  const auto keys = known_keys();
  for (const SchemaKey& row : schema()) EXPECT_TRUE(keys.contains(row.path())) << row.path();
}

template <typename Kind>
std::string choices_of(std::string choices, std::span<const Kind> kinds) {
  for (const Kind kind : kinds) choices.append(choices.empty() ? "" : "|").append(name_of(kind));
  return choices;
}

TEST(Schema, OffersEveryPolicyAndEveryEngine) {
  EXPECT_EQ(find_path("terrace.policy")->limits.allowed, choices_of("", policy_kinds()));
  EXPECT_EQ(find_path("terrace.engine")->limits.allowed, choices_of("auto", io::engine_kinds()));
}

}  // namespace
}  // namespace terrace::known_keys_test
