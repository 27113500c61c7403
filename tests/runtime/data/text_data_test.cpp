#include <terrace/runtime/data/text_data.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <terrace/base/error.h>

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TextDataTest : public testing::Test {
 protected:
  TextDataTest() {
    static int count = 0;
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("text_data_" + std::to_string(::getpid()) + "_" + std::to_string(++count));
    std::filesystem::create_directories(folder_);
  }
  ~TextDataTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, const std::string& content) const {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  // Bytes that tell their place: the alphabet over and over, with a digit every 26.
  static std::string numbered(size_t size) {
    std::string text;
    for (size_t i = 0; i < size; ++i) text += static_cast<char>('!' + i % 90);
    return text;
  }
  static std::string problem(const std::filesystem::path& path, TextDataOptions options, ErrorKind kind) {
    try {
      TextData(path, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind);
      EXPECT_FALSE(error.parts().advice.empty());
      EXPECT_FALSE(error.parts().subject.empty());
      return error.parts().reason;
    }
    return "no problem";
  }
  static std::string all_of(const TextFiles& files) {
    std::string text(files.byte_count(), '?');
    files.read(0, {reinterpret_cast<uint8_t*>(text.data()), text.size()});
    return text;
  }

  std::filesystem::path folder_;
};

using TextFilesTest = TextDataTest;

TEST_F(TextFilesTest, JoinsTheTextFilesOfAFolderInTheOrderOfTheirPaths) {
  write("b.txt", "second ");
  write("a/z.txt", "first ");
  write("c/d/e.txt", "third");
  write("empty.txt", "");
  const TextFiles files(folder_);
  EXPECT_EQ(all_of(files), "first second third");
  EXPECT_EQ(files.file_count(), 3u);
  EXPECT_EQ(files.description(), "3 files, 18 B");
}

TEST_F(TextFilesTest, LeavesOutBinaryAndHiddenFilesAndCountsThem) {
  write("text.txt", "h\xC3\xA9llo\tworld\r\n");
  write("latin1.txt", "caf\xE9");
  write("image.png", std::string("\x89PNG\r\n\x1A\n\0\0\0\rIHDR", 16));
  write("noise.bin", "\x01\x02\x03\x04 abc");
  write("one_nul.txt", std::string(500, 'a') + '\0' + std::string(500, 'a'));
  write(".git/config", "hidden");
  write("sub/.cache", "hidden");
  const TextFiles files(folder_);
  EXPECT_EQ(files.file_count(), 2u);
  EXPECT_EQ(files.binary_count(), 3u);
  EXPECT_EQ(files.hidden_count(), 2u);
  EXPECT_EQ(files.description(), "2 files, 18 B (left out: 3 binary, 2 hidden)");
}

TEST_F(TextFilesTest, ReadsAnyPieceAcrossFiles) {
  std::string whole;
  for (int i = 0; i < 5; ++i) {
    const std::string content = numbered(static_cast<size_t>(7 + 3 * i));
    write("f" + std::to_string(i), content);
    whole += content;
  }
  const TextFiles files(folder_);
  ASSERT_EQ(files.byte_count(), whole.size());
  for (size_t begin = 0; begin <= whole.size(); ++begin) {
    for (size_t count = 0; begin + count <= whole.size(); ++count) {
      std::string piece(count, '?');
      files.read(begin, {reinterpret_cast<uint8_t*>(piece.data()), count});
      ASSERT_EQ(piece, whole.substr(begin, count)) << begin;
    }
  }
}

TEST_F(TextFilesTest, FollowsLinksToFilesAndReportsThoseThatLeadNowhere) {
  const auto target = write("real/one.txt", "x");
  std::filesystem::create_directories(folder_ / "links");
  std::filesystem::create_symlink(target, folder_ / "links/one.txt");
  EXPECT_EQ(TextFiles(folder_ / "links").byte_count(), 1u);
  std::filesystem::create_symlink(folder_ / "gone", folder_ / "links/two.txt");
  EXPECT_EQ(problem(folder_ / "links", {.context = 1}, ErrorKind::io), "the link leads nowhere");
}

TEST_F(TextFilesTest, TellsOtherDataByTheFingerprint) {
  write("a/x.txt", "some text");
  write("b/x.txt", "some text");
  const uint64_t first = TextFiles(folder_ / "a").fingerprint();
  EXPECT_EQ(TextFiles(folder_ / "b").fingerprint(), first);  // the same files in another place
  write("b/x.txt", "some test");
  EXPECT_NE(TextFiles(folder_ / "b").fingerprint(), first);
  write("a/y.txt", "more");
  EXPECT_NE(TextFiles(folder_ / "a").fingerprint(), first);
}

TEST_F(TextFilesTest, ReportsAFileThatShrinksDuringTheRun) {
  const auto path = write("a.txt", numbered(100));
  const TextFiles files(path);
  std::filesystem::resize_file(path, 50);
  std::vector<uint8_t> bytes(100);
  try {
    files.read(0, bytes);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::io);
    EXPECT_THAT(error.what(), HasSubstr("it had 100 bytes when the run began"));
  }
}

TEST_F(TextDataTest, SaysWhatIsWrongWithDataThatCannotBeUsed) {
  const TextDataOptions options = {.context = 8};
  EXPECT_THAT(problem(folder_ / "missing", options, ErrorKind::io), HasSubstr("No such file or directory"));
  EXPECT_EQ(problem(folder_, options, ErrorKind::config),
            "there is no text in it (left out: 0 binary, 0 hidden, 0 empty)");
  EXPECT_EQ(problem("/dev/null", options, ErrorKind::config), "it is neither a regular file nor a folder");
  EXPECT_EQ(problem(write("empty", ""), options, ErrorKind::config), "it is empty");
  EXPECT_EQ(problem(write("binary", std::string(64, '\0')), options, ErrorKind::config),
            "it is a binary file");
  EXPECT_EQ(problem(write("short", numbered(17)), options, ErrorKind::config),
            "it has 17 bytes of text; samples of 8 tokens need at least 18, half of them for validation");
  EXPECT_EQ(problem(write("short", numbered(18)), options, ErrorKind::config), "no problem");
  EXPECT_EQ(problem(write("short", numbered(8)), {.context = 8, .validation_fraction = 0}, ErrorKind::config),
            "it has 8 bytes of text; samples of 8 tokens need at least 9");
  EXPECT_EQ(problem(write("short", numbered(9)), {.context = 8, .validation_fraction = 0}, ErrorKind::config),
            "no problem");
}

TEST_F(TextDataTest, SaysThatAFileMayNotBeRead) {
  const auto path = write("secret/a.txt", numbered(100));
  std::filesystem::permissions(path, std::filesystem::perms::none);
  if (::access(path.c_str(), R_OK) == 0) GTEST_SKIP() << "this user may read everything";
  EXPECT_THAT(problem(folder_, {.context = 8}, ErrorKind::io), HasSubstr("Permission denied"));
}

TEST_F(TextDataTest, KeepsTheLastPartForValidation) {
  const auto path = write("a.txt", numbered(1000));
  const TextData data(path, {.context = 10, .validation_fraction = 0.2});
  EXPECT_EQ(data.train_byte_count(), 800u);
  EXPECT_EQ(data.validation_byte_count(), 200u);
  EXPECT_EQ(TextData(path, {.context = 10, .validation_fraction = 0}).validation_byte_count(), 0u);
  EXPECT_EQ(TextData(path, {.context = 99, .validation_fraction = 0.001}).validation_byte_count(),
            100u);  // one sample
  EXPECT_EQ(TextData(path, {.context = 99, .validation_fraction = 0.99}).train_byte_count(), 100u);
}

TEST_F(TextDataTest, GivesEveryTokenTheOneAfterItAsTarget) {
  const std::string text = numbered(500);
  const TextData data(write("a.txt", text), {.context = 16});
  std::vector<int32_t> tokens(48), targets(48);
  data.fill(3, 1, tokens, targets);
  for (uint32_t sample = 0; sample < 3; ++sample) {
    const uint64_t begin = data.window_begin(3, 1, sample);
    ASSERT_LE(begin + 17, data.train_byte_count());
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(tokens[sample * 16 + i], text[begin + i]);
      EXPECT_EQ(targets[sample * 16 + i], text[begin + i + 1]);
    }
  }
}

TEST_F(TextDataTest, ReadsBytesAsUnsignedTokens) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "\xFE\xFF";
  const TextData data(write("a.txt", text), {.context = 1});
  std::vector<int32_t> tokens(1), targets(1);
  data.fill(0, 0, tokens, targets);
  EXPECT_EQ(tokens[0] + targets[0], 0xFE + 0xFF);
}

TEST_F(TextDataTest, DrawsTheSameWindowsFromTheSameSeedStepAndMicroBatch) {
  const auto path = write("a.txt", numbered(5000));
  const TextData data(path, {.context = 8, .seed = 1});
  const TextData again(path, {.context = 8, .seed = 1});
  const TextData other(path, {.context = 8, .seed = 2});
  std::vector<uint64_t> first, second, third;
  for (uint64_t step = 0; step < 20; ++step) {
    first.push_back(data.window_begin(step, 0, 0));
    second.push_back(again.window_begin(step, 0, 0));
    third.push_back(other.window_begin(step, 0, 0));
  }
  EXPECT_EQ(first, second);
  EXPECT_NE(first, third);
  const std::set<uint64_t> different = {data.window_begin(7, 0, 0), data.window_begin(8, 0, 0),
                                        data.window_begin(7, 1, 0), data.window_begin(7, 0, 1),
                                        data.window_begin(7 + (uint64_t{1} << 32), 0, 0)};
  EXPECT_EQ(different.size(), 5u);
  // Fixed for good: a resumed run of a later version sees the same data.
  EXPECT_THAT((std::vector<uint64_t>{data.window_begin(0, 0, 0), data.window_begin(1, 2, 3)}),
              ElementsAre(4202, 4365));
}

TEST_F(TextDataTest, DrawsWindowsFromTheWholeTrainingPart) {
  const TextData data(write("a.txt", numbered(100)), {.context = 8, .validation_fraction = 0.5});
  std::vector<uint32_t> counts(data.train_byte_count() - 8);
  const uint32_t draws = 42'000;
  for (uint64_t step = 0; step < draws; ++step) {
    const uint64_t begin = data.window_begin(step, 0, 0);
    ASSERT_LT(begin, counts.size());
    ++counts[begin];
  }
  ASSERT_EQ(counts.size(), 42u);
  for (const uint32_t count : counts) EXPECT_NEAR(count, 1000, 200);  // six standard deviations
}

TEST_F(TextDataTest, SpreadsValidationWindowsOverTheWholePart) {
  const std::string text = numbered(1000);
  const TextData data(write("a.txt", text), {.context = 9, .validation_fraction = 0.1});
  ASSERT_EQ(data.validation_byte_count(), 100u);
  std::vector<int32_t> tokens(90), targets(90);
  data.fill_validation(0, 10, tokens, targets);
  for (size_t sample = 0; sample < 10; ++sample) {
    const size_t begin = 900 + sample * 10;  // side by side
    for (size_t i = 0; i < 9; ++i) {
      EXPECT_EQ(tokens[sample * 9 + i], text[begin + i]);
      EXPECT_EQ(targets[sample * 9 + i], text[begin + i + 1]);
    }
  }
  std::vector<int32_t> part(18), part_targets(18);
  data.fill_validation(4, 10, part, part_targets);  // in pieces: the same
  EXPECT_EQ(part, std::vector<int32_t>(tokens.begin() + 36, tokens.begin() + 54));
  data.fill_validation(0, 1, std::span(part).first(9), std::span(part_targets).first(9));
  EXPECT_EQ(part[0], text[900]);
  std::vector<int32_t> many(9000), many_targets(9000);
  data.fill_validation(0, 1000, many, many_targets);
  EXPECT_EQ(many_targets.back(), text.back());
}

TEST_F(TextDataTest, KnowsTheLossOfAModelThatIgnoresContext) {
  // Training part: 150 a, 50 b. Validation part: 50 a, 50 b.
  std::string text =
      std::string(150, 'a') + std::string(50, 'b') + std::string(50, 'a') + std::string(50, 'b');
  const auto path = write("a.txt", text);
  const TextData data(path, {.context = 8, .validation_fraction = 1.0 / 3});
  ASSERT_EQ(data.train_byte_count(), 200u);
  EXPECT_NEAR(data.unigram_loss(), -0.5 * std::log(151.0 / 456) - 0.5 * std::log(51.0 / 456), 1e-12);
  const TextData alone(path, {.context = 8, .validation_fraction = 0});
  EXPECT_NEAR(alone.unigram_loss(), -2.0 / 3 * std::log(201.0 / 556) - 1.0 / 3 * std::log(101.0 / 556),
              1e-12);
}

TEST_F(TextDataTest, CountsAllBytesOfDataLargerThanItsBuffer) {
  const auto path = write("a.txt", std::string(2'500'000, 'a') + std::string(500'000, 'b'));
  const TextData data(path, {.context = 8, .validation_fraction = 0});
  const double a = 2'500'001.0 / 3'000'256, b = 500'001.0 / 3'000'256;
  EXPECT_NEAR(data.unigram_loss(), -(5.0 / 6 * std::log(a) + 1.0 / 6 * std::log(b)), 1e-9);
}

}  // namespace
}  // namespace terrace
