#include <terrace/reference/data/token_cache.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <numeric>

#include <terrace/reference/data/internal/text_segments.h>

#include "reference/data/data_test_support.h"

namespace terrace::token_cache_test {
namespace {

using data::TextSegment;
using data::TextSegments;
using ::testing::HasSubstr;

class TokenCacheTest : public data_tests::DataFolder {
 protected:
  static Tokenizer tokenizer(const std::string& name) {
    return Tokenizer::load(std::string(TERRACE_TEST_SOURCES) + "/reference/data/tokenizers/" + name +
                           ".json");
  }
  // A text that is cut into several segments, with what is hard to cut: blank lines, spaces around newlines,
  // letters of several scripts, marks.
  static std::string long_text(size_t lines, uint64_t seed) {
    const char* const words[] = {"the",
                                 "Don't",
                                 " ",
                                 "\n",
                                 "\n\n",
                                 "\r\n",
                                 "  \n",
                                 "123",
                                 "!!",
                                 ".\n",
                                 "a\n",
                                 "\nB",
                                 "\xD0\xB6\n",
                                 "\xE5\x8C\x97\n\xE4\xBA\xAC",
                                 "e\xCC\x81",
                                 "\n\xCC\x81",
                                 "\xE3\x80\x80\n",
                                 "<|endoftext|>",
                                 "\n5"};
    std::string text;
    for (size_t i = 0; i < 10 * lines; ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      text += words[(seed >> 33) % std::size(words)];
    }
    return text;
  }
  static std::vector<int32_t> all_of(const TokenSource& source) {
    std::vector<int32_t> tokens(source.token_count());
    source.read(0, tokens);
    return tokens;
  }
  std::vector<int32_t> tokens_of(const std::filesystem::path& path, const Tokenizer& tokenizer) {
    return all_of(*tokenize_cached(TextFiles(path), &tokenizer, folder_ / "cache", log_));
  }
  bool has_logged(const std::string& words) const {
    const auto lines = log_.lines();
    return std::any_of(lines.begin(), lines.end(),
                       [&](const auto& line) { return line.text.find(words) != std::string::npos; });
  }
  std::vector<std::filesystem::path> cached_files() const {
    return {std::filesystem::directory_iterator(folder_ / "cache"), {}};
  }

  MemoryLog log_;
};

TEST_F(TokenCacheTest, TokenizesEveryFileAsAWholeAndEndsIt) {
  write("text/a.txt", "Hello there");
  write("text/b.txt", long_text(300, 3));
  const TextFiles files(folder_ / "text");
  for (const char* name : {"gpt2", "llama3", "qwen2"}) {
    const Tokenizer t = tokenizer(name);
    std::vector<int32_t> expected;
    for (const TextFiles::File& file : files.files()) {
      std::string text(file.byte_count, '?');
      TextFiles(folder_ / "text")
          .read(file.first_byte, {reinterpret_cast<uint8_t*>(text.data()), text.size()});
      expected.insert(expected.end(), t.prefix().begin(), t.prefix().end());
      Tokenizer::Encoder(t).encode(text, expected);
      expected.push_back(*t.end_of_text());
    }
    const auto source = tokenize_cached(files, &t, folder_ / "cache", log_);
    EXPECT_EQ(all_of(*source), expected) << name;
    EXPECT_EQ(source->vocabulary(), t.vocabulary());
  }
  const Tokenizer llama = tokenizer("llama3");
  EXPECT_THAT(tokenize_cached(files, &llama, folder_ / "cache", log_)->description(),
              HasSubstr("each text begins with <|begin_of_text|> and ends with <|end_of_text|>"));
}

// Every line is a text of its own, whatever else stands in its object.
TEST_F(TokenCacheTest, TakesTheTextsOfJsonLines) {
  const auto path = write("a.jsonl",
                          "{\"text\": \"one\\nline \\u00e9\", \"meta\": {\"text\": 1}}\n\n"
                          "  {\"id\": 7, \"text\": \"two\\n\"}\r\n{\"text\": \"\"}");
  const std::vector<std::string> texts = {"one\nline \xC3\xA9", "two\n", ""};
  const Tokenizer t = tokenizer("llama3");
  std::vector<int32_t> expected;
  std::string bytes;
  for (const std::string& text : texts) {
    expected.insert(expected.end(), t.prefix().begin(), t.prefix().end());
    Tokenizer::Encoder(t).encode(text, expected);
    expected.push_back(*t.end_of_text());
    bytes += text.ends_with('\n') ? text : text + "\n";
  }
  EXPECT_EQ(tokens_of(path, t), expected);
  const auto plain = write("b.txt", "as it is");
  const auto source = tokenize_cached(TextFiles({path, plain}), nullptr, folder_ / "cache", log_);
  const std::vector<int32_t> found = all_of(*source);
  EXPECT_EQ(std::string(found.begin(), found.end()).size(), found.size());
  std::string text;
  for (const int32_t token : found) text += static_cast<char>(token);
  EXPECT_EQ(text, bytes + "as it is");
  EXPECT_TRUE(source->tokens_are_bytes());
  EXPECT_EQ(source->vocabulary(), 256u);
}

TEST_F(TokenCacheTest, CutsJsonLinesBetweenLines) {
  std::string lines, expected;
  for (int i = 0; i < 60'000; ++i) {
    const std::string text = "line " + std::to_string(i) + std::string(static_cast<size_t>(i) % 90, 'x');
    lines += "{\"text\": \"" + text + "\"}\n";
    expected += text + "\n";
  }
  const std::string longest(3'000'000, 'y');  // longer than a segment
  const TextFiles files(write("a.jsonl", lines + "{\"text\": \"" + longest + "\"}\n" + lines));
  const std::vector<int32_t> found = all_of(*tokenize_cached(files, nullptr, folder_ / "cache", log_));
  std::string text;
  for (const int32_t token : found) text += static_cast<char>(token);
  EXPECT_TRUE(text == expected + longest + "\n" + expected);
}

TEST_F(TokenCacheTest, NamesTheLineThatHasNoText) {
  const auto problem = [&](const std::string& line) {
    const auto path = write("a.jsonl", "{\"text\": \"one\"}\n" + line);
    return data_tests::problem_of(
        ErrorKind::config, [&] { tokenize_cached(TextFiles(path), nullptr, folder_ / "cache", log_); });
  };
  EXPECT_THAT(problem("{\"content\": \"two\"}"),
              HasSubstr("line 2 (byte 16) is an object without a \"text\";"));
  EXPECT_THAT(problem("{\"content\": \"two\"}"), HasSubstr("it has \"content\""));
  EXPECT_THAT(problem("{\"text\": [1]}"),
              HasSubstr("line 2 (byte 16) is an object whose \"text\" is a list"));
  EXPECT_THAT(problem("{\"text\": \"two"), HasSubstr("byte "));
  EXPECT_THAT(problem("two"), HasSubstr("line 2, byte 16: an object is expected"));
}

TEST_F(TokenCacheTest, CountsTheLinesOfEverySegment) {
  std::string lines;
  constexpr int kGoodLines = 200'000;  // several segments
  for (int i = 0; i < kGoodLines; ++i) lines += i % 3 == 0 ? "\n" : "{\"text\": \"one\"}\n";
  const auto first = write("a.jsonl", lines);
  const auto second = write("b.jsonl", lines + "{\"text\": 2}\n");
  EXPECT_THAT(
      data_tests::problem_of(ErrorKind::config,
                             [&] {
                               tokenize_cached(TextFiles({first, second}), nullptr, folder_ / "cache", log_);
                             }),
      HasSubstr("line 200001 (byte " + std::to_string(lines.size()) + ") is an object whose"));
}

TEST_F(TokenCacheTest, SkipsAByteOrderMarkInFrontOfJsonLines) {
  for (const char* name : {"a.jsonl", "a.txt"}) {
    const TextFiles files(write(name, "\xEF\xBB\xBF{\"text\": \"one\"}\n{\"text\": \"two\"}\n"));
    const std::vector<int32_t> found = all_of(*tokenize_cached(files, nullptr, folder_ / "cache", log_));
    std::string text;
    for (const int32_t token : found) text += static_cast<char>(token);
    EXPECT_EQ(text, "one\ntwo\n") << name;
  }
}

TEST_F(TokenCacheTest, CutsTextWhereItsTokensAreThoseOfTheWhole) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string text = long_text(60, seed);
    const TextFiles files(write("t.txt", text));
    for (const char* name : {"gpt2", "llama3", "qwen2", "added", "llama2", "mistral", "gemma", "phi3",
                             "metaspace_split", "unknown_fused"}) {
      const Tokenizer t = tokenizer(name);
      Tokenizer::Encoder encoder(t);
      std::vector<int32_t> whole, parts;
      encoder.encode(text, whole);
      TextSegments segments(files, t.cuts(), 64, 100'000);
      TextSegment segment;
      size_t count = 0;
      for (uint64_t at = 0; segments.next(segment); ++count) {
        EXPECT_EQ(segment.first_byte, at);
        EXPECT_FALSE(segment.is_forced);
        at += segment.text.size();
        encoder.encode(segment.text, parts, !segment.begins_file);
      }
      EXPECT_GT(count, 5u);
      EXPECT_EQ(parts, whole) << name << " " << seed;
    }
  }
}

TEST_F(TokenCacheTest, CutsTextWithoutLinesBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "\xE5\x8C\x97";
  const TextFiles files(write("t.txt", text));
  TextSegments segments(files, {}, 64, 256);
  TextSegment segment;
  std::string together;
  while (segments.next(segment)) {
    EXPECT_LE(segment.text.size(), 256u);
    EXPECT_EQ(segment.text.size() % 3, 0u);
    EXPECT_EQ(segment.is_forced, !segment.ends_file);
    together += segment.text;
  }
  EXPECT_EQ(together, text);
}

TEST_F(TokenCacheTest, TokenizesTheSameTextOnce) {
  const auto path = write("t.txt", long_text(50, 1));
  const Tokenizer t = tokenizer("qwen2");
  const std::vector<int32_t> first = tokens_of(path, t);
  EXPECT_TRUE(has_logged("tokenizing"));
  const size_t lines = log_.lines().size();
  EXPECT_EQ(tokens_of(path, t), first);
  EXPECT_EQ(log_.lines().size(), lines);
  EXPECT_EQ(cached_files().size(), 1u);
  tokens_of(path, tokenizer("gpt2"));  // another tokenizer, other tokens
  EXPECT_EQ(cached_files().size(), 2u);
}

TEST_F(TokenCacheTest, NoticesTextThatChangedBehindItsBeginning) {
  std::string text(20'000, 'a');
  const auto path = write("t.txt", text);
  const std::vector<int32_t> first = tokens_of(path, tokenizer("gpt2"));
  text[15'000] = 'b';
  write("t.txt", text);
  std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(5));
  EXPECT_NE(tokens_of(path, tokenizer("gpt2")), first);
}

TEST_F(TokenCacheTest, MakesADamagedFileAnewAndRemovesWhatDeadProcessesLeft) {
  const auto path = write("t.txt", long_text(50, 1));
  const Tokenizer t = tokenizer("gpt2");
  const std::vector<int32_t> tokens = tokens_of(path, t);
  const std::filesystem::path cached = cached_files().front();
  std::filesystem::resize_file(cached, std::filesystem::file_size(cached) - 2);
  write("cache/tokens-1.bin.partial-abc", "half");
  EXPECT_EQ(tokens_of(path, t), tokens);
  EXPECT_TRUE(has_logged("removed what a dead process left"));
  EXPECT_EQ(cached_files().size(), 1u);
}

TEST_F(TokenCacheTest, TrainsOnNoTokenThatChangedOnTheDisk) {
  const auto path = write("t.txt", long_text(50, 1));
  const Tokenizer t = tokenizer("gpt2");
  const std::vector<int32_t> tokens = tokens_of(path, t);
  const std::filesystem::path cached = cached_files().front();
  const uint64_t bytes = std::filesystem::file_size(cached);
  for (const uint64_t at : {uint64_t{64}, bytes / 2, bytes - 1}) {
    std::fstream file(cached, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const auto changed = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(changed);
    file.close();
    EXPECT_EQ(tokens_of(path, t), tokens) << at;
    EXPECT_TRUE(has_logged("their checksum is another one"));
  }
}

TEST_F(TokenCacheTest, CountsWhatIsNoUtf8AndNamesTheFirst) {
  write("text/a.txt", "fine");
  write("text/b.txt", "caf\xE9 cr\xE8me");
  const Tokenizer t = tokenizer("gpt2");
  std::string text;
  for (const int32_t token : tokens_of(folder_ / "text", t)) text += t.bytes_of(token);
  EXPECT_EQ(text, "fine<|endoftext|>caf\xEF\xBF\xBD cr\xEF\xBF\xBDme<|endoftext|>");
  EXPECT_TRUE(has_logged("2 pieces of the text are no UTF-8"));
  EXPECT_TRUE(has_logged("the first is at byte 3 of " + (folder_ / "text/b.txt").string()));
}

TEST_F(TokenCacheTest, SaysWhereItCannotKeepTokens) {
  const auto path = write("t.txt", "text");
  write("cache", "a file");
  try {
    tokens_of(path, tokenizer("gpt2"));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("name a cache folder"));
  }
}

}  // namespace
}  // namespace terrace::token_cache_test
