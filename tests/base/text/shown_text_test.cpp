#include <terrace/base/text/shown_text.h>

#include <gtest/gtest.h>

#include <string_view>

namespace terrace::shown_text_test {
namespace {

TEST(ShownText, LeavesWordsOfEveryLanguageAsTheyAre) {
  for (const char* text : {"", "model.safetensors", "Grüße/数据 😀.txt", R"(C:\u001b)"}) {
    EXPECT_EQ(shown_line(text), text);
    EXPECT_EQ(shown_message(text), text);
    EXPECT_EQ(shown_lines(text), text);
  }
}

TEST(ShownText, EscapesWhatATerminalObeysAsJsonDoes) {
  EXPECT_EQ(shown_line("a\x1b[2J\r\x07\x7f"), R"(a\u001b[2J\u000d\u0007\u007f)");
  EXPECT_EQ(shown_line(std::string_view("a\0b", 3)), R"(a\u0000b)");
  EXPECT_EQ(shown_line("a\u009b2J"), R"(a\u009b2J)") << "a control of two bytes";
  EXPECT_EQ(shown_line("gpt\u202Egpj.exe\u2066\u200B\uFEFF"), R"(gpt\u202egpj.exe\u2066\u200b\ufeff)");
  EXPECT_EQ(shown_line("\U000E0041"), R"(\udb40\udc41)");
}

TEST(ShownText, EscapesBytesThatAreNoUtf8) {
  EXPECT_EQ(shown_line("a\x9b"
                       "2J\xff"),
            R"(a\x9b2J\xff)");
  EXPECT_EQ(shown_line("\xE2\x80"), R"(\xe2\x80)");
}

TEST(ShownText, KeepsNewlinesWhereNoneCanForgeALine) {
  EXPECT_EQ(shown_line("a\n  b\tc"), R"(a\u000a  b\u0009c)");
  EXPECT_EQ(shown_message("failed\n  do this\nterrace: saved"), "failed\n  do this\\u000aterrace: saved");
  EXPECT_EQ(shown_lines("a\n\tb\r\n"), "a\n\tb\\u000d\n");
}

TEST(ShownText, StaysWhenItIsMadeAgain) {
  const std::string once = shown_message("\x1b[2J\nx\x9b\u202E\n  advice");
  EXPECT_EQ(shown_message(once), once);
}

}  // namespace
}  // namespace terrace::shown_text_test
