// Tokens compared with those of the reference implementation (tokenizers/*.json; bench/compare/tokenizer
// makes them), and files that ask for what is not there or are not what they seem.
#include <terrace/base/text/json_writer.h>
#include <terrace/reference/data/tokenizer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include <terrace/base/text/utf8.h>
#include <terrace/reference/data/internal/byte_alphabet.h>
#include <terrace/reference/data/internal/text_segments.h>
#include <terrace/runtime/config/json/json_document.h>

#include "reference/data/data_test_support.h"

namespace terrace::tokenizer_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string fixture(const std::string& name) {
  std::ifstream file(std::string(TERRACE_TEST_SOURCES) + "/reference/data/tokenizers/" + name,
                     std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

const JsonNode& member(const JsonNode& object, const std::string& key) {
  for (const JsonMember& each : object.members) {
    if (each.key == key) return each.value;
  }
  ADD_FAILURE() << key;
  return object;
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> tokens;
  Tokenizer::Encoder(tokenizer).encode(text, tokens);
  return tokens;
}

std::string decode(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) text += tokenizer.bytes_of(token);
  return text;
}

// The fixture's GPT-2, or another one, with a part of its text replaced.
std::string changed(const std::string& from, const std::string& to, const std::string& name = "gpt2.json") {
  std::string json = fixture(name);
  const size_t place = json.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  return json.replace(place, from.size(), to);
}

std::string problem(const std::string& json) {
  try {
    Tokenizer::parse(json, "t.json");
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::config)) << error.what();
    return error.what();
  }
  return "no problem";
}

class TokenizerFixture : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerFixture, GivesTheTokensOfTheReference) {
  const std::string name = GetParam();
  const Tokenizer tokenizer = Tokenizer::parse(fixture(name + ".json"), name);
  Tokenizer::Encoder encoder(tokenizer);  // one for all: its cache must not change anything
  const JsonNode cases = parse_json(fixture(name + "_texts.json"), name);
  ASSERT_GT(cases.items.size(), 20u);
  for (int round = 0; round < 2; ++round) {
    for (const JsonNode& each : cases.items) {
      std::vector<int32_t> expected, tokens;
      for (const JsonNode& id : member(each, "ids").items)
        expected.push_back(static_cast<int32_t>(id.number));
      encoder.encode(member(each, "text").text, tokens);
      EXPECT_EQ(tokens, expected) << json_quoted(member(each, "text").text);
      EXPECT_EQ(tokenizer.decode(tokens), member(each, "decoded").text);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerFixture,
                         ::testing::Values("gpt2", "llama3", "qwen2", "added", "llama2", "mistral", "gemma",
                                           "phi3", "metaspace_split", "unknown_fused"),
                         [](const auto& each) { return std::string(each.param); });

TEST(Tokenizer, GivesTextsBackAsTheyWere) {
  const Tokenizer tokenizer = Tokenizer::parse(fixture("gpt2.json"), "gpt2");
  const std::string text = "Don't\n\n  panic: \xE5\x8C\x97\xE4\xBA\xAC \xF0\x9F\x98\x80<|endoftext|>";
  EXPECT_EQ(decode(tokenizer, encode(tokenizer, text)), text);
  EXPECT_EQ(tokenizer.bytes_of(-1), "");
  EXPECT_EQ(tokenizer.bytes_of(static_cast<int32_t>(tokenizer.vocabulary())), "");
}

TEST(Tokenizer, KnowsWhatStandsAroundAText) {
  const Tokenizer gpt2 = Tokenizer::parse(fixture("gpt2.json"), "gpt2");
  ASSERT_TRUE(gpt2.end_of_text());
  EXPECT_EQ(gpt2.name_of(*gpt2.end_of_text()), "<|endoftext|>");
  EXPECT_TRUE(gpt2.prefix().empty());
  const Tokenizer llama = Tokenizer::parse(fixture("llama3.json"), "llama3");
  ASSERT_EQ(llama.prefix().size(), 1u);
  EXPECT_EQ(llama.name_of(llama.prefix()[0]), "<|begin_of_text|>");
  EXPECT_EQ(llama.name_of(*llama.end_of_text()), "<|end_of_text|>");
  EXPECT_NE(gpt2.fingerprint(), llama.fingerprint());
  EXPECT_EQ(llama.vocabulary(), 422u);
  EXPECT_EQ(Tokenizer::parse(fixture("qwen2.json"), "q").description(), "byte-level BPE, 423 tokens, NFC");
}

TEST(Tokenizer, TakesBrokenUtf8AsReplacementCharacters) {
  const Tokenizer tokenizer = Tokenizer::parse(fixture("gpt2.json"), "gpt2");
  const auto same = [&](std::string_view broken, std::string_view text) {
    EXPECT_EQ(decode(tokenizer, encode(tokenizer, broken)), text);
  };
  same("a\xFF", "a\xEF\xBF\xBD");
  same("\xE4\xBA!", "\xEF\xBF\xBD!");                                            // one cut sequence
  same("\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD");                                  // overlong
  same("\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");                  // a surrogate
  same("\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");  // beyond U+10FFFF
  same("\xF0\x9F\x98", "\xEF\xBF\xBD");
}

TEST(Tokenizer, TakesMergesInBothForms) {
  const std::string json = fixture("gpt2.json");
  std::string older = json;
  for (size_t at = older.find("\"merges\""); (at = older.find("[\"", at)) != std::string::npos;) {
    const size_t end = older.find("\"]", at);
    std::string pair = older.substr(at + 1, end - at);
    pair.replace(pair.find("\", \""), 4, " ");
    older.replace(at, end + 2 - at, pair);
  }
  ASSERT_NE(older, json);
  const std::string text = "the quick brown fox over the lazy the";
  EXPECT_EQ(encode(Tokenizer::parse(older, "older"), text), encode(Tokenizer::parse(json, "newer"), text));
  EXPECT_LT(encode(Tokenizer::parse(json, "newer"), text).size(), text.size());
}

TEST(Tokenizer, EncodesOneEnormousWord) {
  const Tokenizer tokenizer = Tokenizer::parse(fixture("gpt2.json"), "gpt2");
  const std::string text(400'000, 'x');
  EXPECT_EQ(decode(tokenizer, encode(tokenizer, text)), text);
  const std::string spaces(400'000, ' ');
  EXPECT_EQ(decode(tokenizer, encode(tokenizer, spaces)), spaces);
}

TEST(Tokenizer, RefusesByItsKeyWhatItWouldDoOtherwise) {
  const auto expect = [](const std::string& from, const std::string& to, const std::string& words) {
    EXPECT_THAT(problem(changed(from, to)), HasSubstr(words)) << to;
  };
  expect(R"("type": "BPE")", R"("type": "WordPiece")", "model.type");
  expect(R"("type": "BPE")", R"("type": "Unigram")", "it is \"Unigram\", and not BPE");
  expect(R"("byte_fallback": false)", R"("byte_fallback": true)", "model.byte_fallback");
  expect(R"("dropout": null)", R"("dropout": 0.1)", "model.dropout");
  expect(R"("end_of_word_suffix": null)", R"("end_of_word_suffix": "</w>")", "model.end_of_word_suffix");
  expect(R"("normalizer": null)", R"("normalizer": {"type": "Lowercase"})", "\"Lowercase\" is not NFC");
  expect(R"("pre_tokenizer": {"type": "ByteLevel")", R"("pre_tokenizer": {"type": "Whitespace")",
         "\"Whitespace\" is the last step");
  expect(R"("decoder": {"type": "ByteLevel")", R"("decoder": {"type": "WordPiece")", "decoder");
  expect(R"("post_processor": {"type": "ByteLevel")", R"("post_processor": {"type": "BertProcessing")",
         "post_processor");
  expect(R"("version": "1.0")", R"("version": "1.0", "novelty": 1)", "\"novelty\" is not known");
  expect(R"("use_regex": true)", R"("use_regex": true, "novelty": 1)", "novelty");
  EXPECT_EQ(problem(changed(R"("truncation": null)", R"("truncation": {"max_length": 8})")), "no problem");
}

TEST(Tokenizer, RefusesOfSentencePieceWhatItWouldDoOtherwise) {
  const auto expect = [](const std::string& from, const std::string& to, const std::string& words) {
    EXPECT_THAT(problem(changed(from, to, "llama2.json")), HasSubstr(words)) << to;
  };
  expect(R"("prepend": "\u2581")", R"("prepend": "_")", "\"_\" is not \"\u2581\"");
  expect(R"("type": "Prepend")", R"("type": "Precompiled")", "\"Precompiled\" is not NFC");
  expect(R"({"String": " "})", R"({"String": "  "})", "\"\u2581\" for \"  \"");
  expect(R"({"String": " "})", R"({"Regex": " "})", "\"String\" is expected");
  expect(R"("<0x41>")", R"("<0x4>")", "\"<0x41>\" is not in it");
  expect(R"("byte_fallback": true)", R"("byte_fallback": false, "unk_token": null)", "there twice");
  expect(R"("unk_token": "<unk>")", R"("unk_token": "<none>")", "no problem");  // no character is unknown
  expect(R"("start": 1)", R"("start": 2)", "one space at the beginning");
  expect(R"({"type": "Fuse"}, )", "", "\"Strip\" is not");
  expect(R"("type": "ByteFallback")", R"("type": "ByteLevel")", "not the one of SentencePiece");
  EXPECT_THAT(problem(changed(R"("first")", R"("second")", "mistral.json")), HasSubstr("second"));
  EXPECT_THAT(problem(changed(R"("unk_token": "<unk>")", R"("unk_token": null)", "unknown_fused.json")),
              HasSubstr("would vanish"));
  EXPECT_THAT(problem(changed(R"("unk_token": "<unk>")", R"("unk_token": "<u>")", "unknown_fused.json")),
              HasSubstr("\"<u>\" is not in the vocabulary"));
  EXPECT_THAT(problem(changed(R"("byte_fallback": false)", R"("byte_fallback": true)")),
              HasSubstr("of the byte level"));
}

TEST(Tokenizer, BeginsATextWithoutTheSpaceThatWasPutThere) {
  const Tokenizer llama = Tokenizer::parse(fixture("llama2.json"), "llama2");
  EXPECT_THAT(llama.description(), ::testing::StartsWith("SentencePiece BPE, "));
  const std::vector<int32_t> tokens = encode(llama, "the quick");
  EXPECT_EQ(decode(llama, tokens), " the quick");
  EXPECT_EQ(llama.bytes_of(tokens[0], true), llama.bytes_of(tokens[0]).substr(1));
  EXPECT_EQ(llama.decode(tokens), "the quick");
}

// What `tokens` become one by one: each piece, and the rest.
std::vector<std::string> pieces(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens) {
  Tokenizer::Decoder decoder(tokenizer);
  std::vector<std::string> texts;
  for (const int32_t token : tokens) texts.push_back(decoder.add(token));
  texts.push_back(decoder.finish());
  return texts;
}

// The tokens with these names.
std::vector<int32_t> named(const Tokenizer& tokenizer, const std::vector<std::string>& names) {
  std::vector<int32_t> tokens;
  for (const std::string& name : names) {
    int32_t token = 0;
    while (token < static_cast<int32_t>(tokenizer.vocabulary()) && tokenizer.name_of(token) != name) ++token;
    EXPECT_LT(token, static_cast<int32_t>(tokenizer.vocabulary())) << name;
    tokens.push_back(token);
  }
  return tokens;
}

// As the library's ByteFallback: a run of bytes is UTF-8 as a whole, or U+FFFD for each of them.
TEST(Tokenizer, HoldsBackARunOfBytesUntilItEnds) {
  const Tokenizer llama = Tokenizer::parse(fixture("llama2.json"), "llama2");
  const std::string broken = "\xEF\xBF\xBD";
  const auto of = [&](const std::vector<std::string>& names) { return pieces(llama, named(llama, names)); };
  EXPECT_THAT(of({"a", "<0xC3>", "<0xA9>", "a"}), ElementsAre("a", "", "",
                                                              "\xC3\xA9"
                                                              "a",
                                                              ""));
  EXPECT_THAT(of({"a", "<0xC3>", "<0xA9>"}), ElementsAre("a", "", "", "\xC3\xA9"));
  EXPECT_THAT(of({"a", "<0xC3>", "a"}), ElementsAre("a", "", broken + "a", ""));
  EXPECT_THAT(of({"<0xE4>", "<0xBA>"}), ElementsAre("", "", broken + broken));
  // The good character of a broken run goes with it.
  EXPECT_THAT(of({"<0x41>", "<0xC3>", "<0xA9>", "<0xFF>", "a"}),
              ElementsAre("", "", "", "", broken + broken + broken + broken + "a", ""));
  EXPECT_EQ(llama.decode(named(llama, {"<0xFF>", "a", "<0x41>"})), broken + "aA");
}

// As Rust's String::from_utf8_lossy over the whole text.
TEST(Tokenizer, HoldsBackACharacterUntilItIsWholeOrBroken) {
  const Tokenizer gpt2 = Tokenizer::parse(fixture("gpt2.json"), "gpt2");
  const std::string broken = "\xEF\xBF\xBD";
  const auto of = [&](const std::string& bytes) {
    std::vector<std::string> names;
    for (const char byte : bytes) {
      append_utf8(names.emplace_back(), data::character_of_byte(static_cast<uint8_t>(byte)));
    }
    return pieces(gpt2, named(gpt2, names));
  };
  EXPECT_THAT(of("\xF0\x9F\x98\x80!"), ElementsAre("", "", "", "\xF0\x9F\x98\x80", "!", ""));
  EXPECT_THAT(of("\xF0\x9F\x98"), ElementsAre("", "", "", broken));
  EXPECT_THAT(of("\xE4\xBA!"), ElementsAre("", "", broken + "!", ""));
  EXPECT_THAT(of("\xE4\xE4\xBA\xAC"), ElementsAre("", broken, "", "\xE4\xBA\xAC", ""));
  EXPECT_THAT(of("\xFF\x80"), ElementsAre(broken, broken, ""));
  EXPECT_THAT(of("\xED\xA0\x80"), ElementsAre("", broken + broken, broken, ""));  // a surrogate
  EXPECT_THAT(of("\xED\x9F\xBF"), ElementsAre("", "", "\xED\x9F\xBF", ""));
  EXPECT_THAT(of("\xE0\xA0\x80"), ElementsAre("", "", "\xE0\xA0\x80", ""));
  EXPECT_THAT(of("\xF4\x8F\xBF\xBF"), ElementsAre("", "", "", "\xF4\x8F\xBF\xBF", ""));
}

TEST(Tokenizer, DropsTheSpaceOfTheFirstTokenOnlyWhereItBeginsTheText) {
  const Tokenizer llama = Tokenizer::parse(fixture("llama2.json"), "llama2");
  const std::vector<int32_t> tokens = encode(llama, "the");
  EXPECT_EQ(Tokenizer::Decoder(llama).add(tokens[0]), llama.bytes_of(tokens[0], true));
  EXPECT_EQ(Tokenizer::Decoder(llama, false).add(tokens[0]), llama.bytes_of(tokens[0]));
}

// A token that joins lines forbids cuts behind them, one that takes the space behind it those behind itself
// where something is put in front of what follows.
TEST(Tokenizer, KnowsWhereATextMayBeCut) {
  const auto cuts = [](const std::string& json) { return Tokenizer::parse(json, "t.json").cuts(); };
  EXPECT_TRUE(cuts(fixture("gpt2.json")).behind_newlines);
  EXPECT_TRUE(cuts(fixture("gemma.json")).behind_newlines);
  EXPECT_EQ(cuts(fixture("phi3.json")).never_after, U">");
  EXPECT_EQ(cuts(fixture("phi3.json")).never_before, U"<");
  EXPECT_EQ(cuts(fixture("llama2.json")).never_after, U"");
  const std::string joined = changed(R"("vocab": {)", R"("vocab": {"\na": 990, )", "llama2.json");
  EXPECT_TRUE(cuts(joined).behind_newlines);
  std::string merged = joined;
  merged.replace(merged.find(R"("merges": [)"), 11, R"("merges": [["\n", "a"], )");
  EXPECT_FALSE(cuts(merged).behind_newlines);
}

TEST(Tokenizer, RefusesPatternsThatMeanSomethingElseHere) {
  const std::string byte_level =
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";
  const auto with_pattern = [&](const std::string& pattern) {
    const std::string split =
        R"({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": )" + json_quoted(pattern) + "}}";
    return problem(
        changed(byte_level, R"({"type": "Sequence", "pretokenizers": [)" + split + ", " + byte_level + "]}"));
  };
  for (const char* pattern : {"\\p{L}+|\\s", "[^\\s\\p{L}]{1,3}", "(?i:'s)|\\x{41}", "\\p{Han}", "a{2,}?b++"})
    EXPECT_EQ(with_pattern(pattern), "no problem") << pattern;
  for (const char* pattern : {"\\h", "\\w", "\\b", "^a", "a$", "[a[bc]]", "[a&&b]", "(?i)a", "\\1", "a{,3}",
                              "a{2}+", "\\p{Alnum}", "(", "[a", "\\", "\\xFF", "(?<name>a)", "\\K", "a{1,2"})
    EXPECT_THAT(with_pattern(pattern), HasSubstr("pattern")) << pattern;
}

TEST(Tokenizer, NamesTheByteAtWhichAFileIsWrong) {
  EXPECT_THAT(problem(""), HasSubstr("byte 0: an object is expected"));
  EXPECT_THAT(problem("{}"), HasSubstr("\"model\" is missing"));
  EXPECT_THAT(problem("{\"a\xFF\""), HasSubstr("byte 3: the file is not UTF-8"));
  EXPECT_THAT(problem(changed("\"vocab\"", "\"vocab\": {}, \"vocab\"")),
              HasSubstr("\"vocab\" is there twice"));
  EXPECT_THAT(problem(changed(R"("!": 0)", R"("!": 0, "!": 0)")), HasSubstr("\"!\" is in it twice"));
  EXPECT_THAT(problem(changed(R"("!": 0)", R"("!": 01)")), HasSubstr("a whole number is expected"));
  EXPECT_THAT(problem(changed(R"("!": 0)", R"("!": 99999999999999999999)")), HasSubstr("a number above"));
  EXPECT_THAT(problem(changed(R"("!": 0)", R"("!": 1)")), HasSubstr("token 1 is both"));
  EXPECT_THAT(problem(changed(R"("!": 0)", R"("!": 16777215)")), HasSubstr("far beyond how many there are"));
  EXPECT_THAT(problem(changed(R"("!": 0, )", "")), HasSubstr("byte 0x21 (\"!\") is not in it"));
  EXPECT_THAT(problem(changed(R"("merges": [)", R"("merges": [["!", "~"], )")),
              HasSubstr("number 0\": \"!~\" is not in the vocabulary"));
  EXPECT_THAT(problem(changed(R"("merges": [)", R"("merges": ["! ! !", )")), HasSubstr("one space between"));
  EXPECT_THAT(problem(fixture("gpt2.json") + "x"), HasSubstr("more after the end"));
  for (const char* open : {"[", "{\"a\":"}) {
    std::string deep = "{\"version\": ";
    for (int i = 0; i < 100'000; ++i) deep += open;
    EXPECT_THAT(problem(deep), HasSubstr("nested too deeply"));
  }
}

TEST(Tokenizer, SurvivesEveryCutAndManyFlippedBits) {
  const std::string json = fixture("llama3.json");
  for (size_t size = 0; size < json.size(); size += 7) EXPECT_NE(problem(json.substr(0, size)), "no problem");
  uint64_t random = 1;
  for (int i = 0; i < 2000; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    std::string flipped = json;
    flipped[(random >> 33) % flipped.size()] ^= static_cast<char>(1 << (random >> 24) % 8);
    try {
      encode(Tokenizer::parse(flipped, "flipped"), "some text, don't you see? \xC3\xA9 123");
    } catch (const Error&) {
    }
  }
}

class TokenizerFiles : public data_tests::DataFolder {};

TEST_F(TokenizerFiles, ReadsTheEndOfATextFromTheFileBesideIt) {
  write("tokenizer.json", fixture("qwen2.json"));
  EXPECT_EQ(Tokenizer::load(folder_).end_of_text(),
            Tokenizer::load(folder_ / "tokenizer.json").end_of_text());
  write("tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  const Tokenizer chat = Tokenizer::load(folder_);
  EXPECT_EQ(chat.name_of(*chat.end_of_text()), "<|im_end|>");
  write("tokenizer_config.json", R"({"eos_token": {"content": "<|endoftext|>", "lstrip": false}})");
  const Tokenizer plain = Tokenizer::load(folder_);
  EXPECT_EQ(plain.name_of(*plain.end_of_text()), "<|endoftext|>");
  EXPECT_NE(plain.fingerprint(), chat.fingerprint());
  write("tokenizer_config.json", R"({"eos_token": null})");
  EXPECT_FALSE(Tokenizer::load(folder_).end_of_text());
  std::filesystem::remove(folder_ / "tokenizer_config.json");
  std::filesystem::create_symlink("tokenizer_config.json", folder_ / "tokenizer_config.json");
  EXPECT_THAT(data_tests::problem_of(ErrorKind::io, [&] { Tokenizer::load(folder_); }), HasSubstr("ELOOP"));
  EXPECT_THAT(data_tests::problem_of(ErrorKind::io, [&] { Tokenizer::load(folder_ / "gone.json"); }),
              HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace terrace::tokenizer_test
