#include <terrace/runtime/config/json/json_document.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include <terrace/base/error.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace::json_document_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string problem(std::string_view text) {
  try {
    parse_json(text, "x.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_FALSE(error.parts().advice.empty());
    return error.parts().what_failed.in(Door::cpp);
  }
  return "no problem";
}

TEST(JsonDocument, ReadsWhatPeopleWrite) {
  const JsonNode root = parse_json(
      "// first\n{\"b\": [1, 2.5e1, true,], /* so */ \"a\": {\"t\": \"x\\u00e4\"}, \"n\": null,}\n", "x");
  ASSERT_EQ(root.members.size(), 3u);
  EXPECT_EQ(root.members[0].key, "b");  // the order of the file
  EXPECT_EQ(root.members[0].origin, "x:2:2");
  EXPECT_EQ(root.members[0].value.origin, "x:2:7");
  EXPECT_EQ(root.members[0].value.items[1].number, 25.0);
  EXPECT_EQ(root.members[1].value.members[0].value.text, "x\xC3\xA4");
  EXPECT_TRUE(root.members[2].value.is(JsonNode::Kind::null));
  EXPECT_EQ(json_text(root), "{\"b\": [1, 2.5e1, true], \"a\": {\"t\": \"x\xC3\xA4\"}, \"n\": null}");
}

TEST(JsonDocument, TakesCommentsBetweenAnyTwoTokens) {
  const JsonNode root =
      parse_json("/*1*/{/*2*/\"a\"/*3*/:/*4*/[/*5*/1/*6*/,/*7*/2/*8*/,//9\n]/*10*/,//11\r\n}//12", "x");
  ASSERT_EQ(root.members.size(), 1u);
  EXPECT_EQ(root.members[0].origin, "x:1:12");
  EXPECT_EQ(root.members[0].value.items.size(), 2u);
  EXPECT_EQ(parse_json("{\"a\": \"// no /* comment */ \\\" //\"}", "x").members[0].value.text,
            "// no /* comment */ \" //");
}

TEST(JsonDocument, SaysWhereAKeyIsRepeated) {
  EXPECT_EQ(problem("{\n  \"a\": 1,\n  \"a\": 2\n}"), "x.json:3:3: duplicate key \"a\"");
  EXPECT_EQ(problem("{\"s\": {\"a\": 1, \"b\": 1, \"a\": 2}}"), "x.json:1:24: duplicate key \"a\"");
}

TEST(JsonDocument, SaysWhereTheTextIsBroken) {
  for (const char* blank : {"", " \n", "// nothing\n"}) EXPECT_EQ(problem(blank), "x.json:1:1: it is empty");
  EXPECT_EQ(problem("{\"a\":"), "x.json:1:6: not valid JSON: the text ends too early");
  EXPECT_THAT(problem("{\n\"a\" 1}"), StartsWith("x.json:2:5: not valid JSON: a colon is expected here"));
  EXPECT_EQ(problem("{\"a\": tru}"),
            "x.json:1:7: not valid JSON: \"tru\" is none of true, false and null, and texts stand in double "
            "quotes");
  EXPECT_EQ(problem("{\"a\": True}"),
            "x.json:1:7: not valid JSON: True is Python's; JSON writes true, false and null");
  EXPECT_EQ(problem("{\"a\": NaN}"), "x.json:1:7: not valid JSON: NaN is no number that JSON has");
  EXPECT_EQ(problem("{a: 1}"), "x.json:1:2: not valid JSON: a key stands in double quotes: \"a\"");
  EXPECT_EQ(problem("{'a': 1}"),
            "x.json:1:2: not valid JSON: texts stand in double quotes, not in single ones");
  EXPECT_THAT(problem("{\"a\": 1} {"), HasSubstr("there is more after the end"));
  EXPECT_THAT(problem("{\"a\": \"no end"), HasSubstr("not valid JSON"));
  EXPECT_EQ(problem("{\"a\": 1, /* no end"), "x.json:1:10: not valid JSON: a comment that does not end");
  EXPECT_THAT(problem("{\"a\": \"\\ud800\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(problem("{\"a\": \"\\x\"}"), HasSubstr("not valid JSON"));
}

// As in Hjson, which DeepSpeed reads its files with.
TEST(JsonDocument, NeedsNoCommaWhereALineEnds) {
  const JsonNode root = parse_json(
      "{\n  \"a\": 1\n  \"b\": {\"c\": true}  // so\n\n  \"d\": [\n1\n\"x\"\n[2]\n]\n  \"e\": null\n}", "x");
  EXPECT_EQ(json_text(root), "{\"a\": 1, \"b\": {\"c\": true}, \"d\": [1, \"x\", [2]], \"e\": null}");
  EXPECT_EQ(root.members[1].origin, "x:3:3");
  EXPECT_EQ(root.members[3].origin, "x:10:3");
  EXPECT_THAT(problem("{\"a\": 1 \"b\": 2}"), StartsWith("x.json:1:9: not valid JSON"));
  EXPECT_THAT(problem("{\n\"a\"\n1}"), StartsWith("x.json:2:4: not valid JSON: a colon is expected here"));
}

TEST(JsonDocument, CountsCharactersAndEveryKindOfLineEnd) {
  EXPECT_EQ(problem("{\"\xC3\xA4\xF0\x9F\x98\x80\": tru}"), problem("{\"ab\": tru}"));
  EXPECT_THAT(problem("{\r\r\"a\": tru}"), StartsWith("x.json:3:6: "));
  EXPECT_THAT(problem("{\r\n\"a\": tru}"), StartsWith("x.json:2:6: "));
}

// Files of programs may be one line, of whatever length.
TEST(JsonDocument, CountsCharactersInLinesOfAnyLength) {
  std::string text = "{";
  size_t characters = 1;
  for (int i = 0; i < 400; ++i) {
    const std::string key = fmt::format("\"\xC3\xBC{}\": 1, ", i);
    text += key;
    characters += key.size() - 1;
    if (i % 50 == 0) {
      EXPECT_THAT(problem(text + "tru}"), StartsWith(fmt::format("x.json:1:{}: ", characters + 1)));
    }
  }
  EXPECT_GT(characters, 4000u);
}

TEST(JsonDocument, TakesNumberSignsForComments) {
  const JsonNode root = parse_json("# first\n{ # \"b\": 2\n  \"a\": \"#1\", #\n}#", "x");
  ASSERT_EQ(root.members.size(), 1u);
  EXPECT_EQ(root.members[0].origin, "x:3:3");
  EXPECT_EQ(root.members[0].value.text, "#1");
}

TEST(JsonDocument, TakesNothingHalfWrittenForANumber) {
  for (const std::string_view number : {"-", "01", "-01", "1.", ".5", "1e", "1e+", "+1", "0x10", "1e999",
                                        "-1e999", "NaN", "Infinity", "1.2.3", "1e-999"}) {
    EXPECT_NE(problem("{\"a\": " + std::string(number) + "}"), "no problem") << number;
  }
  for (const std::string_view number :
       {"0", "-0", "10", "0.5", "1e5", "1E+5", "1.5e-5", "99999999999999999999999"})
    EXPECT_EQ(problem("{\"a\": " + std::string(number) + "}"), "no problem") << number;
}

TEST(JsonDocument, RefusesTextThatIsNotUtf8) {
  EXPECT_EQ(problem("{\"a\": \"\xFF\"}"), "x.json:1:8: the file is not UTF-8");
  EXPECT_EQ(problem("\xFF\xFE{\0}\0"), "x.json:1:1: the file is not UTF-8");
  EXPECT_THAT(problem("{\"\xC0\x80\": 1}"), HasSubstr("not UTF-8"));          // overlong
  EXPECT_THAT(problem("{\"\xED\xA0\x80\": 1}"), HasSubstr("not UTF-8"));      // a surrogate
  EXPECT_THAT(problem("{\"\xF4\x90\x80\x80\": 1}"), HasSubstr("not UTF-8"));  // above U+10FFFF
  EXPECT_THAT(problem("{\"\xE2\x82"), HasSubstr("not UTF-8"));                // cut
  EXPECT_EQ(problem("{\"\xF0\x9F\x98\x80 \xE2\x82\xAC\": 1}"), "no problem");
  EXPECT_EQ(problem(std::string_view("{\"a\": \"\0\"}", 10)), "x.json:1:8: a NUL byte");
}

TEST(JsonDocument, StopsAtDeepNesting) {
  EXPECT_EQ(problem(std::string(100'000, '[')), "x.json:1:65: brackets are nested more than 64 deep");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(problem(objects), HasSubstr("nested more than 64 deep"));
  EXPECT_EQ(problem(std::string(60, '[') + std::string(60, ']')), "no problem");
}

TEST(JsonDocument, FindsMembersAndWholeNumbers) {
  const JsonNode root =
      parse_json(R"({"a": 18446744073709551615, "b": -1, "c": 1.0, "d": "7", "e": [8]})", "x");
  ASSERT_NE(root.find("a"), nullptr);
  EXPECT_EQ(root.find("a")->whole_number(), UINT64_MAX);
  for (const char* key : {"b", "c", "d", "e"}) EXPECT_EQ(root.find(key)->whole_number(), std::nullopt) << key;
  EXPECT_EQ(root.find("f"), nullptr);
  EXPECT_EQ(root.find("e")->find("a"), nullptr) << "a list has no members";
}

// Whatever the bytes are, the answer is a configuration or an Error(config).
TEST(JsonDocument, SurvivesDamagedFiles) {
  const std::string whole =
      R"({"train_batch_size": 4, "bf16": {"enabled": "auto"}, /* c */ "zero_optimization": {"stage": 3,
    "offload_param": {"device": "nvme", "nvme_path": "/x", "buffer_size": 1e8}, "aio": {"thread_count": 2}}, // d
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95]}}, "terrace": {"device_memory": "1GiB"}})";
  std::mt19937 random(20240601);
  uint32_t refused_count = 0;
  const auto attempt = [&](const std::string& text) {
    try {
      parse_train_config(text, "x.json");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      ++refused_count;
    }
  };
  for (size_t length = 0; length < whole.size(); ++length) attempt(whole.substr(0, length));
  EXPECT_EQ(refused_count, whole.size());
  constexpr std::string_view alphabet = "{}[]\",:/*0123456789eE.-+ \n\\\xFF\x80tfn";
  for (int round = 0; round < 4000; ++round) {
    std::string damaged = whole;
    for (uint32_t change = random() % 4 + 1; change > 0; --change)
      damaged[random() % damaged.size()] = alphabet[random() % alphabet.size()];
    attempt(damaged);
  }
}

}  // namespace
}  // namespace terrace::json_document_test
