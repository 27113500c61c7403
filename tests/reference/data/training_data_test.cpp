#include <terrace/reference/data/training_data.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "reference/data/data_test_support.h"
#include "support/allocation_counter.h"

namespace terrace::training_data_test {
namespace {

using data_tests::DataFolder;
using data_tests::numbered;
using ::testing::HasSubstr;

class TrainingDataTest : public DataFolder {
 protected:
  static TrainingData open(const std::filesystem::path& path, const TrainingDataOptions& options) {
    return {open_tokens({{path}, 0}), options};
  }
  static std::string problem(const std::filesystem::path& path, const TrainingDataOptions& options) {
    return data_tests::problem_of(ErrorKind::config, [&] { open(path, options); });
  }
};

TEST_F(TrainingDataTest, SaysThatThereIsTooLittle) {
  EXPECT_EQ(problem(write("short", numbered(17)), {.context = 8}),
            "it has 17 tokens; samples of 8 tokens need at least 18, half of them for validation");
  EXPECT_EQ(problem(write("short", numbered(18)), {.context = 8}), "no problem");
  EXPECT_EQ(problem(write("short", numbered(8)), {.context = 8, .validation_fraction = 0}),
            "it has 8 tokens; samples of 8 tokens need at least 9");
  EXPECT_EQ(problem(write("short", numbered(9)), {.context = 8, .validation_fraction = 0}), "no problem");
}

TEST_F(TrainingDataTest, KeepsTheLastPartForValidation) {
  const auto path = write("a.txt", numbered(1000));
  const TrainingData data = open(path, {.context = 10, .validation_fraction = 0.2});
  EXPECT_EQ(data.train_token_count(), 800u);
  EXPECT_EQ(data.validation_token_count(), 200u);
  EXPECT_EQ(data.sample_count(), 79u);
  EXPECT_EQ(open(path, {.context = 10, .validation_fraction = 0}).validation_token_count(), 0u);
  EXPECT_EQ(open(path, {.context = 99, .validation_fraction = 0.001}).validation_token_count(),
            100u);  // one sample
  EXPECT_EQ(open(path, {.context = 99, .validation_fraction = 0.99}).train_token_count(), 100u);
}

TEST_F(TrainingDataTest, GivesEveryTokenTheOneAfterItAsTarget) {
  const std::string text = numbered(500);
  const TrainingData data = open(write("a.txt", text), {.context = 16});
  std::vector<int32_t> tokens(48), targets(48);
  data.fill(5, tokens, targets);
  for (uint32_t sample = 0; sample < 3; ++sample) {
    const uint64_t begin = data.sample_begin(5 + sample);
    ASSERT_LE(begin + 17, data.train_token_count());
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(tokens[sample * 16 + i], text[begin + i]);
      EXPECT_EQ(targets[sample * 16 + i], text[begin + i + 1]);
    }
  }
}

TEST_F(TrainingDataTest, SeesEveryTokenOncePerEpochButForTheLastFew) {
  const TrainingData data = open(write("a.txt", numbered(1000)), {.context = 7, .validation_fraction = 0});
  for (uint64_t epoch = 0; epoch < 2; ++epoch) {
    std::set<uint64_t> begins;
    for (uint64_t i = 0; i < data.sample_count(); ++i)
      begins.insert(data.sample_begin(epoch * data.sample_count() + i));
    EXPECT_EQ(begins.size(), 142u);  // (1000 - 1) / 7
    EXPECT_EQ(*begins.begin(), 0u);
    EXPECT_EQ(*begins.rbegin(), 141u * 7);
  }
}

TEST_F(TrainingDataTest, IsTheSameHoweverSamplesAreCutIntoMicroBatches) {
  const TrainingData data = open(write("a.txt", numbered(700)), {.context = 5, .seed = 11});
  constexpr size_t kSamples = 24;  // goes over the end of nothing, and once over an epoch below
  const auto first = static_cast<uint64_t>(data.sample_count() - 7);
  std::vector<int32_t> whole(kSamples * 5), whole_targets(kSamples * 5);
  data.fill(first, whole, whole_targets);
  for (const size_t micro_batch : {1, 2, 3, 4, 8, 12}) {
    std::vector<int32_t> all, tokens(micro_batch * 5), targets(micro_batch * 5);
    for (size_t sample = 0; sample < kSamples; sample += micro_batch) {
      data.fill(first + sample, tokens, targets);
      all.insert(all.end(), tokens.begin(), tokens.end());
    }
    EXPECT_EQ(all, whole) << micro_batch;
  }
}

TEST_F(TrainingDataTest, ReadsBytesAsUnsignedTokens) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "\xFE\xFF";
  const TrainingData data = open(write("a.txt", text), {.context = 1});
  std::vector<int32_t> tokens(1), targets(1);
  data.fill(0, tokens, targets);
  EXPECT_EQ(tokens[0] + targets[0], 0xFE + 0xFF);
}

TEST_F(TrainingDataTest, FillsWithoutAllocating) {
  const TrainingData data = open(write("a.txt", numbered(5000)), {.context = 32});
  std::vector<int32_t> tokens(128), targets(128);
  data.fill(0, tokens, targets);
  const uint64_t before = testing::allocations_of_this_thread();
  data.fill(4, tokens, targets);
  data.fill_validation(0, 4, tokens, targets);
  EXPECT_EQ(testing::allocations_of_this_thread(), before);
}

TEST_F(TrainingDataTest, SpreadsValidationWindowsOverTheWholePart) {
  const std::string text = numbered(1000);
  const TrainingData data = open(write("a.txt", text), {.context = 9, .validation_fraction = 0.1});
  ASSERT_EQ(data.validation_token_count(), 100u);
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

TEST_F(TrainingDataTest, KnowsTheLossOfAModelThatIgnoresContext) {
  // Training part: 150 a, 50 b. Validation part: 50 a, 50 b.
  const std::string text =
      std::string(150, 'a') + std::string(50, 'b') + std::string(50, 'a') + std::string(50, 'b');
  const auto path = write("a.txt", text);
  const TrainingData data = open(path, {.context = 8, .validation_fraction = 1.0 / 3});
  ASSERT_EQ(data.train_token_count(), 200u);
  EXPECT_NEAR(data.unigram_loss(), -0.5 * std::log(151.0 / 456) - 0.5 * std::log(51.0 / 456), 1e-12);
  const TrainingData alone = open(path, {.context = 8, .validation_fraction = 0});
  EXPECT_NEAR(alone.unigram_loss(), -2.0 / 3 * std::log(201.0 / 556) - 1.0 / 3 * std::log(101.0 / 556),
              1e-12);
}

TEST_F(TrainingDataTest, CountsAllTokensOfDataLargerThanItsBuffer) {
  const auto path = write("a.txt", std::string(2'500'000, 'a') + std::string(500'000, 'b'));
  const TrainingData data = open(path, {.context = 8, .validation_fraction = 0});
  const double a = 2'500'001.0 / 3'000'256, b = 500'001.0 / 3'000'256;
  EXPECT_NEAR(data.unigram_loss(), -(5.0 / 6 * std::log(a) + 1.0 / 6 * std::log(b)), 1e-9);
}

class TokenFilesTest : public TrainingDataTest {
 protected:
  static std::string packed(const std::vector<uint16_t>& tokens) {
    std::string bytes;
    for (const uint16_t token : tokens) {
      bytes += static_cast<char>(token & 0xFF);
      bytes += static_cast<char>(token >> 8);
    }
    return bytes;
  }
  static std::vector<int32_t> all_of(const TokenSource& source) {
    std::vector<int32_t> tokens(source.token_count());
    source.read(0, tokens);
    return tokens;
  }
};

TEST_F(TokenFilesTest, ReadsNumbersOfTwoBytesAcrossFiles) {
  const auto a = write("a.bin", packed({1, 50256, 3}));
  const auto b = write("b.bin", packed({4, 500}));
  const OpenTokens open = open_tokens({{a, b}, 50257});
  EXPECT_EQ(all_of(*open.train), (std::vector<int32_t>{1, 50256, 3, 4, 500}));
  EXPECT_EQ(open.validation, nullptr);
  EXPECT_EQ(open.train->vocabulary(), 50257u);
  EXPECT_EQ(open.train->description(), "2 files of uint16 tokens, 10 B");
  for (uint64_t first = 0; first <= 5; ++first) {
    for (uint64_t count = 0; first + count <= 5; ++count) {
      std::vector<int32_t> piece(count);
      open.train->read(first, piece);
      const std::vector<int32_t> whole = all_of(*open.train);
      EXPECT_TRUE(std::equal(piece.begin(), piece.end(), whole.begin() + static_cast<long>(first)));
    }
  }
}

TEST_F(TokenFilesTest, TellsTokensOfFourBytesByTheirLooks) {
  const auto words = [](std::vector<uint32_t> tokens) {
    std::vector<uint16_t> halves;
    for (const uint32_t token : tokens) {
      halves.push_back(static_cast<uint16_t>(token & 0xFFFF));
      halves.push_back(static_cast<uint16_t>(token >> 16));
    }
    return packed(halves);
  };
  std::vector<uint32_t> wide(20, 128000);
  wide[3] = 7;
  const auto train = write("wide/train.bin", words(wide));
  write("wide/val.bin", words({5, 6}));  // too short to tell
  const OpenTokens open = open_tokens({{folder_ / "wide"}, 128256});
  EXPECT_EQ(open.train->description(), "train.bin of uint32 tokens, 80 B");
  EXPECT_EQ(all_of(*open.train), std::vector<int32_t>(wide.begin(), wide.end()));
  EXPECT_EQ(all_of(*open.validation), (std::vector<int32_t>{5, 6}));
  // Small vocabularies may be written wide as well.
  const auto small = write("small.bin", words(std::vector<uint32_t>(20, 300)));
  EXPECT_EQ(open_tokens({{small}, 400}).train->token_count(), 20u);
  EXPECT_EQ(open_tokens({{small}, 400, 2}).train->token_count(), 40u);
  EXPECT_NE(open_tokens({{small}, 400, 2}).train->fingerprint(),
            open_tokens({{small}, 400, 4}).train->fingerprint());
  // What would be tokens beyond the vocabulary, nothing but zeros, and an odd count are of two bytes.
  for (const std::string& bytes : {packed(std::vector<uint16_t>(40, 3)), std::string(80, '\0'),
                                   words(std::vector<uint32_t>(20, 300)) + packed({1})}) {
    const auto path = write("narrow.bin", bytes);
    EXPECT_EQ(open_tokens({{path}, 128256}).train->token_count(), bytes.size() / 2);
  }
  const auto narrow = write("narrow.bin", packed(std::vector<uint16_t>(40, 3)));
  EXPECT_EQ(data_tests::problem_of(ErrorKind::config,
                                   [&] {
                                     open_tokens({{train, narrow}, 128256});
                                   }),
            "it looks like tokens of uint16, and " + train.string() + " like tokens of uint32");
}

// numpy.array(tokens).tofile() without a dtype.
TEST_F(TokenFilesTest, RefusesTokensOfEightBytes) {
  const auto wide = [](size_t count, uint16_t high_half) {
    std::vector<uint16_t> quarters;
    for (size_t i = 0; i < count; ++i) {
      quarters.insert(quarters.end(), {static_cast<uint16_t>(i), 0, 0, 0});
      if (i == 40) quarters.back() = high_half;
    }
    return packed(quarters);
  };
  const auto problem = [&](const std::string& bytes, uint32_t vocabulary, uint32_t token_bytes) {
    const auto path = write("a.bin", bytes);
    return data_tests::problem_of(ErrorKind::config, [&] { open_tokens({{path}, vocabulary, token_bytes}); });
  };
  const std::string reason = "every second number of 4 bytes is 0: it looks like int64, 8 bytes a token";
  for (const uint32_t vocabulary : {50u, 50257u, 128256u}) {
    for (const uint32_t token_bytes : {0u, 2u, 4u}) {
      EXPECT_EQ(problem(wide(64, 0), vocabulary, token_bytes), reason);
      EXPECT_EQ(problem(wide(5000, 0), vocabulary, token_bytes), reason);
    }
  }
  EXPECT_EQ(problem(wide(63, 0), 128256, 4), "no problem");
  EXPECT_EQ(problem(wide(64, 1), 128256, 4), "no problem");
  EXPECT_EQ(problem(std::string(1024, '\0'), 128256, 0), "no problem");
  const auto narrow = write("narrow.bin", packed(std::vector<uint16_t>(40, 3)));
  const auto path = write("a.bin", wide(64, 0));
  EXPECT_EQ(data_tests::problem_of(ErrorKind::config,
                                   [&] {
                                     open_tokens({{narrow, path}, 128256});
                                   }),
            reason);
  EXPECT_THAT(data_tests::advice_of([&] {
                open_tokens({{path}, 128256});
              }),
              HasSubstr("tokens.astype(numpy.uint32).tofile("));
}

TEST_F(TokenFilesTest, TakesThePairThatNanoGptMakes) {
  write("prepare.py", "import numpy");
  write("train.bin", packed({1, 2, 3, 4, 5, 6}));
  write("val.bin", packed({7, 8, 9}));
  const TrainingData data{open_tokens({{folder_}, 10}), {.context = 2, .validation_fraction = 0.5}};
  EXPECT_EQ(data.train_token_count(), 6u);
  EXPECT_EQ(data.validation_token_count(), 3u);
  std::vector<int32_t> tokens(2), targets(2);
  data.fill_validation(0, 1, tokens, targets);
  EXPECT_EQ(tokens, (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(targets, (std::vector<int32_t>{8, 9}));
  EXPECT_THAT(data.description(), HasSubstr("held out: val.bin"));
  // By itself the held-out file is data as any other.
  EXPECT_EQ(all_of(*open_tokens({{folder_ / "val.bin"}, 10}).train), (std::vector<int32_t>{7, 8, 9}));
}

TEST_F(TokenFilesTest, TellsFoldersOfTokensFromFoldersOfText) {
  write("tokens/part0.bin", packed({1, 2}));
  write("text/a.txt", "text");
  write("text/firmware.bin", std::string(8, '\0'));
  EXPECT_TRUE(are_token_files({folder_ / "tokens"}));
  EXPECT_FALSE(are_token_files({folder_ / "text"}));
  EXPECT_FALSE(are_token_files({folder_ / "missing"}));
  EXPECT_EQ(data_tests::problem_of(ErrorKind::config,
                                   [&] {
                                     are_token_files({folder_ / "tokens", folder_ / "text"});
                                   }),
            "it is no .bin file of tokens, and others given with it are");
}

TEST_F(TokenFilesTest, NamesTheTokenThatTheModelDoesNotHave) {
  write("data/a.bin", packed({1, 2, 3}));
  write("data/b.bin", packed({1, 65535, 3}));
  const OpenTokens open = open_tokens({{folder_ / "data"}, 50257});
  try {
    all_of(*open.train);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.parts().subject.in(Door::cpp), HasSubstr("b.bin"));
    EXPECT_EQ(error.parts().reason, "token 65535 at position 1 is outside the vocabulary of 50257");
  }
}

TEST_F(TokenFilesTest, SaysWhatIsWrongWithAFile) {
  const auto problem = [](const std::filesystem::path& path) {
    return data_tests::problem_of(ErrorKind::config, [&] { open_tokens({{path}, 10}); });
  };
  EXPECT_EQ(problem(write("odd.bin", "12345")),
            "it has 5 bytes, and tokens of 2 bytes: the last one, at position 2, is cut off");
  EXPECT_EQ(problem(write("empty.bin", "")), "it holds no tokens");
  EXPECT_THAT(data_tests::problem_of(ErrorKind::io,
                                     [&] {
                                       open_tokens({{folder_ / "missing.bin"}, 10});
                                     }),
              HasSubstr("No such file or directory"));
}

TEST_F(TokenFilesTest, ReportsAFileThatShrinksDuringTheRun) {
  const auto path = write("a.bin", packed({1, 2, 3, 4}));
  const OpenTokens open = open_tokens({{path}, 10});
  std::filesystem::resize_file(path, 6);
  EXPECT_EQ(data_tests::problem_of(ErrorKind::io, [&] { all_of(*open.train); }),
            "it had 4 tokens when the run began, and now ends before");
}

}  // namespace
}  // namespace terrace::training_data_test
