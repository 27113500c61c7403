#include <terrace/base/text/digits.h>

#include <gtest/gtest.h>

namespace terrace::digits_test {
namespace {

TEST(NumberOfDigits, IsThatOfTheWholeText) {
  EXPECT_EQ(number_of_digits("0"), 0u);
  EXPECT_EQ(number_of_digits("0012"), 12u);
  EXPECT_EQ(number_of_digits("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(number_of_digits("ff", 16), 255u);
}

TEST(NumberOfDigits, IsNoneWhereAnythingElseStands) {
  for (const char* text : {"", " 1", "1 ", "-1", "+1", "1.0", "1e3", "0x1", "ff", "18446744073709551616"})
    EXPECT_FALSE(number_of_digits(text)) << text;
}

TEST(NumberOfDigits, FitsItsType) {
  EXPECT_EQ(number_of_digits<uint32_t>("4294967295"), UINT32_MAX);
  EXPECT_FALSE(number_of_digits<uint32_t>("4294967296"));
  EXPECT_FALSE(number_of_digits<uint8_t>("256"));
}

}  // namespace
}  // namespace terrace::digits_test
