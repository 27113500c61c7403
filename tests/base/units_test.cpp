#include <terrace/base/units.h>

#include <gtest/gtest.h>

#include <string>

#include <terrace/base/duration_text.h>
#include <terrace/base/error.h>

namespace terrace::units_test {
namespace {

TEST(ParseBytes, ReadsPowersOf1024And1000) {
  EXPECT_EQ(parse_bytes("4096", "x"), 4096u);
  EXPECT_EQ(parse_bytes("4096B", "x"), 4096u);
  EXPECT_EQ(parse_bytes("64KiB", "x"), 64 * kKiB);
  EXPECT_EQ(parse_bytes("256 MiB", "x"), 256 * kMiB);
  EXPECT_EQ(parse_bytes("1.5GiB", "x"), 3 * kGiB / 2);
  EXPECT_EQ(parse_bytes("2TiB", "x"), 2048 * kGiB);
  EXPECT_EQ(parse_bytes("3PiB", "x"), 3 * kGiB * kMiB);
  EXPECT_EQ(parse_bytes("7EiB", "x"), 7 * kGiB * kGiB);
  EXPECT_EQ(parse_bytes("2PB", "x"), 2'000'000'000'000'000u);
  EXPECT_EQ(parse_bytes("2GB", "x"), 2'000'000'000u);
  EXPECT_EQ(parse_bytes("3kb", "x"), 3000u);
  EXPECT_EQ(parse_bytes("1g", "x"), kGiB);
  EXPECT_EQ(parse_bytes("8gib", "x"), 8 * kGiB);
  EXPECT_EQ(parse_bytes("0", "x"), 0u);
}

TEST(ParseBytes, RejectsWhatIsNoSizeAndNamesItsPlace) {
  for (const char* text : {"", "GiB", "-1GiB", "4Gi", "4XiB", "1e300", "9.3e18", "9EiB", "1ZiB", "nan", "inf",
                           "4GiB extra", " 4GiB"}) {
    try {
      parse_bytes(text, "terrace.host_budget");
      ADD_FAILURE() << '"' << text << "\" was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      EXPECT_NE(std::string(error.what()).find("terrace.host_budget"), std::string::npos) << error.what();
    }
  }
}

TEST(FormatBytes, TakesTheLargestUnitThatFits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(kKiB), "1.00 KiB");
  EXPECT_EQ(format_bytes(1536 * kMiB), "1.50 GiB");
  EXPECT_EQ(format_bytes(24 * kGiB), "24.0 GiB");
  EXPECT_EQ(format_bytes(5000 * kGiB), "4.88 TiB");
  EXPECT_EQ(format_bytes(uint64_t{5000} * 1024 * kGiB), "4.88 PiB");
  EXPECT_EQ(format_bytes(UINT64_MAX), "16.0 EiB");
}

TEST(FormatBytes, IsReadBackByParseBytes) {
  for (const uint64_t bytes : {uint64_t{12}, 64 * kKiB, 768 * kKiB, 16 * kMiB, 3 * kGiB / 2}) {
    EXPECT_EQ(parse_bytes(format_bytes(bytes), "x"), bytes);
  }
}

TEST(FormatDuration, KeepsThreeDigits) {
  EXPECT_EQ(format_duration(999), "999 ns");
  EXPECT_EQ(format_duration(1500), "1.5 us");
  EXPECT_EQ(format_duration(1'234'567), "1.23 ms");
  EXPECT_EQ(format_duration(2'500'000'000), "2.5 s");
  EXPECT_EQ(format_duration(99'900'000'000), "99.9 s");
  EXPECT_EQ(format_duration(127'000'000'000), "2 min 07 s");
  EXPECT_EQ(format_seconds(-1), "0 s");
  EXPECT_EQ(format_seconds(59.4), "59 s");
  EXPECT_EQ(format_seconds(3599.6), "1 h 00 min");
  EXPECT_EQ(format_seconds(126000), "1 d 11 h");
}

TEST(Rounding, GoesUpToTheNextMultiple) {
  static_assert(round_up(0, 4096) == 0 && round_up(1, 4096) == 4096 && round_up(4096, 4096) == 4096);
  static_assert(divide_up(0, 8) == 0 && divide_up(1, 8) == 1 && divide_up(17, 8) == 3);
  EXPECT_EQ(round_up(3 * kMiB, 2 * kMiB), 4 * kMiB);
}

}  // namespace
}  // namespace terrace::units_test
