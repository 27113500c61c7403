// What a tokenizer.json says, checked: everything in it that decides about tokens is in TokenizerFile or has
// been refused by its key. Works on bytes in memory, takes a small multiple of them, and touches no file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::data {

struct AddedToken {
  uint32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no letter touches it
  bool lstrip = false;       // with the white space in front of it
  bool rstrip = false;       // with the white space behind it
  bool normalized = false;   // looked for after normalisation
  bool special = false;
};

// Cuts every piece of text into smaller ones.
struct SplitStep {
  std::string pattern;        // as PCRE2 reads it; empty: no cut
  bool drop_matches = false;  // otherwise both what matches and what lies between are pieces
  bool drop_between = false;
  bool add_prefix_space = false;  // to a piece that does not begin with one, before it is cut
};

struct VocabularyEntry {
  std::string text;
  uint32_t id = 0;
};
struct Merge {
  std::string left;
  std::string right;
};

struct TokenizerFile {
  bool normalises = false;  // to NFC
  std::vector<SplitStep> steps;
  std::vector<AddedToken> added;
  std::vector<VocabularyEntry> vocabulary;
  std::vector<Merge> merges;   // the first goes first
  bool ignore_merges = false;  // a word that is a token is that token
  // What stands in front of and behind a text.
  std::vector<uint32_t> prefix;
  std::vector<uint32_t> suffix;
};

// Throws Error(config) naming the byte or the key; `name` stands for the file.
TokenizerFile parse_tokenizer_file(std::string_view json, std::string_view name);

}  // namespace terrace::data
