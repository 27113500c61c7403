#include <terrace/runtime/config/name_pattern.h>

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace terrace::name_pattern_test {
namespace {

// The definition, letter by letter.
bool plainly(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') {
    for (size_t taken = 0; taken <= name.size(); ++taken)
      if (plainly(pattern.substr(1), name.substr(taken))) return true;
    return false;
  }
  return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) &&
         plainly(pattern.substr(1), name.substr(1));
}

TEST(NamePattern, MatchesWholeNamesWithStarsAcrossDots) {
  EXPECT_TRUE(matches_pattern("*", "transformer.wte.weight"));
  EXPECT_TRUE(matches_pattern("*.q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(matches_pattern("h.?.attn.*", "h.3.attn.c_attn.weight"));
  EXPECT_TRUE(matches_pattern("", ""));
  EXPECT_FALSE(matches_pattern("h.?.attn.*", "h.13.attn.c_attn.weight"));
  EXPECT_FALSE(matches_pattern("q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(matches_pattern("*.q_proj", "model.q_proj.weight"));
  EXPECT_FALSE(matches_pattern("", "a"));
}

TEST(NamePattern, TakesOneCharacterOfASet) {
  EXPECT_TRUE(matches_pattern("h.[012].*", "h.1.ln"));
  EXPECT_FALSE(matches_pattern("h.[012].*", "h.3.ln"));
  EXPECT_TRUE(matches_pattern("h.[0-24x].ln", "h.2.ln"));
  EXPECT_TRUE(matches_pattern("h.[0-24x].ln", "h.4.ln"));
  EXPECT_FALSE(matches_pattern("h.[0-24x].ln", "h.3.ln"));
  EXPECT_FALSE(matches_pattern("h.[0-2].ln", "h.12.ln"));
  EXPECT_TRUE(matches_pattern("*[!0-2]", "h.3"));
  EXPECT_FALSE(matches_pattern("*[!0-2]", "h.2"));
  EXPECT_TRUE(matches_pattern("a[-]b", "a-b"));
  EXPECT_TRUE(matches_pattern("a[]]b", "a]b"));
  EXPECT_TRUE(matches_pattern("a[0", "a[0"));  // closed by nothing
  EXPECT_EQ(pattern_distance("h.[012].*", "h.3.ln"), 1u);
}

TEST(NamePattern, AgreesWithItsDefinition) {
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::string pattern;
    std::string name;
    for (uint32_t i = random() % 7; i > 0; --i) pattern += "ab*?"[random() % 4];
    for (uint32_t i = random() % 8; i > 0; --i) name += "ab"[random() % 2];
    ASSERT_EQ(matches_pattern(pattern, name), plainly(pattern, name)) << pattern << " and " << name;
    ASSERT_EQ(pattern_distance(pattern, name) == 0, plainly(pattern, name)) << pattern << " and " << name;
  }
}

TEST(NamePattern, CountsTheChangesThatWouldMakeAMatch) {
  EXPECT_EQ(pattern_distance("*.attm.*", "h.0.attn.c_attn.weight"), 1u);
  EXPECT_EQ(pattern_distance("wte", "wte.weight"), 7u);
  EXPECT_EQ(pattern_distance("", "abc"), 3u);
  EXPECT_EQ(pattern_distance("abc", ""), 3u);
}

TEST(NamePattern, NeedsOneOfAListToMatch) {
  const std::vector<std::string> patterns = {"wte*", "*.bias"};
  EXPECT_TRUE(matches_any(patterns, "wte.weight"));
  EXPECT_TRUE(matches_any(patterns, "h.0.bias"));
  EXPECT_FALSE(matches_any(patterns, "h.0.weight"));
  EXPECT_FALSE(matches_any({}, "h.0.weight"));
}

}  // namespace
}  // namespace terrace::name_pattern_test
