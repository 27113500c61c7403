#include <terrace/base/text/json_writer.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::json_writer_test {
namespace {

std::string item(const JsonValue& value) {
  JsonWriter json;
  return json.value(value).take();
}

TEST(JsonWriter, WritesOneLineWithASpaceAfterColonsAndCommas) {
  JsonWriter json;
  json.begin_object().members({{"step", 3}, {"loss", 2.5}}).list("folders", {"a", "b"});
  json.object("time", {{"ns", 7}}).begin_list("rows").list({"x", nullptr}).object({}).end().end();
  EXPECT_EQ(
      json.take(),
      R"({"step": 3, "loss": 2.5, "folders": ["a", "b"], "time": {"ns": 7}, "rows": [["x", null], {}]})");
}

TEST(JsonWriter, LeavesOutSpacesWhereItIsDense) {
  JsonWriter json({.dense = true});
  json.begin_object().member("a", 1).list("b", std::vector{1, 2}).end();
  EXPECT_EQ(json.take(), R"({"a":1,"b":[1,2]})");
}

TEST(JsonWriter, PutsTheItemsOfAContainerOnLinesOfTheirOwn) {
  JsonWriter json;
  json.begin_object(JsonLayout::lines).member("a", 1).object("one line", {{"b", 2}, {"c", 3}});
  json.list(
      "lines", std::vector{1, 2},
      [&](int i) {
        json.object({{"i", i}});
      },
      JsonLayout::lines);
  json.begin_list("empty", JsonLayout::lines).end();
  json.begin_object("inner", JsonLayout::lines).member("d", 4).end().end();
  EXPECT_EQ(json.take(), R"({
  "a": 1,
  "one line": {"b": 2, "c": 3},
  "lines": [
    {"i": 1},
    {"i": 2}
  ],
  "empty": [],
  "inner": {
    "d": 4
  }
})");
}

TEST(JsonWriter, BreaksALineBeforeAMemberAnItemAndAnEnd) {
  JsonWriter json;
  json.begin_object().member("a", 1).break_line(1).begin_list("b").break_line(2).value(2).value(3);
  json.break_line().end().end();
  EXPECT_EQ(json.take(), "{\"a\": 1,\n \"b\": [\n  2, 3\n]}");
}

TEST(JsonWriter, WritesWholeNumbersOfEverySize) {
  EXPECT_EQ(item(std::numeric_limits<uint64_t>::max()), "18446744073709551615");
  EXPECT_EQ(item(std::numeric_limits<int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(item(uint8_t{200}), "200");
  EXPECT_EQ(item(true), "true");
  EXPECT_EQ(item(false), "false");
}

TEST(JsonWriter, WritesADoubleAsTheShortestDecimalThatIsReadAsTheSame) {
  EXPECT_EQ(item(0.1), "0.1");
  EXPECT_EQ(item(1.0), "1");
  EXPECT_EQ(item(-0.0), "-0");
  EXPECT_EQ(item(1e300), "1e+300");
  for (const double value : {1.0 / 3, 5e-324, std::numeric_limits<double>::max(), 123456789.123456789})
    EXPECT_EQ(std::strtod(item(value).c_str(), nullptr), value);
}

TEST(JsonWriter, WritesAFixedNumberWithItsDecimals) {
  EXPECT_EQ(item(json_fixed(2.0 / 3, 3)), "0.667");
  EXPECT_EQ(item(json_fixed(1e15, 0)), "1000000000000000");
  EXPECT_EQ(item(json_fixed(1e300, 1)).size(), 303u) << "a number of any length";
}

TEST(JsonWriter, WritesNullForWhatIsNoNumberAndForWhatIsNotThere) {
  for (const double value :
       {std::nan(""), std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(item(value), "null");
    EXPECT_EQ(item(json_fixed(value, 6)), "null");
  }
  EXPECT_EQ(item(std::optional<uint64_t>()), "null");
  EXPECT_EQ(item(std::optional<uint64_t>(5)), "5");
  EXPECT_EQ(item(std::optional(std::nan(""))), "null");
  EXPECT_EQ(item(json_text_or_null("")), "null");
  EXPECT_EQ(item(json_text_or_null("a")), R"("a")");
}

TEST(JsonWriter, EscapesTextsAndKeys) {
  EXPECT_EQ(item("a\"b\\c\nd\x7f"), R"("a\"b\\c\u000ad\u007f")");
  EXPECT_EQ(item(std::string_view("a\0b", 3)), R"("a\u0000b")");
  EXPECT_EQ(item("Grüße/数据 😀"), "\"Grüße/数据 😀\"");
  EXPECT_EQ(item("a\xff\xe2\x80"
                 "b"),
            "\"a\uFFFD\uFFFD\uFFFDb\"")
      << "bytes that are no UTF-8";
  JsonWriter json;
  EXPECT_EQ(json.object({{"a\"", std::string("b")}}).take(), R"({"a\"": "b"})");
}

TEST(JsonWriter, CutsTextsThatAreTooLong) {
  EXPECT_EQ(json_quoted("abcdef", 3), R"("abc...")");
  EXPECT_EQ(json_quoted("abc", 3), R"("abc")");
  EXPECT_EQ(json_quoted("aüc", 2), R"("aü...")") << "never within a character";
  EXPECT_EQ(json_quoted("\n\n\n", 2), R"("\u000a\u000a...")") << "bytes of the text, not of its escapes";
  JsonWriter json({.longest_text_bytes = 3});
  json.object({{"a longer key", "abcdef"}, {"raw", json_raw("[1, 2, 3]")}});
  EXPECT_EQ(json.take(), R"({"a longer key": "abc...", "raw": [1, 2, 3]})");
}

TEST(JsonWriter, GoesOnWhenItsTextIsTakenAwayInBetween) {
  JsonWriter json;
  std::string whole;
  json.begin_list();
  for (int i = 0; i < 3; ++i) {
    json.value(i);
    whole += json.text();
    json.text().clear();
  }
  EXPECT_EQ(whole + json.end().take(), "[0, 1, 2]");
}

TEST(JsonWriterDeathTest, EndsTheProgramWhereTheDocumentWouldBeWrong) {
  EXPECT_DEATH(JsonWriter().begin_object().value(1), "an item without key");
  EXPECT_DEATH(JsonWriter().begin_list().member("a", 1), "a member in a list");
  EXPECT_DEATH(JsonWriter().value(1).value(2), "a document is one value");
  EXPECT_DEATH(JsonWriter().end(), "nothing to end");
  EXPECT_DEATH(JsonWriter().begin_list().take(), "not complete");
  const auto deep = [] {
    JsonWriter json;
    for (size_t i = 0; i <= JsonWriter::kDeepest; ++i) json.begin_list();
  };
  EXPECT_DEATH(deep(), "containers in one another");
}

}  // namespace
}  // namespace terrace::json_writer_test
