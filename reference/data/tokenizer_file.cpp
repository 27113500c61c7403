#include <fmt/format.h>

#include <optional>
#include <set>

#include <terrace/base/error.h>
#include <terrace/base/text/json_cursor.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/reference/data/internal/tokenizer_file.h>
#include <terrace/reference/data/internal/tokenizer_sections.h>

namespace terrace::data {
namespace {

constexpr uint64_t kLargestId = 1 << 24;
// A section around the vocabulary becomes a tree, which takes a hundred times its text at worst.
constexpr size_t kLargestSection = size_t{4} << 20;
constexpr JsonCursorErrors kErrors = {.what_failed = "cannot read the tokenizer",
                                      .advice = "give a tokenizer.json as the tokenizers library writes it"};

class Reader {
 public:
  Reader(std::string_view json, std::string_view name) : cursor_(json, name, kErrors), name_(name) {}

  TokenizerFile run() {
    std::set<std::string> seen;
    cursor_.object([&](std::string& key) {
      if (!seen.insert(key).second) cursor_.fail(fmt::format("\"{}\" is there twice", key));
      top(key);
    });
    cursor_.end();
    if (!seen.contains("model")) cursor_.fail("\"model\" is missing");
    check_together();
    return std::move(file_);
  }

 private:
  void top(const std::string& key) {
    if (key == "model") return model();
    if (key == "added_tokens") return read_added_tokens(section(key), file_);
    if (key == "normalizer") return read_normalizer(section(key), file_);
    if (key == "pre_tokenizer") return read_pre_tokenizer(section(key), file_);
    if (key == "post_processor") return read_post_processor(section(key), file_);
    if (key == "decoder") return read_decoder(section(key), file_);
    // What is left belongs to the file or to a call, not to what a text's tokens are.
    if (key != "version" && key != "truncation" && key != "padding")
      cursor_.fail(fmt::format("the key \"{}\" is not known here", key));
    cursor_.skip();
  }

  // What no section can tell alone: their order in the file is free.
  void check_together() const {
    const DecoderRules& decoder = file_.decoder;
    const bool is_marked = decoder.reads_marks || decoder.joins_bytes;
    if (file_.is_byte_level) {
      if (file_.byte_fallback)
        refuse("byte_fallback", "it is true, and the pre_tokenizer is of the byte level");
      if (is_marked) refuse_tokenizer(std::string(name_), "decoder", "it is not of the byte level");
      return;
    }
    // Of one character that NFC takes apart the library may begin several pieces of a text.
    if (file_.normalizer.composes && file_.steps.size() > 1 && file_.steps.back().only_first_prefix)
      refuse_tokenizer(std::string(name_), "pre_tokenizer",
                       "Metaspace with \"first\" follows NFC and a step");
    if (!file_.byte_fallback && file_.unknown.empty())
      refuse("unk_token", "there is none, and no byte_fallback: characters of a text would vanish");
    if (decoder.is_byte_level || !is_marked) {
      refuse_tokenizer(std::string(name_), "decoder",
                       "it is not the one of SentencePiece, and the pre_tokenizer is not of the byte level");
    }
  }

  JsonNode section(const std::string& key) {
    const std::string_view text = cursor_.skip();
    if (text.size() > kLargestSection)
      cursor_.fail(fmt::format("\"{}\" has {} bytes, more than {}", key, text.size(), kLargestSection));
    return parse_json(text, fmt::format("{}, {}", name_, key));
  }

  void model() {
    std::set<std::string> seen;
    cursor_.object([&](std::string& key) {
      if (!seen.insert(key).second) cursor_.fail(fmt::format("\"{}\" is there twice", key));
      model_member(key);
    });
    for (const char* needed : {"vocab", "merges"}) {
      if (!seen.contains(needed)) cursor_.fail(fmt::format("\"{}\" is missing in \"model\"", needed));
    }
  }

  void model_member(const std::string& key) {
    if (key == "type") {
      const std::string type = cursor_.text();
      if (type != "BPE") refuse(key, fmt::format("it is {}, and not BPE", json_quoted(type)));
    } else if (key == "vocab") {
      vocabulary();
    } else if (key == "merges") {
      cursor_.list([&] { merge(); });
    } else if (key == "ignore_merges") {
      file_.ignore_merges = cursor_.boolean();
    } else if (key == "byte_fallback") {
      file_.byte_fallback = cursor_.boolean();
    } else if (key == "dropout") {
      if (!cursor_.take_null() && cursor_.skip() != "0.0") refuse(key, "it makes tokens random");
    } else if (key == "continuing_subword_prefix" || key == "end_of_word_suffix") {
      if (!cursor_.take_null() && !cursor_.text().empty()) refuse(key, "it is not empty");
    } else if (key == "unk_token") {
      if (!cursor_.take_null()) file_.unknown = cursor_.text();
    } else if (key == "fuse_unk") {
      file_.fuses_unknown = cursor_.boolean();
    } else {
      refuse(key, "this key is not known here");
    }
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& reason) const {
    refuse_tokenizer(std::string(name_), "model." + key, reason);
  }

  void vocabulary() {
    if (cursor_.next() != '{') refuse("vocab", "it is no object of texts and numbers");
    cursor_.object([&](std::string& token) {
      const auto id = static_cast<uint32_t>(cursor_.whole_number(kLargestId));
      file_.vocabulary.push_back({std::move(token), id});
    });
  }

  // "a b" or ["a", "b"].
  void merge() {
    Merge merge;
    if (cursor_.next() == '"') {
      const std::string both = cursor_.text();
      const size_t gap = both.find(' ');
      if (gap == std::string::npos || both.find(' ', gap + 1) != std::string::npos)
        cursor_.fail("a merge is two tokens with one space between");
      merge = {both.substr(0, gap), both.substr(gap + 1)};
    } else {
      int count = 0;
      cursor_.list([&] {
        if (count++ > 1) cursor_.fail("a merge has two tokens");
        (count == 1 ? merge.left : merge.right) = cursor_.text();
      });
      if (count != 2) cursor_.fail("a merge has two tokens");
    }
    file_.merges.push_back(std::move(merge));
  }

  JsonCursor cursor_;
  std::string_view name_;
  TokenizerFile file_;
};

}  // namespace

void append_marked(std::string& marked, std::string_view text) {
  for (const char c : text) {
    if (c == ' ') {
      marked += kSpaceMark;
    } else {
      marked += c;
    }
  }
}

TokenizerFile parse_tokenizer_file(std::string_view json, std::string_view name) {
  return Reader(json, name).run();
}

}  // namespace terrace::data
