// The contents of a tokenizer.json, checked: every setting that decides about tokens is in TokenizerFile or
// has been refused by its key. Parsing works on bytes in memory, takes a small multiple of them, and touches
// no file.
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
  bool normalized = false;   // found after normalisation
  bool special = false;
};

// The character that SentencePiece writes for a space (Kudo and Richardson, 2018): U+2581.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

// Appends a text with kSpaceMark in the place of every space.
void append_marked(std::string& marked, std::string_view text);

// Cuts every piece of text into smaller ones.
struct SplitStep {
  // What a match becomes. Isolated: a piece of its own, like the text between two matches.
  enum class Match : uint8_t { isolated, dropped, joins_previous, joins_next };

  bool marks_spaces = false;  // a space becomes kSpaceMark, first of all
  // The prefix of a piece that does not begin with it, added before it is cut.
  std::string prefix;
  bool only_first_prefix = false;  // only at the beginning of the text
  std::string pattern;             // as PCRE2 reads it; empty: no cut
  Match match = Match::isolated;
  bool drop_between = false;  // drop the text that does not match
};

// Changes of a text before it is cut.
struct NormalizerRules {
  bool composes = false;         // to NFC
  bool marks_spaces = false;     // a space becomes kSpaceMark
  bool adds_mark_first = false;  // kSpaceMark goes in front
};

// How tokens that are not of the byte level become text.
struct DecoderRules {
  enum class Begin : uint8_t { as_it_is, drops_one_space, drops_marks_of_first_token };

  bool is_byte_level = false;
  bool reads_marks = false;  // kSpaceMark is a space
  bool joins_bytes = false;  // "<0x0A>" is that byte
  Begin begin = Begin::as_it_is;
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
  NormalizerRules normalizer;
  std::vector<SplitStep> steps;
  bool is_byte_level = false;  // words are spelt in bytes, otherwise in characters
  DecoderRules decoder;
  std::vector<AddedToken> added;
  std::vector<VocabularyEntry> vocabulary;
  std::vector<Merge> merges;   // the first goes first
  bool ignore_merges = false;  // a word that is a token is that token
  // A character without a token becomes its bytes, as "<0x0A>"; else the token of `unknown`.
  bool byte_fallback = false;
  std::string unknown;
  bool fuses_unknown = false;  // several unknown characters in a row are one token
  // The tokens in front of and behind a text.
  std::vector<uint32_t> prefix;
  std::vector<uint32_t> suffix;
};

// `name` stands for the file in messages. Throws Error(config) naming the byte or the key.
TokenizerFile parse_tokenizer_file(std::string_view json, std::string_view name);

}  // namespace terrace::data
